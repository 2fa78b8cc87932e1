// One root folder: reading, publishing, listing and locking by file name. Knows nothing of what is
// in an entry. Every call opens the folders anew from the root's path, so a root that vanishes,
// returns or is mounted over is seen as it is now.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/file_name.h"
#include "cache/file_ops.h"

namespace octile::cache {

// A lock file held locked. Released, and the file removed, by the destructor; the kernel releases
// it when the process dies.
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
  ~HeldLock() { ops_->unlink_at(folder_.fd(), name_); }

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

  // ENOENT where there is no such entry, whichever part of the path is missing.
  IoResult<std::vector<std::uint8_t>> read(const FileStem& stem, std::size_t max_bytes) const;

  // Temporary file, fsync, rename, directory fsync; creates missing folders (0700). Also removes
  // files in the entry's folder that a process which died left behind more than an hour ago.
  IoResult<void> publish(const FileStem& stem, std::span<const std::uint8_t> bytes) const;

  // The entries of one folder ("3f"), or the folders of the root that exist; sorted. A part of the
  // path that is missing is an empty answer.
  IoResult<std::vector<FileStem>> entries(const std::string& folder) const;
  IoResult<std::vector<std::string>> folders() const;

  enum class Missing { kFail, kCreate };
  // The root's own folder. kFail: ENOENT where it does not exist.
  IoResult<OpenFile> open(Missing missing) const;

  // ENOENT where the root's own folder does not exist.
  IoResult<void> check() const;

  // nullptr where another holder kept the lock until the time was up.
  IoResult<std::unique_ptr<HeldLock>> lock(const FileStem& stem,
                                           std::chrono::milliseconds timeout) const;

 private:
  IoResult<OpenFile> open_version(Missing missing) const;
  IoResult<OpenFile> open_folder(const std::string& folder, Missing missing) const;
  IoResult<OpenFile> open_below(const OpenFile& parent, const std::string& name,
                                const std::string& path, Missing missing) const;
  IoResult<void> create_root() const;
  IoResult<void> publish_in(const OpenFile& folder, const FileStem& stem,
                            std::span<const std::uint8_t> bytes) const;
  void remove_abandoned(const OpenFile& folder) const;
  IoResult<std::vector<std::string>> list(const OpenFile& folder, const std::string& path) const;
  IoResult<OpenFile> open_lock(const OpenFile& folder, const std::string& name) const;
  IoResult<bool> is_still(const OpenFile& folder, const std::string& name,
                          const OpenFile& file) const;
  std::string folder_path(const std::string& folder) const;

  std::string path_;
  bool writable_;
  std::shared_ptr<FileOps> ops_;
};

}  // namespace octile::cache
