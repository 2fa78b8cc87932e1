// Files of lines to which any number of processes append, while others replace them whole: files of
// tuning records. A line that was reported as appended is in the file from then on, also after it
// was replaced by lines that somebody had read before. See FORMAT.md section 6.
//
// Whoever appends or replaces holds a lock of the file itself, and looks whether it is still the
// file of that name. Without locks, whoever appended looks again afterwards and, if the
// file was replaced, appends to the new one; whoever replaced looks for lines that came meanwhile.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/file_ops.h"

namespace octile::cache {

// A file's name in an open folder. The folder outlives it.
struct LinesFile {
  FileOps& ops;
  const OpenFile& folder;
  std::string name;
  std::string path;  // for errors
  FileCheck check;   // null: any regular file
};

// Appends the lines with one call and flushes them to the device; creates the file if it is
// missing. Lines of writers in any number of processes stay whole, and a torn line of an earlier
// writer stays on its own line. Waits at most `timeout` for the lock and then does without; 0: does
// without at once. Errors: those of open_regular(); the system's.
IoResult<void> append_lines(const LinesFile& file, const std::vector<std::string>& lines,
                            std::chrono::milliseconds timeout);

// Replaces a file of lines that others may be appending to.
class LinesReplacement {
 public:
  // Locks the file, which is created if it is missing. Its bytes are read only now. Waits at most
  // `timeout` for others that replace it; two may not do so at once. Errors: code 0 for a path that
  // names no file or something else than a regular file; EWOULDBLOCK after the timeout; the
  // system's.
  static IoResult<LinesReplacement> begin(
      const std::string& path, std::shared_ptr<FileOps> ops = nullptr,
      std::chrono::milliseconds timeout = std::chrono::seconds(60));
  LinesReplacement(LinesReplacement&&) = default;
  LinesReplacement& operator=(LinesReplacement&&) = delete;
  ~LinesReplacement();  // leaves what is there; a file that begin() made is removed

  // Returns true if begin() made the file.
  bool made() const { return made_; }

  // Writes the file whole; it keeps its permissions, and its owner if this process may give them.
  // Call once.
  IoResult<void> commit(std::string_view text);

 private:
  LinesReplacement(std::string path, std::shared_ptr<FileOps> ops)
      : ops_(std::move(ops)), path_(std::move(path)) {}
  IoResult<void> open_folder();
  IoResult<void> open_target();
  IoResult<bool> is_taken();
  IoResult<void> append_late_lines();

  std::shared_ptr<FileOps> ops_;  // declared first, because the files below are closed through it
  std::string path_, name_;
  OpenFile folder_;
  OpenFile target_;        // locked; none where it may not be opened
  struct stat seen_ = {};  // the file's status once it was locked
  bool made_ = false;      // by begin(), and not committed
};

}  // namespace octile::cache
