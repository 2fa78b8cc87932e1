// The suites of `octile bench`: tables of problems that are timed together.
#pragma once

#include <string>
#include <vector>

#include "tools/models/workload.h"

namespace octile::tools {

// Returns "quantize": the suites there are, for help and errors.
std::string suite_names();

// Returns the problems of a suite, each with its token count. If `selected` is not empty, only
// problems whose text contains one of its words. Errors: kInvalidArgument for an unknown suite, or
// if no problem is selected.
Result<std::vector<Work>> suite(const std::string& name, const std::vector<std::string>& selected);

}  // namespace octile::tools
