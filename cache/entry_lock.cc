#include "cache/entry_lock.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "cache/root.h"

namespace octile::cache {
namespace {

// A holder of a folder's lock makes only three system calls.
constexpr std::chrono::milliseconds kTakeoverPatience{1000};

}  // namespace

// Composes no error sentence: a destructor must not run out of memory.
EntryLock::~EntryLock() {
  struct stat opened = {};
  struct stat named = {};
  if (retry_interrupted([&] { return ops_->stat_fd(file_.fd(), opened); }) >= 0 &&
      retry_interrupted([&] { return ops_->stat_at(folder_.fd(), name_, named); }) >= 0 &&
      same_file(opened, named)) {
    ops_->unlink_at(folder_.fd(), name_);
  }
}

IoResult<OpenFile> Root::open_lock(const OpenFile& folder, const std::string& name) const {
  // Opened for writing, because over NFS an exclusive flock() is a write lock and requires it.
  const std::string path = folder_path(name.substr(0, 2)) + "/" + name;
  return open_regular(*ops_, folder.fd(), name, O_RDWR | O_CREAT, 0600, path,
                      unwritable_by_others(path));
}

// Removes the lock file of an owner that counts as stopped, so that the first waiter to come can
// lock a new file. The folder's own lock lets only one waiter at a time compare and remove.
// Otherwise a late waiter could remove the file of the waiter that just took over. Returns false if
// the folder cannot be locked.
bool Root::take_over(const FileStem& stem, const struct stat& stalled) const {
  const auto folder = open_folder(stem.folder(), Missing::kFail);
  if (!folder) return false;
  const auto deadline = std::chrono::steady_clock::now() + kTakeoverPatience;
  for (;;) {
    const int locked = retry_interrupted([&] { return ops_->try_lock(folder->fd()); });
    if (locked >= 0) break;
    if (locked != -EWOULDBLOCK || std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  struct stat now = {};
  const int result = ops_->stat_at(folder->fd(), stem.lock_name(), now);
  if (result == -ENOENT) return true;
  if (result < 0) return false;
  return !same_state(now, stalled) || ops_->unlink_at(folder->fd(), stem.lock_name()) >= 0;
}

IoResult<std::unique_ptr<EntryLock>> Root::lock(const FileStem& stem,
                                                std::chrono::milliseconds timeout) const {
  using std::chrono::milliseconds;
  constexpr milliseconds kLongestPause{20};  // a cold compile takes 100 ms or more
  const auto begin = std::chrono::steady_clock::now();
  auto folder = open_folder(stem.folder(), Missing::kCreate);
  if (!folder) return tl::unexpected(folder.error());
  const std::string name = stem.lock_name();
  const std::string path = folder_path(stem.folder()) + "/" + name;

  struct stat owned = {};  // the file whose owner this call waits for
  auto owned_since = begin;
  for (milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
    auto file = open_lock(*folder, name);
    if (!file) return tl::unexpected(file.error());
    const int locked = retry_interrupted([&] { return ops_->try_lock(file->fd()); });
    if (locked >= 0) {
      const auto still = is_still(*ops_, *folder, name, *file, path);
      if (!still) return tl::unexpected(still.error());
      if (*still) {
        return std::make_unique<EntryLock>(ops_, std::move(*folder), name, std::move(*file));
      }
    } else if (locked != -EWOULDBLOCK) {
      return io_failure("lock", path, locked);
    }
    const auto now = std::chrono::steady_clock::now();
    struct stat opened = {};
    if (const int result = ops_->stat_fd(file->fd(), opened); result < 0) {
      return io_failure("stat", path, result);
    }
    if (!same_state(opened, owned)) {  // compares times too: a new file may reuse an old inode
      owned = opened;
      owned_since = now;
    }
    if (now - begin >= kMostTakeovers * timeout) return std::unique_ptr<EntryLock>();
    if (now - owned_since >= timeout && !take_over(stem, owned))
      return std::unique_ptr<EntryLock>();
    std::this_thread::sleep_for(std::min<std::chrono::steady_clock::duration>(pause, timeout));
  }
}

}  // namespace octile::cache
