// One root folder: reads, publishes, lists and locks entries by file name without knowing their
// content. Every call opens the folders anew from the root's path, so it sees a root that vanished,
// returned or was mounted over.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/entry_lock.h"
#include "cache/file_name.h"
#include "cache/file_ops.h"

namespace octile::cache {

// The part of a writable root's path that stands for the number of the user.
constexpr std::string_view kUserInPath = "{user}";

class Root {
 public:
  Root(const std::string& path, bool writable, std::shared_ptr<FileOps> ops);

  const std::string& path() const { return path_; }
  bool writable() const { return writable_; }
  std::string path_of(const FileStem& stem) const;  // path of the entry

  // Returns the content of an entry. The error is ENOENT if any part of the path is missing. It is
  // EPERM if another unprivileged user may write the root or a folder, and code 0 if such a user
  // may write the entry. `status`, if given, receives the file's status.
  IoResult<std::vector<std::uint8_t>> read(const FileStem& stem, std::size_t max_bytes,
                                           struct stat* status = nullptr) const;

  // Sets the entry's stamp of last use to now. Failures are ignored.
  void touch(const FileStem& stem) const;

  // Renames an entry that `read` returned with this status to the name of a damaged file, for a
  // person to inspect. A folder keeps at most kMostDamaged such files; further ones are removed. If
  // the file was rewritten or another entry published since, it stays.
  void set_aside(const FileStem& stem, const struct stat& status) const;

  // Writes a temporary file, calls fsync, renames it and calls fsync on the folder. Creates missing
  // folders with mode 0700, and calls fsync on the folder above each. Also removes files that dead
  // processes left in the entry's folder more than an hour ago.
  IoResult<void> publish(const FileStem& stem, std::span<const std::uint8_t> bytes) const;

  // Returns the first `most_bytes` of every entry of a folder, each under the rules of read().
  struct Beginning {
    FileStem stem;
    std::int64_t file_bytes = 0;
    IoResult<std::vector<std::uint8_t>> bytes;
  };
  IoResult<std::vector<Beginning>> beginnings(const std::string& folder,
                                              std::size_t most_bytes) const;

  // Return the entries of one folder ("3f"), or the root's existing folders, in sorted order. If a
  // part of the path is missing, the result is empty.
  IoResult<std::vector<FileStem>> entries(const std::string& folder) const;
  IoResult<std::vector<std::string>> folders() const;

  // An entry's name and its file's status: size and times.
  struct Item {
    FileStem stem;
    struct stat status = {};
  };
  // Returns the entries of one folder that are regular files, sorted by name. If there is no
  // folder, the result is empty.
  IoResult<std::vector<Item>> items(const std::string& folder) const;

  // Removes the entry unless its file or stamp differs from `seen`, which means that it was used or
  // replaced since: then returns false. Returns true if the entry no longer exists.
  IoResult<bool> remove(const FileStem& stem, const struct stat& seen) const;

  // Removes files that dead processes left in a folder more than an hour ago, and entries that were
  // set aside more than a week ago.
  void tidy(const std::string& folder) const;

  enum class Missing { kFail, kCreate };
  // Opens the root's own folder. kFail: the error is ENOENT if it does not exist.
  IoResult<OpenFile> open(Missing missing) const;

  // Opens a folder directly below the root under the rules of read().
  IoResult<OpenFile> open_in_root(const std::string& name, Missing missing) const;
  // Opens the folder of this version of the layout: "v1".
  IoResult<OpenFile> open_version(Missing missing) const;

  // Returns the error of opening the root's own folder: ENOENT if it does not exist.
  IoResult<void> check() const;

  // Locks the entry's name. Waits at most `timeout` for each owner; after that the owner counts as
  // stopped. Exactly one waiter then takes the lock over, and the others wait for that one. Returns
  // nullptr after kMostTakeovers time-outs without success, and if the timeout is 0 and the lock is
  // taken. Also returns nullptr if the lock of a stopped owner cannot be taken over.
  static constexpr int kMostTakeovers = 4;
  IoResult<std::unique_ptr<EntryLock>> lock(const FileStem& stem,
                                            std::chrono::milliseconds timeout) const;

 private:
  IoResult<OpenFile> open_folder(const std::string& folder, Missing missing) const;
  IoResult<OpenFile> open_below(const OpenFile& parent, const std::string& name,
                                const std::string& path, Missing missing) const;
  IoResult<void> create_root() const;
  IoResult<void> flush_above(const std::string& made) const;
  IoResult<void> publish_in(const OpenFile& folder, const FileStem& stem,
                            std::span<const std::uint8_t> bytes) const;
  IoResult<void> check_trusted(const OpenFile& file, const std::string& path) const;
  void remove_abandoned(const OpenFile& folder) const;
  bool take_over(const FileStem& stem, const struct stat& stalled) const;
  IoResult<std::vector<std::string>> list(const OpenFile& folder, const std::string& path) const;
  // Visits the entries in the order of their file names. If there is no folder, visits nothing.
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
