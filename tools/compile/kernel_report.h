// Tables and lines about kernels, each of them an object that octile_plan_describe documents.
#pragma once

#include <string>

#include "tools/common/handles.h"
#include "tools/common/text_table.h"

namespace octile::tools {

// Returns a table of name, registers, shared memory, spills, compile time, size, and hit or miss.
// Kernels with an "error" have no row.
TextTable kernel_table(const Json& kernels);
// Returns a sentence for each kernel: its template and its configuration.
std::string configuration_lines(const Json& kernels);
// Returns a sentence that says how many token-count buckets got their kernel from a record, a near
// record, a sister card's record and the cost model; empty if none has one. Each kernel has
// "problems", objects with an array "chosen_by".
std::string chosen_by_line(const Json& kernels);

std::string bytes_text(double bytes);
// Returns the bytes in KiB, for a column of a table.
std::string kib_text(double bytes);  // "28.0 MiB"

}  // namespace octile::tools
