// Entries on disk under one writable root and any number of read-only ones. Advisory: nothing that
// happens here fails a call; what goes wrong is a miss plus one warning.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "cache/entry.h"
#include "cache/eviction.h"
#include "cache/statistics.h"

namespace octile::cache {

enum class Severity { kDebug, kInfo, kWarning };
using Log = std::function<void(Severity, const std::string&)>;

struct StoreOptions {
  std::string writable_root;  // empty: none
  std::vector<std::string> read_only_roots;
  bool strict = false;  // never match an entry of another toolchain, or of an unknown one
  std::chrono::milliseconds lock_timeout{30000};  // per owner of the lock; see Root::lock()
  SizeBound::Options bound;                       // of the writable root
  Log log;                            // may be called from any thread that calls the store
  std::shared_ptr<FileOps> file_ops;  // null: the system's; tests inject faults here
};

struct Hit {
  Entry entry;
  std::string path;
  bool exact_toolchain = false;
};

struct Listing {
  std::string path;
  FileStem stem;
  std::int64_t bytes = 0;
  bool writable_root = false;
  std::size_t root = 0;                  // in the order of lookup
  tl::expected<Head, std::string> head;  // the reason where it cannot be read
  bool other_version = false;            // which may be another version of the format
};

// Usable from several threads at once.
class Store {
 public:
  explicit Store(StoreOptions options);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // The entry of exactly this toolchain, from the first root (read-only ones first) that has it;
  // else, unless `strict`, the newest by date of the read-only roots, whatever its toolchain.
  // toolchain empty: this host has no compiler; the newest of all roots (nothing when `strict`).
  // Verified before it is returned: every check of deserialize(), and the whole key text.
  std::optional<Hit> lookup(const Identity&, const std::optional<Toolchain>&);

  // What lookup() would give, for whoever only wants to know: nothing is stamped or set aside.
  std::optional<Hit> peek(const Identity&, const std::optional<Toolchain>&);

  // Tells that a hit cannot be used after all, and why; sets it aside in the writable root.
  void reject(const Identity&, const Hit& hit, const std::string& reason);

  // Counts in the writable root's statistics, where there is one and it can be written.
  void count(CacheEvent event, double compile_ms);

  // Temporary file beside the target, fsync, rename, directory fsync; then keeps the root within
  // its bound. False (and one warning) when it could not be published; the caller keeps using its
  // bytes.
  bool publish(const Entry&);

  // Held while one process compiles a key. An owner that has not finished after lock_timeout is
  // taken for stopped, and exactly one of those who wait gets the lock in its place. Where no lock
  // can be had it is empty: the caller compiles anyway. Released by the destructor and by the death
  // of the process. Look up again once it is held: the previous holder has usually just published.
  class Lock {
   public:
    Lock();
    Lock(Lock&&) noexcept;
    Lock& operator=(Lock&&) noexcept;
    ~Lock();
    bool held() const { return lock_ != nullptr; }

   private:
    friend class Store;
    explicit Lock(std::unique_ptr<HeldLock> lock);
    std::unique_ptr<HeldLock> lock_;
  };
  Lock lock(const Identity&, const Toolchain&);

  // Every entry of every root, by root and file name. Only the heads are read and verified, so that
  // neither time nor memory depends on the size of the kernels.
  std::vector<Listing> list();
  // All of a listed entry, verified as lookup() does it, or its file byte for byte; the reason
  // where it does not verify.
  tl::expected<Entry, std::string> read(const Listing& listing);
  tl::expected<std::vector<std::uint8_t>, std::string> read_bytes(const Listing& listing);
  const StoreOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The default writable root from the given environment values: cache_dir (OCTILE_CACHE_DIR), else
// xdg_cache_home/octile, else home/.cache/octile; empty where none is set. A relative
// xdg_cache_home or home counts as unset (XDG Base Directory Specification, "Environment
// variables").
std::string default_root(std::string_view cache_dir, std::string_view xdg_cache_home,
                         std::string_view home);

}  // namespace octile::cache
