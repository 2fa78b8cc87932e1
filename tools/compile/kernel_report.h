// Kernels as octile_plan_describe gives them, for people.
#pragma once

#include <string>

#include "tools/common/handles.h"

namespace octile::tools {

// The first of each kernel of an array: a kernel that serves several problems stands once.
Json distinct_kernels(const Json& kernels);

// Name, registers, shared memory, spills, compile time, size, hit or miss.
std::string kernel_table(const Json& kernels);
// Template and configuration, a line each.
std::string configuration_lines(const Json& kernels);
// How many token-count buckets got their kernel by a record, a near record and the cost model.
std::string chosen_by_line(const Json& kernels);

std::string bytes_text(double bytes);  // "28.0 MiB"

}  // namespace octile::tools
