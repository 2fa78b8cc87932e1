// Entries on disk under one writable root and any number of read-only ones. The cache is advisory:
// a failure here is a miss plus one warning and never fails a call. eviction.h has the default size
// limit (kDefaultMaxBytes).
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
  std::string writable_root;  // empty: no writable root
  std::vector<std::string> read_only_roots;
  bool strict = false;  // never match an entry of another or an unknown toolchain
  // Time limit for each owner of the lock; see Root::lock()
  std::chrono::milliseconds lock_timeout{30000};
  SizeBound::Options bound;           // size limit of the writable root
  Log log;                            // may be called from any thread that calls the store
  std::shared_ptr<FileOps> file_ops;  // null: the system's; tests inject faults here
};

struct Hit {
  Entry entry;
  std::string path;
  bool exact_toolchain = false;
};

// Why a listed entry cannot be given.
struct EntryError {
  std::string sentence;
  // The file or memory could not be had, which says nothing about the entry. Otherwise it is
  // refused: its bytes are damaged or of another kernel or version, or others may write the file.
  bool unread = false;
};

struct Listing {
  std::string path;
  FileStem stem;
  std::int64_t bytes = 0;
  bool writable_root = false;
  std::size_t root = 0;  // index in the order of lookup
  tl::expected<Head, EntryError> head;
  bool other_version = false;  // true if the head is refused for another format version
};

// A root or folder whose entries could not be listed.
struct UnreadPart {
  std::string sentence;
  bool writable_root = false;
};

// May be used by several threads at once.
class Store {
 public:
  explicit Store(StoreOptions options);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Returns the entry of exactly this toolchain from the first root that has it, read-only roots
  // first. If there is none and `strict` is false, returns the newest entry by date of the
  // read-only roots, of any toolchain. An empty toolchain means that this host has no compiler:
  // then returns the newest entry of all roots, or nothing if `strict`. Verifies the entry with
  // every check of deserialize() and compares the whole key text.
  std::optional<Hit> lookup(const Identity&, const std::optional<Toolchain>&);

  // Returns what lookup() would return, without stamping or setting aside any entry.
  std::optional<Hit> peek(const Identity&, const std::optional<Toolchain>&);

  // Reports why a hit turned out to be unusable. Sets the entry aside if it is in the writable
  // root; lookups of this store pass over one in another root.
  void reject(const Identity&, const Hit& hit, const std::string& reason);

  // Reports why an entry cannot be used here, though it matches its description: this machine's
  // driver refuses it. Lookups of this store pass over the file until it is published anew. It
  // stays, because another machine may use it.
  void pass_over(const std::string& path, const std::string& reason);

  // Counts an event in the writable root's statistics, if there is a writable root and it can be
  // written.
  void count(CacheEvent event, double compile_ms);

  // Writes a temporary file beside the target, calls fsync, renames it and calls fsync on the
  // folder. Then keeps the root within its size limit. Returns false, after one warning, if the
  // entry could not be published; the caller continues with its own bytes.
  bool publish(const Entry&);

  // Held while one process compiles a key. An owner that has not finished after lock_timeout counts
  // as stopped, and exactly one waiter gets the lock in its place. If no lock can be had, held() is
  // false and the caller compiles anyway. The destructor and the death of the process release the
  // lock. The holder should look up again, because the previous holder has usually just published
  // the entry.
  class Lock {
   public:
    Lock();
    Lock(Lock&&) noexcept;
    Lock& operator=(Lock&&) noexcept;
    ~Lock();
    bool held() const { return lock_ != nullptr; }

   private:
    friend class Store;
    explicit Lock(std::unique_ptr<EntryLock> lock);
    std::unique_ptr<EntryLock> lock_;
  };
  Lock lock(const Identity&, const Toolchain&);

  // Returns every entry of every root, by root and file name. Reads and verifies only the heads, so
  // time and memory do not depend on the size of the kernels. `unread`, if given, receives each
  // root or folder that could not be read: its entries are missing from the result. A writable root
  // that does not exist yet has no entries.
  std::vector<Listing> list(std::vector<UnreadPart>* unread = nullptr);
  // Return a listed entry in full, verified as in lookup(), or its file byte for byte.
  tl::expected<Entry, EntryError> read(const Listing& listing);
  tl::expected<std::vector<std::uint8_t>, EntryError> read_bytes(const Listing& listing);
  const StoreOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns the path of a writable root with the number of this process's user for each "{user}". So
// one value serves every user of a folder in which each may make one.
std::string root_for_this_user(std::string_view path);

// Returns the default writable root for the given values of environment variables: cache_dir
// (OCTILE_CACHE_DIR, see above), else xdg_cache_home/octile, else home/.cache/octile. The result is
// empty if none is set. A relative xdg_cache_home or home counts as unset (XDG Base Directory
// Specification, "Environment variables").
std::string default_root(std::string_view cache_dir, std::string_view xdg_cache_home,
                         std::string_view home);

}  // namespace octile::cache
