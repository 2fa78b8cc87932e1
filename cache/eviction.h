// Removes entries from a writable root: those that the caller does not want, and the least recently
// used if the root exceeds its limit. See FORMAT.md section 1, "Bound".
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

// The default holds about fifty thousand Hopper kernels of 40 to 100 KB.
inline constexpr std::int64_t kDefaultMaxBytes = std::int64_t{5} << 30;
// An entry published or used within this time is never removed to keep the limit, because its user
// may be about to read it.
inline constexpr std::chrono::seconds kDefaultProtect{600};

// Describes an entry by its name and its file's attributes. The file's content is not read.
struct StoredEntry {
  FileStem stem;
  std::string path;
  std::int64_t bytes = 0;
  // The later of the publication and the last use. The last use is accurate to the hour.
  std::chrono::system_clock::time_point used;
};

struct PruneOptions {
  // Returns true for entries to remove at any size and last use. Null: no entry is
  // unwanted.
  std::function<bool(const StoredEntry&)> unwanted;
  // After that, the least recently used entries are removed until the rest have at most this many
  // bytes. Without a value there is none.
  std::optional<std::int64_t> max_bytes;
  std::chrono::seconds protect = kDefaultProtect;  // protects from max_bytes, not from `unwanted`
  bool dry_run = false;  // report what would be removed, but remove nothing
};

struct PruneResult {
  // An entry that should have been removed and is still there, and why.
  struct Kept {
    StoredEntry entry;
    std::string reason;
  };
  // A folder of entries that could not be looked at, and why.
  struct Unread {
    std::string path;
    std::string reason;
  };

  std::vector<StoredEntry> removed;  // in the order of removal; in a dry run, what would be removed
  std::int64_t removed_bytes = 0;
  std::int64_t kept_entries = 0;
  std::int64_t kept_bytes = 0;
  std::vector<Kept> failed;    // they count as kept
  std::vector<Unread> unread;  // their entries count neither as removed nor as kept
};

// Inspects every entry of the root, removes entries according to `options` and returns what was
// removed and kept. An entry that is used between inspection and removal stays. A folder that
// cannot be inspected, or a foreign file in its place, is passed over. A reader that already opened
// a removed entry can finish reading it; later readers miss and compile. Also removes files that
// dead processes left behind, and entries set aside more than a week ago. If the root does not
// exist, the result is empty. An entry that cannot be removed counts as kept. file_ops null: the
// system's.
IoResult<PruneResult> prune(const std::string& root, const PruneOptions& options,
                            std::shared_ptr<FileOps> file_ops = nullptr);

// Keeps a root within its limit without scanning it on every publish. A file in the root stores the
// approximate total size. A scan runs only if that size exceeds the limit, is unknown or is a day
// old. If the limit is exceeded, the scan removes the least recently used entries until nine tenths
// of the limit remain.
class SizeBound {
 public:
  struct Options {
    std::int64_t max_bytes = kDefaultMaxBytes;  // 0: no limit, and nothing is counted
    std::chrono::seconds protect = kDefaultProtect;
  };
  SizeBound(Options options, std::shared_ptr<FileOps> file_ops)
      : options_(options), ops_(std::move(file_ops)) {}

  // Adds the bytes of a publish. Returns what a scan removed, or empty if no scan ran. If another
  // process holds the usage file, this call counts nothing and runs no scan.
  IoResult<std::optional<PruneResult>> published(const Root& root, std::int64_t bytes) const;

 private:
  Options options_;
  std::shared_ptr<FileOps> ops_;
};

}  // namespace octile::cache
