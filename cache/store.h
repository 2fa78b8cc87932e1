// Entries on disk under one writable root and any number of read-only ones. Advisory: nothing that
// happens here fails a call; what goes wrong is a miss plus one warning.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/entry.h"

namespace octile::cache {

enum class Severity { kDebug, kInfo, kWarning };
using Log = std::function<void(Severity, const std::string&)>;

struct StoreOptions {
  std::string writable_root;               // empty: none
  std::vector<std::string> read_only_roots;
  bool strict = false;                     // read-only roots must match the toolchain too
  std::chrono::milliseconds lock_timeout{30000};
  Log log;
};

struct Hit {
  Entry entry;
  std::string path;
  bool exact_toolchain = false;
};

struct Listing {
  std::string path;
  std::int64_t bytes = 0;
  bool writable_root = false;
  tl::expected<Entry, std::string> entry;  // the reason where it does not verify
};

class Store {
 public:
  explicit Store(StoreOptions options);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // toolchain empty: this host has no compiler; any toolchain matches, newest first. Read-only roots
  // match without the toolchain unless `strict`. Verified before it is returned: checksum, key text.
  std::optional<Hit> lookup(const Identity&, const std::optional<Toolchain>&);

  // Temporary file beside the target, fsync, rename, directory fsync. False (and one warning) when it
  // could not be published; the caller keeps using its bytes.
  bool publish(const Entry&);

  // Held while one process compiles a key. Waits at most lock_timeout, then gives an empty lock: the
  // caller compiles anyway. Released by the destructor and by the death of the process.
  class Lock {
   public:
    Lock() = default;
    Lock(Lock&&) noexcept;
    Lock& operator=(Lock&&) noexcept;
    ~Lock();
    bool held() const { return fd_ >= 0; }

   private:
    friend class Store;
    explicit Lock(int fd) : fd_(fd) {}
    int fd_ = -1;
  };
  Lock lock(const Identity&, const Toolchain&);

  std::vector<Listing> list();
  const StoreOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The default writable root from the given environment values: cache_dir (OCTILE_CACHE_DIR), else
// xdg_cache_home/octile, else home/.cache/octile; empty where none is set.
std::string default_root(std::string_view cache_dir, std::string_view xdg_cache_home,
                         std::string_view home);

}  // namespace octile::cache
