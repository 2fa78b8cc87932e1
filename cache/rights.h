// Whose files a process believes that has more rights than its caller: it was started setuid,
// setgid or with capabilities of its file (getauxval(3), AT_SECURE).
#pragma once

#include <string>

#include "cache/file_ops.h"

namespace octile::cache {

bool has_more_rights_than_caller();

// Makes this process count as one that has. A program that such a process starts calls it, because
// the system does not say so again in all cases.
void count_as_having_more_rights();

// Returns false if this user's files may be the caller's, who has fewer rights: the real and the
// effective user are the same, and not root, in a process with more rights.
bool own_user_is_trusted();

// Refuses a path that somebody other than root and a trusted own user could make name another file:
// each folder from "/" on, and what the path names, is checked as check_unwritable_by_others()
// does. The path is absolute, without links. Errors: code 0 for a refused file, a link included.
IoResult<void> check_path_unwritable_by_others(FileOps& ops, const std::string& path);

}  // namespace octile::cache
