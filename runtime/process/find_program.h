// Finds the programs that the library starts.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "cache/file_ops.h"

namespace octile {

// Returns the path of a program of Octile, links resolved: in the folder of Octile's own file, else
// where an installation has it relative to the library. check_code() has to allow it. In a process
// with more rights than its caller these places may be the caller's choice, by a hard link to the
// host's program. So there trusted_program() has to allow the one that is found. The error says
// which places were looked at, or why the one that is there is not started.
tl::expected<std::string, std::string> find_program(std::string_view name);

// Returns the file that `program` names, links resolved, for a process with more rights than its
// caller. It is an error if a user other than root, and the process's own user where the caller is
// another, may write the file or a folder above it, or if the caller has the same user and so could
// change the program's memory.
tl::expected<std::string, std::string> trusted_program(cache::FileOps& ops,
                                                       const std::string& program);

}  // namespace octile
