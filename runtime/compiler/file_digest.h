// Digests of large files that rarely change. The process remembers them by the file's status.
#pragma once

#include <string>

#include "cache/file_ops.h"
#include "generator/core/error.h"

namespace octile {

// A larger file is not a library that Octile opens.
inline constexpr std::uint64_t kMaxDigestedBytes = std::uint64_t{2} << 30;

// Returns the XXH3-128 of the contents of a regular file as 32 lower-case hex digits. Links in the
// path are resolved first. The process remembers the digest under status_text(). If the file
// changes while it is read, the digest is not remembered. May be called from several threads at
// once. Errors: kNoCompiler if the file cannot be read, is not a regular file or has more than
// kMaxDigestedBytes.
Result<std::string> file_digest(const std::string& path);

// Returns one line that is different once the file was changed or replaced: "file <path> size <n>
// mtime <s.ns> ctime <s.ns> inode <n>", the path with links resolved. A program can set a file's
// modification time, but not its ctime, which every write and every replacement sets to the clock.
// Errors: those of file_digest().
Result<std::string> status_text(cache::FileOps& ops, const std::string& path);

}  // namespace octile
