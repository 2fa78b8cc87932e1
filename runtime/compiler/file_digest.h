// Digests of large files that rarely change, remembered by what stat says of them.
#pragma once

#include <string>

#include "generator/core/error.h"

namespace octile {

// XXH3-128 of the file's contents, 32 lower-case hex digits. Remembered in the process, and where
// `memo_file` is not empty also there, under (path, size, mtime, inode): a file replaced in place
// changes at least one of them. The memo is advisory: one that is missing, torn or not writable
// costs time only, and each of its lines bears its own checksum. Usable from several threads and
// processes. Errors: kNoCompiler, where the file cannot be read.
Result<std::string> file_digest(const std::string& path, const std::string& memo_file);

}  // namespace octile
