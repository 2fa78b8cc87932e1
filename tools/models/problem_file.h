// Files of problems, for `tune --shapes` and `cache warm --problems`: one a line, a product's MxNxK
// or a canonical text; M and rows may be ?. Blank lines and what follows a # are nothing.
#pragma once

#include <functional>
#include <string>

#include "generator/core/error.h"
#include "generator/families.h"

namespace octile::tools {

// Calls `use` for each, in order. `recipe`: of short forms. Errors: kInvalidArgument for a file
// that cannot be read, naming `option`, or that names no problem; what a line or `use` gives, begun
// with the path and the line's number.
Status for_each_problem(const std::string& path, const std::string& option,
                        const std::string& recipe,
                        const std::function<Status(const Problem&)>& use);

}  // namespace octile::tools
