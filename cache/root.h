// One root folder: reading, publishing, listing and locking by file name. Knows nothing of what is
// in an entry. Every call opens the folders anew from the root's path, so a root that vanishes,
// returns or is mounted over is seen as it is now.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/file_name.h"
#include "cache/file_ops.h"

namespace octile::cache {

// A lock file held locked. Released, and the file removed, by the destructor; the kernel releases
// it when the process dies. A waiter that took the lock over has put another file under the name,
// which then stays.
class HeldLock {
 public:
  HeldLock(std::shared_ptr<FileOps> ops, OpenFile folder, std::string name, OpenFile file)
      : ops_(std::move(ops)),
        folder_(std::move(folder)),
        name_(std::move(name)),
        file_(std::move(file)) {}
  HeldLock(const HeldLock&) = delete;
  HeldLock& operator=(const HeldLock&) = delete;
  // Removed while still locked, so nobody can hold a lock on the removed file and believe in it: a
  // waiter compares what it locked with what the name now stands for.
  ~HeldLock();

 private:
  std::shared_ptr<FileOps> ops_;  // first: the files below are closed through it
  OpenFile folder_;
  std::string name_;
  OpenFile file_;
};

class Root {
 public:
  Root(const std::string& path, bool writable, std::shared_ptr<FileOps> ops);

  const std::string& path() const { return path_; }
  bool writable() const { return writable_; }
  std::string path_of(const FileStem& stem) const;  // of its entry

  // ENOENT where there is no such entry, whichever part of the path is missing. EPERM where another
  // unprivileged user could write the root or a folder; code 0 where they could write the entry.
  // `status`, where given, becomes that of the file.
  IoResult<std::vector<std::uint8_t>> read(const FileStem& stem, std::size_t max_bytes,
                                           struct stat* status = nullptr) const;

  // Sets the entry's stamp of last use to now. A failure is of no consequence.
  void touch(const FileStem& stem) const;

  // Takes an entry that `read` gave with this status out of the way, for a person to look at: it
  // gets the name of a damaged file. A folder keeps kMostDamaged of them; what is more is removed.
  // An entry that was published meanwhile stays.
  void set_aside(const FileStem& stem, const struct stat& status) const;

  // Temporary file, fsync, rename, directory fsync; creates missing folders (0700). Also removes
  // files in the entry's folder that a process which died left behind more than an hour ago.
  IoResult<void> publish(const FileStem& stem, std::span<const std::uint8_t> bytes) const;

  // The first `most_bytes` of every entry of a folder, each read under the rules of read().
  struct Beginning {
    FileStem stem;
    std::int64_t file_bytes = 0;
    IoResult<std::vector<std::uint8_t>> bytes;
  };
  IoResult<std::vector<Beginning>> beginnings(const std::string& folder,
                                              std::size_t most_bytes) const;

  // The entries of one folder ("3f"), or the folders of the root that exist; sorted. A part of the
  // path that is missing is an empty answer.
  IoResult<std::vector<FileStem>> entries(const std::string& folder) const;
  IoResult<std::vector<std::string>> folders() const;

  // An entry's name, size and times.
  struct Item {
    FileStem stem;
    struct stat status = {};
  };
  // The regular files among the entries of one folder, in the folder's order; no folder, no item.
  IoResult<std::vector<Item>> items(const std::string& folder) const;

  // Whether the entry is gone afterwards; one whose file or stamp is not `seen` any more stays.
  bool remove(const FileStem& stem, const struct stat& seen) const;

  // Removes from a folder what dead processes left more than an hour ago and entries that were set
  // aside more than a week ago.
  void tidy(const std::string& folder) const;

  enum class Missing { kFail, kCreate };
  // The root's own folder. kFail: ENOENT where it does not exist.
  IoResult<OpenFile> open(Missing missing) const;

  // A folder of the root itself. Folders are opened under the rules of read().
  IoResult<OpenFile> open_in_root(const std::string& name, Missing missing) const;
  // The folder of this version of the layout: "v1".
  IoResult<OpenFile> open_version(Missing missing) const;

  // ENOENT where the root's own folder does not exist.
  IoResult<void> check() const;

  // Waits for each owner at most `timeout`: then that owner counts as stopped and exactly one of
  // those who wait takes the lock over, and the others wait for that one. nullptr where even that
  // did not help within kMostTakeovers time-outs, where the timeout is 0 and somebody has the lock,
  // and where a lock that is to be taken over cannot be.
  static constexpr int kMostTakeovers = 4;
  IoResult<std::unique_ptr<HeldLock>> lock(const FileStem& stem,
                                           std::chrono::milliseconds timeout) const;

 private:
  IoResult<OpenFile> open_folder(const std::string& folder, Missing missing) const;
  IoResult<OpenFile> open_below(const OpenFile& parent, const std::string& name,
                                const std::string& path, Missing missing) const;
  IoResult<void> create_root() const;
  IoResult<void> publish_in(const OpenFile& folder, const FileStem& stem,
                            std::span<const std::uint8_t> bytes) const;
  IoResult<void> check_trusted(const OpenFile& file, const std::string& path) const;
  void remove_abandoned(const OpenFile& folder) const;
  bool take_over(const FileStem& stem, const struct stat& stalled) const;
  IoResult<std::vector<std::string>> list(const OpenFile& folder, const std::string& path) const;
  // Sorted by file name; no folder, no entry.
  IoResult<void> for_each_entry(
      const std::string& folder,
      const std::function<void(const OpenFile& opened, FileStem stem)>& visit) const;
  IoResult<OpenFile> open_lock(const OpenFile& folder, const std::string& name) const;
  std::string folder_path(const std::string& folder) const;

  std::string path_;
  bool writable_;
  std::shared_ptr<FileOps> ops_;
};

}  // namespace octile::cache
