// A file of tuning records of one root, with one record in each line: <root>/tuning.jsonl, or that
// of a process that shares a tuning run, <root>/tuning.d/<rank>.jsonl. Records are appended and
// never rewritten. See FORMAT.md section 6.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/file_ops.h"
#include "cache/root.h"
#include "cache/tuning_record.h"

namespace octile::cache {

inline constexpr std::size_t kMaxTuningFileBytes = std::size_t{64} << 20;
// Bounds of files that are read together: those of a folder or a merge.
inline constexpr std::size_t kMaxTuningBytes = 2 * kMaxTuningFileBytes;
// A file with more such lines is not a file of tuning records. The rest of it is not read, which
// bounds the time that it takes.
inline constexpr std::size_t kMaxSkippedLines = 10'000;
// Bounds the time and memory that a file of short records takes: 2 KB each. The library's own sets
// have fewer than a thousand.
inline constexpr std::size_t kMaxTuningRecords = 100'000;

// The records of a text in their order. Blank lines are ignored.
struct TuningLines {
  std::vector<TuningRecord> records;
  std::size_t skipped = 0;    // number of lines that are not a record of this version
  std::string first_skipped;  // "line 7: why"; empty if no line was skipped
  bool cut = false;           // more than kMaxSkippedLines were skipped; the rest was not read
  bool full = false;          // there are more than kMaxTuningRecords; the rest was not read
  std::string left_out;       // of a folder: a sentence on the first file that is not read
  bool torn = false;          // the last line has no newline and is not a complete record yet
};
TuningLines parse_tuning_lines(std::string_view text);

// Returns the names of the files of records of a folder that exist, relative to it: tuning.jsonl
// and then tuning.d/*.jsonl, sorted. `path` is the folder's, for the error.
IoResult<std::vector<std::string>> tuning_file_names(FileOps& ops, int dir_fd,
                                                     const std::string& path);

// Identifies one state of the file without reading it.
struct TuningStamp {
  std::int64_t bytes = -1;  // -1: there is no file
  std::int64_t modified_ns = 0;
  std::uint64_t device = 0, inode = 0;
  friend bool operator==(const TuningStamp&, const TuningStamp&) = default;
};

// May be used by several threads at once, because it keeps no file open.
//
// A file that is a link, is not regular, or may be written by group or others is refused with
// IoError code 0. In a writable root it is also refused if it belongs to neither this user nor
// root.
class TuningFile {
 public:
  // lock_timeout bounds how long append() waits for other writers; after that it continues without
  // the lock. file_ops null: the system's.
  TuningFile(const std::string& root, bool writable, std::shared_ptr<FileOps> file_ops = nullptr,
             std::chrono::milliseconds lock_timeout = std::chrono::seconds(5));
  // Returns the file tuning.d/<rank>.jsonl, which has one writer and is not locked.
  static TuningFile of_rank(const std::string& root, bool writable, const std::string& rank,
                            std::shared_ptr<FileOps> file_ops = nullptr);

  const std::string& path() const { return path_; }
  bool writable() const { return root_.writable(); }

  // If the file's status cannot be read, the stamp is that of a missing file.
  TuningStamp stamp() const;

  // Returns the records; the result is empty if there is no file.
  IoResult<TuningLines> read() const;
  IoResult<std::string> read_text() const;

  // Appends one line as append_lines() of cache/appended_lines.h does; creates the root if it is
  // missing. A record reported as kept stays if the file is replaced meanwhile. Refuses, with code
  // 0, a record that parse_tuning_record() would not return unchanged. Also refuses a read-only
  // root.
  IoResult<void> append(const TuningRecord& record) const;
  // Appends lines of records as they are, with one call.
  IoResult<void> append_lines(const std::vector<std::string>& lines) const;

 private:
  IoResult<OpenFile> open_folder(Root::Missing missing) const;
  IoResult<void> check(const struct stat& status) const;

  std::shared_ptr<FileOps> ops_;
  Root root_;
  bool of_rank_ = false;
  std::string name_, path_;
  std::chrono::milliseconds lock_timeout_;
};

}  // namespace octile::cache
