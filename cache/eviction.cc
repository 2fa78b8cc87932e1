#include "cache/eviction.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <thread>
#include <utility>

namespace octile::cache {
namespace {

using WallClock = std::chrono::system_clock;

// --- finding entries ---

struct Candidate {
  StoredEntry entry;
  struct stat status = {};
};

WallClock::time_point time_of(const timespec& time) {
  return WallClock::time_point(std::chrono::duration_cast<WallClock::duration>(
      std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec)));
}

// Returns the entries of the folders that can be inspected, and adds the others to `unread`.
IoResult<std::vector<Candidate>> candidates(const Root& root, bool tidy,
                                            std::vector<PruneResult::Unread>& unread) {
  const auto folders = root.folders();
  if (!folders) return tl::unexpected(folders.error());
  std::vector<Candidate> found;
  for (const std::string& folder : *folders) {
    if (tidy) root.tidy(folder);
    auto items = root.items(folder);
    if (!items) {
      unread.push_back({root.path() + "/v1/" + folder, items.error().sentence});
      continue;
    }
    for (Root::Item& item : *items) {
      StoredEntry entry{item.stem, root.path_of(item.stem), item.status.st_size,
                        time_of(item.status.st_mtim)};
      found.push_back({std::move(entry), item.status});
    }
  }
  // Entries with equal times are ordered by name, so that two runs choose the same ones.
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.entry.used, a.entry.path) < std::pair(b.entry.used, b.entry.path);
  });
  return found;
}

// --- removing entries ---

// A time stamp in the future means that a clock was set back or that a file server's clock is
// ahead. Such an entry is protected for as long as one stamped in the past.
bool is_protected(const StoredEntry& entry, WallClock::time_point now,
                  std::chrono::seconds protect) {
  return std::chrono::abs(now - entry.used) < protect;
}

// Removes the unwanted entries. If the rest exceed options.max_bytes, also removes the least
// recently used ones until at most `keep_bytes` remain. Returns what was removed and kept.
IoResult<PruneResult> prune_root(const Root& root, const PruneOptions& options,
                                 std::int64_t keep_bytes) {
  PruneResult result;
  auto found = candidates(root, !options.dry_run, result.unread);
  if (!found) return tl::unexpected(found.error());
  for (const Candidate& candidate : *found) result.kept_bytes += candidate.entry.bytes;
  result.kept_entries = static_cast<std::int64_t>(found->size());

  const auto now = WallClock::now();
  const auto take = [&](const Candidate& candidate) {
    if (!options.dry_run) {
      const auto gone = root.remove(candidate.entry.stem, candidate.status);
      if (!gone) result.failed.push_back({candidate.entry, gone.error().sentence});
      if (!gone.value_or(false)) return false;
    }
    result.kept_bytes -= candidate.entry.bytes;
    result.kept_entries -= 1;
    result.removed_bytes += candidate.entry.bytes;
    result.removed.push_back(candidate.entry);
    return true;
  };
  if (options.unwanted) {
    std::erase_if(*found, [&](const Candidate& candidate) {
      return options.unwanted(candidate.entry) && take(candidate);
    });
  }
  if (options.max_bytes && result.kept_bytes > *options.max_bytes) {
    for (const Candidate& candidate : *found) {
      if (result.kept_bytes <= keep_bytes) break;
      if (!is_protected(candidate.entry, now, options.protect)) take(candidate);
    }
  }
  return result;
}

// --- the stored total size ---

// <root>/v1/usage holds three numbers of fixed width, so a writer overwrites the complete previous
// content.
struct Usage {
  std::int64_t bytes = 0;  // size of the entries at the last scan plus what was published since
  std::int64_t found_bytes = 0;  // size of the entries that the last scan kept
  std::int64_t looked = 0;       // time of the last scan in seconds since 1970

  static constexpr std::size_t kTextBytes = 63;
  std::string text() const {
    return fmt::format("{:020} {:020} {:020}\n", bytes, found_bytes, looked);
  }
};

std::optional<Usage> parse_usage(std::string_view text) {
  Usage usage;
  if (text.size() != Usage::kTextBytes) return std::nullopt;
  long long bytes = 0;
  long long found = 0;
  long long looked = 0;
  // NOLINTNEXTLINE(cert-err34-c): compared with the numbers' own text
  if (std::sscanf(std::string(text).c_str(), "%lld %lld %lld", &bytes, &found, &looked) != 3)
    return std::nullopt;
  usage = {bytes, found, looked};
  if (bytes < 0 || found < 0 || usage.text() != text) return std::nullopt;
  return usage;
}

class UsageFile {
 public:
  UsageFile(FileOps& ops, OpenFile file, std::string path)
      : ops_(ops), file_(std::move(file)), path_(std::move(path)) {}

  // Opens and locks the file. Returns empty if another process holds the lock.
  static IoResult<std::optional<UsageFile>> open(FileOps& ops, const Root& root);

  // Returns empty if the file is new or does not have the expected form.
  IoResult<std::optional<Usage>> read() const {
    std::string text(Usage::kTextBytes, '\0');
    const auto filled = read_from(
        ops_, file_, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()}, 0, path_);
    if (!filled) return tl::unexpected(filled.error());
    return parse_usage(std::string_view(text).substr(0, *filled));
  }

  // Writes the file from its beginning; may be called once after open(). The file is not flushed:
  // after a power loss, the next scan runs within a day.
  IoResult<void> write(const Usage& usage) const {
    const std::string text = usage.text();
    const ssize_t n = retry_interrupted([&] {
      return ops_.write(file_.fd(),
                        {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
    });
    if (n < 0) return io_failure("write", path_, n);
    return {};
  }

 private:
  FileOps& ops_;
  OpenFile file_;
  std::string path_;
};

IoResult<std::optional<UsageFile>> UsageFile::open(FileOps& ops, const Root& root) {
  constexpr const char* kName = "usage";
  // An ordinary holder needs less time for its four system calls. A scan of a large root takes
  // longer, and nobody needs to wait for it.
  constexpr std::chrono::milliseconds kPatience{100};
  const std::string path = root.path() + "/v1/" + kName;
  const auto folder = root.open_version(Root::Missing::kFail);
  if (!folder) return tl::unexpected(folder.error());
  auto file = open_regular(ops, folder->fd(), kName, O_RDWR | O_CREAT, 0600, path,
                           unwritable_by_others(path));
  if (!file) return tl::unexpected(file.error());
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    const int locked = retry_interrupted([&] { return ops.try_lock(file->fd()); });
    // On a filesystem without locks, two writers may lose each other's counts until the next scan.
    if (locked != -EWOULDBLOCK) break;
    if (std::chrono::steady_clock::now() >= deadline) return std::optional<UsageFile>();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return std::optional<UsageFile>(UsageFile(ops, std::move(*file), path));
}

Usage usage_of(const PruneResult& result) {
  return {result.kept_bytes, result.kept_bytes, WallClock::to_time_t(WallClock::now())};
}

}  // namespace

IoResult<PruneResult> prune(const std::string& root, const PruneOptions& options,
                            std::shared_ptr<FileOps> file_ops) {
  const std::shared_ptr<FileOps> ops = or_system(std::move(file_ops));
  const Root folder(root, true, ops);
  const std::int64_t keep_bytes = options.max_bytes.value_or(0);
  if (options.dry_run) return prune_root(folder, options, keep_bytes);
  // The lock is held during the scan, so each publish counts either before or after it. The stored
  // size is advisory: if it cannot be written here, the next scan corrects it.
  const auto opened = UsageFile::open(*ops, folder);
  const std::optional<UsageFile>* file = opened ? &*opened : nullptr;
  auto result = prune_root(folder, options, keep_bytes);
  if (result && file != nullptr && file->has_value()) file->value().write(usage_of(*result));
  return result;
}

IoResult<std::optional<PruneResult>> SizeBound::published(const Root& root,
                                                          std::int64_t bytes) const {
  using Looked = std::optional<PruneResult>;
  constexpr std::int64_t kLookAgainSeconds = std::int64_t{24} * 3600;
  if (options_.max_bytes <= 0) return Looked();
  const auto opened = UsageFile::open(*ops_, root);
  if (!opened) return tl::unexpected(opened.error());
  const std::optional<UsageFile>& file = opened.value();
  if (!file) return Looked();
  const auto read = file->read();
  if (!read) return tl::unexpected(read.error());
  const std::optional<Usage>& known = read.value();

  const std::int64_t now = WallClock::to_time_t(WallClock::now());
  const std::int64_t tenth = options_.max_bytes / 10;
  if (known && std::abs(now - known->looked) < kLookAgainSeconds) {
    Usage usage = *known;
    usage.bytes += bytes;
    // The last scan may have exceeded the limit because the entries are protected. The next one
    // then runs after another tenth of the limit has been published.
    const bool kept = usage.found_bytes <= options_.max_bytes;
    if (usage.bytes <= (kept ? options_.max_bytes : usage.found_bytes + tenth)) {
      if (auto written = file->write(usage); !written) return tl::unexpected(written.error());
      return Looked();
    }
  }
  PruneOptions look;
  look.protect = options_.protect;
  look.max_bytes = options_.max_bytes;
  auto result = prune_root(root, look, options_.max_bytes - tenth);
  if (!result) return tl::unexpected(result.error());
  if (auto written = file->write(usage_of(*result)); !written)
    return tl::unexpected(written.error());
  return Looked(std::move(*result));
}

}  // namespace octile::cache
