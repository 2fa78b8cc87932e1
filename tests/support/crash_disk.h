// The states of the files that the cache was writing after a crash. A Recorder notes every change
// that goes through FileOps. for_each_crash() then gives every state of the disk that a loss of
// power allows after each of the changes:
//
//   a name that was made, renamed or removed   is durable once its folder was flushed; until then
//                                              each such change may be lost, independently of the
//                                              others
//   bytes that were written                    are durable once their file was flushed; until then
//                                              they are there, missing, torn, zeros, or the last
//                                              ones alone
//
// A journal orders names more strictly than that, and ext4 flushes the name of a new file with it.
// POSIX promises neither.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cache/file_ops.h"

namespace octile::cache::testing {

// Folders and files by their path below the disk's folder.
struct Tree {
  std::set<std::string> folders;
  std::map<std::string, std::vector<std::uint8_t>> files;
};

struct DiskChange {
  enum class Kind { kMakeFolder, kCreate, kWrite, kFlush, kRename, kRemove };
  Kind kind = Kind::kFlush;
  int node = 0;      // number of the file or folder that is changed; 0 is the disk's own folder
  int folder = -1;   // that has the name; -1 if the change is of no name
  std::string name;  // of a renamed file: the old one
  std::string new_name;
  std::size_t offset = 0;  // of the bytes
  std::vector<std::uint8_t> bytes;
};

struct Recording {
  struct Item {
    int folder = 0;
    std::string name;
    bool is_folder = false;
    std::vector<std::uint8_t> bytes;
  };
  std::vector<Item> before;  // node n is before[n - 1]; durable
  std::vector<DiskChange> changes;
  std::vector<std::size_t>
      promises;  // numbers of changes after which a call had promised something
};

// Does what FileOps does below one folder and notes it. Files that are there at first count as
// durable.
class Recorder : public FileOps {
 public:
  explicit Recorder(const std::string& disk);

  // From here on, every crash has to leave what the calls before have done.
  void promise() { recording_.promises.push_back(recording_.changes.size()); }
  const Recording& recording() const { return recording_; }
  // One line for each change: "create root/v1/3f/a.octile.0123.tmp", without random digits.
  std::vector<std::string> text() const;

  int open_at(int dir_fd, const std::string& name, int flags, mode_t mode) override;
  ssize_t write(int fd, std::span<const std::uint8_t> bytes) override;
  int fsync(int fd) override;  // only notes it
  int close(int fd) override;
  int rename_at(int dir_fd, const std::string& from, const std::string& to) override;
  int unlink_at(int dir_fd, const std::string& name) override;
  int mkdir_at(int dir_fd, const std::string& name, mode_t mode) override;

 private:
  struct Place {
    int folder = -1;  // -1: not on the disk
    std::string name;
  };
  Place place_of(int dir_fd, const std::string& name) const;
  int node_at(const Place& place) const;  // -1 if there is none
  int add_node(const Place& place);
  void add_below(int folder, const std::string& path);
  void note(DiskChange change) { recording_.changes.push_back(std::move(change)); }
  void note_bytes_of_others(int fd, int node);

  std::string disk_;
  Recording recording_;
  std::vector<std::map<std::string, int>> names_{1};  // of each folder, now
  std::vector<std::string> paths_{""};                // of each node, when it was made
  std::map<int, int> opened_;                         // node of each descriptor
  std::map<int, std::size_t> sizes_;                  // of each file, as noted
};

// Calls `visit` for each different state, with the number of promises made before the crash.
void for_each_crash(const Recording& recording,
                    const std::function<void(const Tree& disk, int promises)>& visit);

// Returns "" if the disk in this folder is as a crash may leave it, else what is wrong with it.
using CrashCheck = std::function<std::string(const std::string& disk, int promises)>;

// Both check every state on a real filesystem. They return "", or what was wrong with the first few
// states. `states`, if given, receives how many there were.
std::string check_crashes(const Recording& recording, const CrashCheck& check,
                          int* states = nullptr);
// On overlays whose lower layer has what was there before: a change of it is copied up, a removal
// leaves a whiteout. Returns "no right to mount" if none can be mounted.
std::string check_crashes_on_overlay(const Recording& recording, const CrashCheck& check);

}  // namespace octile::cache::testing
