// Files of problems, for --problem-file. Each line is a problem: a GEMM's MxNxK or a canonical
// text; M and rows may be ?. Blank lines and everything after a # are ignored.
#pragma once

#include <functional>
#include <string>

#include "generator/core/error.h"
#include "generator/families.h"

namespace octile::tools {

// Calls `use` for each problem, in order. `recipe` gives the types of a MxNxK. Errors:
// kInvalidArgument for a file that cannot be read or that names no problem; the error of a line or
// of `use`, with the path and the line's number before it.
Status for_each_problem(const std::string& path, const std::string& recipe,
                        const std::function<Status(const Problem&)>& use);

}  // namespace octile::tools
