// Where Octile's own code was loaded from, and who may have put other code there.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "cache/file_ops.h"

namespace octile {

// The file that holds this code: liboctile.so, or the program it is linked into.
struct OwnFile {
  std::string folder;          // links resolved, with a slash at its end; empty if it is unknown
  std::optional<uid_t> owner;  // whose code this is, and so trusted like it
};

// Returns what was found out when the library was loaded. A later chdir() does not change it, nor
// does a file that takes this one's name.
const OwnFile& own_file();

// Returns the file that `path` names, links resolved, if nobody could have put it there whose code
// this process does not run already. The file and its folder belong to root, this process's user
// or the owner of Octile's own file, and others may not write them; nor may a group, unless it is
// the owner's own (of the same number). A process with more rights than its caller allows no group
// and no owner of Octile's own file. Errors: code 0 for a refused file, with the reason.
cache::IoResult<std::string> check_code(cache::FileOps& ops, const std::string& path);

}  // namespace octile
