// The tuning records of one root: <root>/tuning.jsonl, one record a line, appended to and never
// rewritten. FORMAT.md section 6.
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

// The records of a text, in its order. Blank lines are nothing.
struct TuningLines {
  std::vector<TuningRecord> records;
  std::size_t skipped = 0;    // lines that are no record of this version
  std::string first_skipped;  // "line 7: why"; empty where none was
  bool torn = false;          // the text ends within a line that is no record (yet)
};
TuningLines parse_tuning_lines(std::string_view text);

// What tells one state of the file from another without reading it.
struct TuningStamp {
  std::int64_t bytes = -1;  // -1: there is no file
  std::int64_t modified_ns = 0;
  std::uint64_t device = 0, inode = 0;
  friend bool operator==(const TuningStamp&, const TuningStamp&) = default;
};

// Usable from several threads at once: it keeps nothing open.
//
// A file that is a link, no regular file, may be written by group or others, or, in a writable
// root, belongs to neither this user nor root, is refused (IoError code 0).
class TuningFile {
 public:
  // lock_timeout bounds how long append() waits for other writers before it goes on without the
  // lock. file_ops null: the system's.
  TuningFile(const std::string& root, bool writable, std::shared_ptr<FileOps> file_ops = nullptr,
             std::chrono::milliseconds lock_timeout = std::chrono::seconds(5));

  const std::string& path() const { return path_; }
  bool writable() const { return root_.writable(); }

  // A file that cannot be asked about has the stamp of one that is not there.
  TuningStamp stamp() const;

  // No file is an empty answer.
  IoResult<TuningLines> read() const;

  // Adds one line, flushed to the device; creates root and file where they are missing. Writers in
  // any number of processes lose nothing of each other's, and a line that an earlier writer left
  // torn stays alone. A record that parse_tuning_record() would not give back is refused (code 0),
  // and so is a read-only root.
  IoResult<void> append(const TuningRecord& record) const;

 private:
  IoResult<void> check(const struct stat& status) const;
  IoResult<OpenFile> open_to_append(const OpenFile& folder) const;
  void lock(const OpenFile& file) const;
  IoResult<std::string> separator(const OpenFile& file, std::int64_t bytes) const;

  std::shared_ptr<FileOps> ops_;
  Root root_;
  std::string path_;
  std::chrono::milliseconds lock_timeout_;
};

}  // namespace octile::cache
