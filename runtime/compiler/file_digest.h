// Digests of large files that rarely change. A digest is remembered together with the file's
// status.
#pragma once

#include <string>

#include "generator/core/error.h"

namespace octile {

// Returns the XXH3-128 of the file's contents as 32 lower-case hex digits. The process remembers it
// under (path, size, mtime, inode): replacing a file in place changes at least one of them. If
// `memo_file` is not empty, that file remembers it too. The memo is advisory: a missing, torn or
// unwritable memo costs only time, and each of its lines has its own checksum. May be called from
// several threads and processes. Errors: kNoCompiler if the file cannot be read.
Result<std::string> file_digest(const std::string& path, const std::string& memo_file);

}  // namespace octile
