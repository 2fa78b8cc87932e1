// Files of problems, for --problem-file. Each line is a canonical text or a linear layer's MxNxK,
// which stands for a GEMM of each pass that is asked for; M and rows may be ?. Blank lines and
// everything after a # are ignored.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "generator/core/error.h"
#include "tools/models/workload.h"

namespace octile::tools {

// Sees a problem, and whether its line is an MxNxK.
using ProblemUse = std::function<Status(const Request& request, bool is_shape)>;

// Calls `use` for each problem, in order. `path` is "-" for standard input; the file is read once.
// `recipe` gives the types of an MxNxK. Errors: kInvalidArgument for a file that cannot be read or
// that names no problem; the error of a line or of `use`, with the path and the line's number
// before it.
Status for_each_problem(const std::string& path, const std::string& recipe,
                        const std::vector<Pass>& passes, const ProblemUse& use);

}  // namespace octile::tools
