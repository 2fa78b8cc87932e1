// What leaves a writable root: what a caller does not want any more, and what was used least
// recently where the root has grown beyond its bound. FORMAT.md section 1, "Bound".
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/file_name.h"
#include "cache/file_ops.h"
#include "cache/root.h"

namespace octile::cache {

// A Hopper kernel is 40 to 100 KB, so the default is some fifty thousand of them.
inline constexpr std::int64_t kDefaultMaxBytes = std::int64_t{5} << 30;
// What was published or used so recently never goes to keep the bound: whoever asked for it may be
// about to read it.
inline constexpr std::chrono::seconds kDefaultProtect{600};

// An entry by what its name and its file's attributes say; nothing is read of it.
struct StoredEntry {
  FileStem stem;
  std::string path;
  std::int64_t bytes = 0;
  // The later of its publication and its last use, the latter to the hour.
  std::chrono::system_clock::time_point used;
};

struct PruneOptions {
  // Which entries to remove whatever the size and however recently used. Null: none.
  std::function<bool(const StoredEntry&)> unwanted;
  // Then the least recently used, until the entries have at most so many bytes. Empty: no bound.
  std::optional<std::int64_t> max_bytes;
  std::chrono::seconds protect = kDefaultProtect;  // from max_bytes, not from `unwanted`
  bool dry_run = false;                            // tell, remove nothing
};

struct PruneResult {
  std::vector<StoredEntry> removed;  // or would be, in the order of removal
  std::int64_t removed_bytes = 0;
  std::int64_t kept_entries = 0;
  std::int64_t kept_bytes = 0;
};

// Looks at every entry of the root and removes. An entry used between the look and its removal
// stays. Readers that have opened one read on; whoever comes later misses and compiles. Also
// removes what dead processes left behind and entries set aside longer than a week ago. A root that
// does not exist is an empty result; an entry that cannot be removed is kept and counted so.
// file_ops null: the system's.
IoResult<PruneResult> prune(const std::string& root, const PruneOptions& options,
                            std::shared_ptr<FileOps> file_ops = nullptr);

// Keeps a root within a bound without looking at all of it for every publish: a file in the root
// knows about how many bytes there are, and only when that passes the bound (or is unknown, or a
// day old) are the entries looked at and the least recently used removed, down to nine tenths.
class SizeBound {
 public:
  struct Options {
    std::int64_t max_bytes = kDefaultMaxBytes;  // 0: no bound, nothing is counted
    std::chrono::seconds protect = kDefaultProtect;
  };
  SizeBound(Options options, std::shared_ptr<FileOps> file_ops)
      : options_(options), ops_(std::move(file_ops)) {}

  // After a publish of so many bytes. Empty: the entries were not looked at. Where another process
  // is at it, this one goes on without.
  IoResult<std::optional<PruneResult>> published(const Root& root, std::int64_t bytes) const;

 private:
  Options options_;
  std::shared_ptr<FileOps> ops_;
};

}  // namespace octile::cache
