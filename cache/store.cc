#include "cache/store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <exception>
#include <iterator>
#include <mutex>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "cache/file_ops.h"
#include "cache/root.h"

namespace octile::cache {
namespace {

// Says whether a lookup changes the root: it stamps the entry it finds and sets damaged ones aside.
enum class Traces { kLeave, kNone };

constexpr const char* kAnotherKernel = "it holds another kernel than its name says";
// Metadata has about 700 bytes, and reading a page costs no more. Longer heads are read with a
// second call.
constexpr std::size_t kUsualHeadBytes = 4096;

tl::unexpected<EntryError> unread(std::string why) {
  return tl::unexpected(EntryError{std::move(why), true});
}
tl::unexpected<EntryError> unread(const IoError& error) {
  return tl::unexpected(EntryError{error.sentence, error.code != 0});
}
tl::unexpected<EntryError> refused(std::string why) {
  return tl::unexpected(EntryError{std::move(why), false});
}

FileStem stem_of(const std::string& key, const Toolchain& toolchain) {
  return {digest_hex(key), digest_hex(toolchain.text())};
}

}  // namespace

struct Store::Impl {
  StoreOptions options;
  std::shared_ptr<FileOps> ops;
  std::vector<Root> roots;  // in order of lookup: read-only roots, then the writable one
  std::mutex mutex;
  std::unordered_set<std::string> reported;     // guarded by mutex
  std::unordered_set<std::string> passed_over;  // paths of entries; guarded by mutex

  explicit Impl(StoreOptions given);
  const Root* writable_root() const;

  // Warns about a subject (a root or an entry's path) the first time. Later messages about it have
  // debug severity.
  void warn_once(const std::string& subject, const std::string& message);
  void warn_root(const Root& root, const IoError& error);
  void warn_entry(const std::string& path, const std::string& reason);
  void debug(const std::string& message);
  void discard(const Root& root, const FileStem& stem, const struct stat& status,
               const std::string& reason, Traces traces);
  void reject(const FileStem& stem, const Hit& hit, const std::string& reason);
  void pass_over(const std::string& path, const std::string& reason);
  bool is_passed_over(const std::string& path);
  void count(CacheEvent event, double compile_ms);
  void keep_bound(const Root& root, std::int64_t published_bytes);

  std::optional<Hit> find(const Identity& identity, const std::optional<Toolchain>& toolchain,
                          Traces traces);
  std::optional<Hit> read(const Root& root, const FileStem& stem, const std::string& key,
                          Traces traces);
  std::optional<Hit> exact(const std::string& key, const Toolchain& toolchain, Traces traces);
  std::optional<Hit> newest(const std::string& key, bool read_only_roots_only, Traces traces);
  bool publish(const Entry& entry);
  std::unique_ptr<EntryLock> lock(const FileStem& stem);
  void list(const Root& root, std::vector<Listing>& listings, std::vector<UnreadPart>& unread);
  tl::expected<Head, EntryError> head_of(const Root& root, const Root::Beginning& beginning);
  struct Verified {
    Entry entry;
    std::vector<std::uint8_t> bytes;
  };
  tl::expected<Verified, EntryError> read(const Listing& listing);

  // Catches what remains, so that no call fails: out of memory, or a logger that throws.
  template <typename T, typename Work>
  T guarded(T otherwise, Work work) noexcept {
    try {
      return work();
    } catch (const std::exception& error) {
      try {
        warn_once("exception", fmt::format("kernel cache: {}; going on without it", error.what()));
      } catch (...) {  // the logger itself threw
      }
    } catch (...) {  // only a logger can throw anything else
    }
    return otherwise;
  }
};

Store::Impl::Impl(StoreOptions given) : options(std::move(given)) {
  ops = or_system(options.file_ops);
  for (const std::string& path : options.read_only_roots) {
    if (!path.empty()) roots.emplace_back(path, false, ops);
  }
  if (!options.writable_root.empty()) {
    roots.emplace_back(options.writable_root, true, ops);
  }
}

const Root* Store::Impl::writable_root() const {
  return roots.empty() || !roots.back().writable() ? nullptr : &roots.back();
}

// --- reporting ---

void Store::Impl::warn_once(const std::string& subject, const std::string& message) {
  if (!options.log) return;
  bool first = false;
  {
    const std::lock_guard guard(mutex);
    first = reported.insert(subject).second;
  }
  options.log(first ? Severity::kWarning : Severity::kDebug, message);
}

void Store::Impl::warn_root(const Root& root, const IoError& error) {
  warn_once(root.path(), fmt::format("kernel cache: {}; kernels that it does not give are compiled",
                                     error.sentence));
}

void Store::Impl::warn_entry(const std::string& path, const std::string& reason) {
  warn_once(path, fmt::format("kernel cache entry {} is not used: {}", path, reason));
}

void Store::Impl::debug(const std::string& message) {
  if (options.log) options.log(Severity::kDebug, message);
}

// --- refusing entries ---

// A damaged entry would be read and refused by every process until somebody publishes the kernel
// again.
void Store::Impl::discard(const Root& root, const FileStem& stem, const struct stat& status,
                          const std::string& reason, Traces traces) {
  warn_entry(root.path_of(stem), reason);
  if (root.writable() && traces == Traces::kLeave) root.set_aside(stem, status);
}

void Store::Impl::reject(const FileStem& stem, const Hit& hit, const std::string& reason) {
  warn_entry(hit.path, reason);
  const Root* root = writable_root();
  if (root == nullptr || root->path_of(stem) != hit.path) return pass_over(hit.path, reason);
  struct stat status = {};
  const auto bytes = root->read(stem, kMaxEntryBytes, &status);
  // Another entry may have been published since.
  if (bytes && deserialize(*bytes) == hit.entry) root->set_aside(stem, status);
}

void Store::Impl::pass_over(const std::string& path, const std::string& reason) {
  warn_entry(path, reason);
  const std::lock_guard guard(mutex);
  passed_over.insert(path);
}

bool Store::Impl::is_passed_over(const std::string& path) {
  const std::lock_guard guard(mutex);
  return passed_over.contains(path);
}

// --- lookup ---

// Returns the entry under this name if it is intact and holds this kernel.
std::optional<Hit> Store::Impl::read(const Root& root, const FileStem& stem, const std::string& key,
                                     Traces traces) {
  const std::string path = root.path_of(stem);
  if (is_passed_over(path)) return std::nullopt;
  struct stat status = {};
  const auto bytes = root.read(stem, kMaxEntryBytes, &status);
  if (!bytes) {
    const IoError& error = bytes.error();
    if (error.code == 0) warn_entry(path, error.sentence);
    if (error.code != 0 && error.code != ENOENT) warn_root(root, error);
    return std::nullopt;
  }
  auto entry = deserialize(*bytes);
  if (!entry) {
    if (is_other_version(*bytes)) {
      debug(fmt::format("kernel cache entry {} is passed over: {}", path, entry.error()));
    } else {
      discard(root, stem, status, entry.error(), traces);
    }
    return std::nullopt;
  }
  if (key_text(entry->identity) != key || stem.toolchain != digest_hex(entry->toolchain.text())) {
    discard(root, stem, status, kAnotherKernel, traces);
    return std::nullopt;
  }
  // The stamp is renewed at most hourly, so that a hit seldom writes.
  constexpr std::time_t kStampSeconds = 3600;
  const bool stale = std::time(nullptr) - status.st_mtime > kStampSeconds;
  if (root.writable() && stale && traces == Traces::kLeave) root.touch(stem);
  return Hit{std::move(*entry), path, false};
}

std::optional<Hit> Store::Impl::exact(const std::string& key, const Toolchain& toolchain,
                                      Traces traces) {
  const FileStem stem = stem_of(key, toolchain);
  for (const Root& root : roots) {
    auto hit = read(root, stem, key, traces);
    if (hit && hit->entry.toolchain == toolchain) {
      hit->exact_toolchain = true;
      return hit;
    }
  }
  return std::nullopt;
}

std::optional<Hit> Store::Impl::newest(const std::string& key, bool read_only_roots_only,
                                       Traces traces) {
  const std::string identity = digest_hex(key);
  std::optional<Hit> best;
  for (const Root& root : roots) {
    if (read_only_roots_only && root.writable()) continue;
    const auto stems = root.entries(identity.substr(0, 2));
    if (!stems) {
      warn_root(root, stems.error());
      continue;
    }
    for (const FileStem& stem : *stems) {
      if (stem.identity != identity) continue;
      auto hit = read(root, stem, key, traces);
      // RFC 3339 dates in UTC sort as text. The file's time is not used, because copies and image
      // layers change it.
      if (hit && (!best || hit->entry.metadata.date > best->entry.metadata.date)) {
        best = std::move(hit);
      }
    }
  }
  return best;
}

std::optional<Hit> Store::Impl::find(const Identity& identity,
                                     const std::optional<Toolchain>& toolchain, Traces traces) {
  const std::string key = key_text(identity);
  if (toolchain) {
    if (auto hit = exact(key, *toolchain, traces)) return hit;
  }
  if (options.strict) return std::nullopt;
  return newest(key, /*read_only_roots_only=*/toolchain.has_value(), traces);
}

// --- publish and lock ---

bool Store::Impl::publish(const Entry& entry) {
  const Root* root = writable_root();
  if (root == nullptr) return false;
  const std::string key = key_text(entry.identity);
  const std::vector<std::uint8_t> bytes = serialize(entry);
  if (key.size() > kMaxKeyTextBytes || bytes.size() > kMaxEntryBytes) {
    warn_entry(entry.identity.entry_name,
               fmt::format("{} bytes with {} bytes of key text, at most {} and {} are stored",
                           bytes.size(), key.size(), kMaxEntryBytes, kMaxKeyTextBytes));
    return false;
  }
  const auto published = root->publish(stem_of(key, entry.toolchain), bytes);
  if (!published) {
    warn_root(*root, published.error());
    return false;
  }
  {
    const std::lock_guard guard(mutex);
    passed_over.erase(root->path_of(stem_of(key, entry.toolchain)));
  }
  keep_bound(*root, static_cast<std::int64_t>(bytes.size()));
  return true;
}

// The entry is already published, so a failure here fails no call. But it is said, because a root
// that is not kept within its bound fills a disk.
void Store::Impl::keep_bound(const Root& root, std::int64_t published_bytes) {
  const auto looked = SizeBound(options.bound, ops).published(root, published_bytes);
  if (!looked) {
    return warn_once(root.path(), fmt::format("kernel cache {}: {}; its size is not bounded until "
                                              "that is mended",
                                              root.path(), looked.error().sentence));
  }
  const std::optional<PruneResult>& pruned = looked.value();
  if (!pruned) return;
  for (const PruneResult::Unread& folder : pruned->unread) {
    warn_once(folder.path, fmt::format("kernel cache {}: {} is passed over when the least recently "
                                       "used entries are removed: {}",
                                       root.path(), folder.path, folder.reason));
  }
  if (!pruned->failed.empty()) {
    warn_once(root.path(),
              fmt::format("kernel cache {}: {} entries cannot be removed, the first because: {}; "
                          "its size is not bounded until that is mended",
                          root.path(), pruned->failed.size(), pruned->failed.front().reason));
  }
  if (!pruned->removed.empty()) {
    debug(fmt::format("kernel cache {}: removed {} least recently used entries, {} bytes",
                      root.path(), pruned->removed.size(), pruned->removed_bytes));
  }
}

// Failures are logged for debugging only, because nobody depends on the statistics.
void Store::Impl::count(CacheEvent event, double compile_ms) {
  const Root* root = writable_root();
  if (root == nullptr) return;
  const auto counted = StatisticsLog(root->path(), ops).count(event, compile_ms);
  if (!counted) debug(fmt::format("kernel cache statistics: {}", counted.error().sentence));
}

std::unique_ptr<EntryLock> Store::Impl::lock(const FileStem& stem) {
  const Root* root = writable_root();
  if (root == nullptr) return nullptr;
  auto entry_lock = root->lock(stem, options.lock_timeout);
  if (!entry_lock) {
    warn_root(*root, entry_lock.error());
    return nullptr;
  }
  if (*entry_lock == nullptr) {
    warn_once(
        "lock " + stem.entry_name(),
        fmt::format("kernel cache: others keep the lock of {} longer than {} ms each; compiling it "
                    "here too",
                    root->path_of(stem), options.lock_timeout.count()));
  }
  return std::move(*entry_lock);
}

// --- list ---

void Store::Impl::list(const Root& root, std::vector<Listing>& listings,
                       std::vector<UnreadPart>& unread) {
  const auto miss = [&](const IoError& error) {
    unread.push_back({error.sentence, root.writable()});
    warn_root(root, error);
  };
  // A read-only root was named by somebody, so it should be there.
  const auto exists = root.check();
  if (!exists && (!root.writable() || exists.error().code != ENOENT)) return miss(exists.error());
  const auto folders = root.folders();
  if (!folders) return miss(folders.error());
  for (const std::string& folder : *folders) {
    auto beginnings = root.beginnings(folder, kUsualHeadBytes);
    if (!beginnings) {
      miss(beginnings.error());
      continue;
    }
    for (Root::Beginning& one : *beginnings) {
      const auto index = static_cast<std::size_t>(&root - roots.data());
      auto head = head_of(root, one);
      const bool other = one.bytes && is_other_version(*one.bytes);
      listings.push_back({root.path_of(one.stem), std::move(one.stem), one.file_bytes,
                          root.writable(), index, std::move(head), other});
    }
  }
}

tl::expected<Head, EntryError> Store::Impl::head_of(const Root& root,
                                                    const Root::Beginning& beginning) {
  const auto& [stem, file_bytes, first] = beginning;
  if (!first) return unread(first.error());
  const auto size = static_cast<std::uint64_t>(file_bytes);
  const auto end = head_end(*first, size);
  if (!end) return refused(end.error());
  auto head = deserialize_head(*first, size);
  if (*end > first->size()) {
    const auto all = root.read(stem, kMaxEntryBytes);
    if (!all) return unread(all.error());
    head = deserialize_head(*all, all->size());
  }
  if (!head) return refused(head.error());
  if (stem.toolchain != digest_hex(head->toolchain.text())) return refused(kAnotherKernel);
  return std::move(*head);
}

tl::expected<Store::Impl::Verified, EntryError> Store::Impl::read(const Listing& listing) {
  if (listing.root >= roots.size()) return refused("it is of another store");
  auto bytes = roots[listing.root].read(listing.stem, kMaxEntryBytes);
  if (!bytes) return unread(bytes.error());
  auto entry = deserialize(*bytes);
  if (!entry) return refused(entry.error());
  if (stem_of(key_text(entry->identity), entry->toolchain).entry_name() !=
      listing.stem.entry_name()) {
    return refused(kAnotherKernel);
  }
  return Verified{std::move(*entry), std::move(*bytes)};
}

// --- public functions ---

Store::Store(StoreOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  impl_->guarded(false, [&] {
    for (const Root& root : impl_->roots) {
      if (root.writable()) continue;  // the first publish creates it
      if (const auto found = root.check(); !found) impl_->warn_root(root, found.error());
    }
    return true;
  });
}

Store::~Store() = default;

std::optional<Hit> Store::lookup(const Identity& identity,
                                 const std::optional<Toolchain>& toolchain) {
  return impl_->guarded(std::optional<Hit>(),
                        [&] { return impl_->find(identity, toolchain, Traces::kLeave); });
}

std::optional<Hit> Store::peek(const Identity& identity,
                               const std::optional<Toolchain>& toolchain) {
  return impl_->guarded(std::optional<Hit>(),
                        [&] { return impl_->find(identity, toolchain, Traces::kNone); });
}

bool Store::publish(const Entry& entry) {
  return impl_->guarded(false, [&] { return impl_->publish(entry); });
}

void Store::reject(const Identity& identity, const Hit& hit, const std::string& reason) {
  impl_->guarded(false, [&] {
    impl_->reject(stem_of(key_text(identity), hit.entry.toolchain), hit, reason);
    return true;
  });
}

void Store::pass_over(const std::string& path, const std::string& reason) {
  impl_->guarded(false, [&] {
    impl_->pass_over(path, reason);
    return true;
  });
}

void Store::count(CacheEvent event, double compile_ms) {
  impl_->guarded(false, [&] {
    impl_->count(event, compile_ms);
    return true;
  });
}

Store::Lock Store::lock(const Identity& identity, const Toolchain& toolchain) {
  return Lock(impl_->guarded(std::unique_ptr<EntryLock>(),
                             [&] { return impl_->lock(stem_of(key_text(identity), toolchain)); }));
}

std::vector<Listing> Store::list(std::vector<UnreadPart>* unread) {
  std::vector<Listing> listings;
  std::vector<UnreadPart> missing;
  const bool ended = impl_->guarded(false, [&] {
    for (const Root& root : impl_->roots) impl_->list(root, listings, missing);
    return true;
  });
  if (!ended) missing.push_back({"reading the entries ended early", true});
  if (unread != nullptr) std::ranges::move(missing, std::back_inserter(*unread));
  return listings;
}

tl::expected<Entry, EntryError> Store::read(const Listing& listing) {
  using Read = tl::expected<Entry, EntryError>;
  return impl_->guarded(Read(unread(listing.path + ": it could not be read")), [&] {
    return impl_->read(listing).map([](Impl::Verified&& whole) { return std::move(whole.entry); });
  });
}

tl::expected<std::vector<std::uint8_t>, EntryError> Store::read_bytes(const Listing& listing) {
  using Read = tl::expected<std::vector<std::uint8_t>, EntryError>;
  return impl_->guarded(Read(unread(listing.path + ": it could not be read")), [&] {
    return impl_->read(listing).map([](Impl::Verified&& whole) { return std::move(whole.bytes); });
  });
}

const StoreOptions& Store::options() const { return impl_->options; }

Store::Lock::Lock() = default;
Store::Lock::Lock(std::unique_ptr<EntryLock> lock) : lock_(std::move(lock)) {}
Store::Lock::Lock(Lock&&) noexcept = default;
Store::Lock& Store::Lock::operator=(Lock&&) noexcept = default;
Store::Lock::~Lock() = default;

std::string root_for_this_user(std::string_view path) {
  std::string text(path);
  for (std::size_t at = 0; (at = text.find(kUserInPath, at)) != std::string::npos;) {
    const std::string user = fmt::format("{}", ::geteuid());
    text.replace(at, kUserInPath.size(), user);
    at += user.size();
  }
  return text;
}

std::string default_root(std::string_view cache_dir, std::string_view xdg_cache_home,
                         std::string_view home) {
  if (!cache_dir.empty()) return root_for_this_user(cache_dir);
  if (xdg_cache_home.starts_with('/')) return std::string(xdg_cache_home) + "/octile";
  if (home.starts_with('/')) return std::string(home) + "/.cache/octile";
  return {};
}

}  // namespace octile::cache
