#include "tests/support/crash_disk.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <regex>
#include <stdexcept>

#include "tests/support/cache_disks.h"

namespace octile::cache::testing {
namespace {

using Kind = DiskChange::Kind;

bool is_of_a_name(const DiskChange& change) { return change.folder >= 0; }

std::size_t size_of(int fd) {
  struct stat status = {};
  return ::fstat(fd, &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
}

// A write moves at most this many bytes, so that an entry and a long record take several.
constexpr std::size_t kMostBytes = 512;

}  // namespace

// --- recording ---

Recorder::Recorder(const std::string& disk) : disk_(absolute_path(disk)) { add_below(0, disk_); }

void Recorder::add_below(int folder, const std::string& path) {
  std::vector<fs::directory_entry> entries;
  for (const auto& entry : fs::directory_iterator(path)) entries.push_back(entry);
  std::ranges::sort(entries);
  for (const auto& entry : entries) {
    Recording::Item item{folder, entry.path().filename(), entry.is_directory(), {}};
    if (!item.is_folder) item.bytes = read_bytes(entry.path());
    const int node = add_node({folder, item.name});
    sizes_[node] = item.bytes.size();
    recording_.before.push_back(std::move(item));
    if (entry.is_directory()) add_below(node, entry.path());
  }
}

Recorder::Place Recorder::place_of(int dir_fd, const std::string& name) const {
  if (dir_fd != AT_FDCWD) {
    const auto opened = opened_.find(dir_fd);
    return {opened == opened_.end() ? -1 : opened->second, name};
  }
  if (!name.starts_with(disk_ + "/")) return {};
  Place place{0, ""};
  for (const fs::path& part : fs::path(name.substr(disk_.size() + 1))) {
    if (!place.name.empty()) place.folder = node_at(place);
    if (place.folder < 0) return {};
    place.name = part;
  }
  return place;
}

int Recorder::node_at(const Place& place) const {
  if (place.folder < 0) return -1;
  const auto& names = names_[static_cast<std::size_t>(place.folder)];
  const auto found = names.find(place.name);
  return found == names.end() ? -1 : found->second;
}

int Recorder::add_node(const Place& place) {
  const int node = static_cast<int>(names_.size());
  names_.emplace_back();
  paths_.push_back(paths_[static_cast<std::size_t>(place.folder)] + "/" + place.name);
  names_[static_cast<std::size_t>(place.folder)][place.name] = node;
  return node;
}

int Recorder::open_at(int dir_fd, const std::string& name, int flags, mode_t mode) {
  const int fd = FileOps::open_at(dir_fd, name, flags, mode);
  if (fd < 0) return fd;
  if (dir_fd == AT_FDCWD && name == disk_) {
    opened_[fd] = 0;
    return fd;
  }
  const Place place = place_of(dir_fd, name);
  if (place.folder < 0) return fd;
  int node = node_at(place);
  if (node < 0 && (flags & O_CREAT) != 0) {
    node = add_node(place);
    note({Kind::kCreate, node, place.folder, place.name, {}, 0, {}});
  }
  if (node < 0) throw std::runtime_error("the recorder does not know " + name);
  opened_[fd] = node;
  return fd;
}

ssize_t Recorder::write(int fd, std::span<const std::uint8_t> bytes) {
  const bool appends = (::fcntl(fd, F_GETFL) & O_APPEND) != 0;
  const auto offset = appends ? size_of(fd) : static_cast<std::size_t>(::lseek(fd, 0, SEEK_CUR));
  const ssize_t written = FileOps::write(fd, bytes.first(std::min(bytes.size(), kMostBytes)));
  const auto opened = opened_.find(fd);
  if (written <= 0 || opened == opened_.end()) return written;
  const auto kept = bytes.first(static_cast<std::size_t>(written));
  note({Kind::kWrite, opened->second, -1, {}, {}, offset, {kept.begin(), kept.end()}});
  std::size_t& size = sizes_[opened->second];
  size = std::max(size, offset + kept.size());
  return written;
}

// libarchive writes to a descriptor by itself. Its writes are seen when the file is flushed.
void Recorder::note_bytes_of_others(int fd, int node) {
  const std::size_t size = size_of(fd);
  std::size_t& known = sizes_[node];
  if (size <= known) return;
  auto bytes = read_bytes("/proc/self/fd/" + std::to_string(fd));
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(known));
  note({Kind::kWrite, node, -1, {}, {}, known, std::move(bytes)});
  known = size;
}

int Recorder::fsync(int fd) {
  const auto opened = opened_.find(fd);
  if (opened == opened_.end()) return 0;
  struct stat status = {};
  if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode))
    note_bytes_of_others(fd, opened->second);
  note({Kind::kFlush, opened->second, -1, {}, {}, 0, {}});
  return 0;
}

int Recorder::close(int fd) {
  opened_.erase(fd);
  return FileOps::close(fd);
}

int Recorder::rename_at(int dir_fd, const std::string& from, const std::string& to) {
  const int result = FileOps::rename_at(dir_fd, from, to);
  const Place place = place_of(dir_fd, from);
  const int node = node_at(place);
  if (result < 0 || node < 0) return result;
  auto& names = names_[static_cast<std::size_t>(place.folder)];
  names.erase(from);
  names[to] = node;
  note({Kind::kRename, node, place.folder, from, to, 0, {}});
  return result;
}

int Recorder::unlink_at(int dir_fd, const std::string& name) {
  const int result = FileOps::unlink_at(dir_fd, name);
  const Place place = place_of(dir_fd, name);
  const int node = node_at(place);
  if (result < 0 || node < 0) return result;
  names_[static_cast<std::size_t>(place.folder)].erase(place.name);
  note({Kind::kRemove, node, place.folder, place.name, {}, 0, {}});
  return result;
}

int Recorder::mkdir_at(int dir_fd, const std::string& name, mode_t mode) {
  const int result = FileOps::mkdir_at(dir_fd, name, mode);
  const Place place = place_of(dir_fd, name);
  if (result < 0 || place.folder < 0) return result;
  note({Kind::kMakeFolder, add_node(place), place.folder, place.name, {}, 0, {}});
  return result;
}

std::vector<std::string> Recorder::text() const {
  static const std::regex random("\\.[0-9a-f]{16}\\.tmp");
  std::vector<std::string> lines;
  for (const DiskChange& change : recording_.changes) {
    constexpr const char* kVerbs[] = {"make", "create", "write", "flush", "rename", "remove"};
    const std::string& path = paths_[static_cast<std::size_t>(change.node)];
    std::string line = std::string(kVerbs[static_cast<int>(change.kind)]) + " " +
                       (path.empty() ? "." : path.substr(1));
    if (change.kind == Kind::kRename) line += " to " + change.new_name;
    lines.push_back(std::regex_replace(line, random, ".<u>.tmp"));
  }
  return lines;
}

// --- what a crash leaves ---

namespace {

// The fate of bytes that were written and not flushed.
enum class Fate { kKept, kMissing, kTorn, kZeros, kLastOnly };
constexpr Fate kFates[] = {Fate::kKept, Fate::kMissing, Fate::kTorn, Fate::kZeros, Fate::kLastOnly};

void put(std::vector<std::uint8_t>& file, std::size_t offset, std::span<const std::uint8_t> bytes) {
  file.resize(std::max(file.size(), offset + bytes.size()));
  std::ranges::copy(bytes, file.begin() + static_cast<std::ptrdiff_t>(offset));
}

// One crash: after `count` changes, of which those of names in `lost` did not reach the disk.
class Crash {
 public:
  Crash(const Recording& recording, std::size_t count) : recording_(recording), count_(count) {
    for (std::size_t i = 0; i < count; ++i) {
      const DiskChange& change = recording.changes[i];
      if (change.kind == Kind::kFlush) flushed_[change.node] = i;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const DiskChange& change = recording.changes[i];
      if (is_of_a_name(change) && !is_flushed(change.folder, i)) pending_.push_back(i);
    }
  }

  std::size_t pending() const { return pending_.size(); }

  Tree tree(std::uint64_t lost, Fate fate) const {
    std::map<int, std::map<std::string, int>> names;
    for (std::size_t i = 0; i < recording_.before.size(); ++i) {
      const Recording::Item& item = recording_.before[i];
      names[item.folder][item.name] = static_cast<int>(i) + 1;
    }
    std::size_t bit = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      const DiskChange& change = recording_.changes[i];
      if (!is_of_a_name(change)) continue;
      const bool is_pending = bit < pending_.size() && pending_[bit] == i;
      if (is_pending && (lost >> bit++ & 1) != 0) continue;
      apply(change, names[change.folder]);
    }
    Tree result;
    add(names, 0, "", fate, result);
    return result;
  }

 private:
  bool is_flushed(int node, std::size_t change) const {
    const auto last = flushed_.find(node);
    return last != flushed_.end() && last->second > change;
  }

  static void apply(const DiskChange& change, std::map<std::string, int>& names) {
    const auto old = names.find(change.name);
    if (old != names.end() && old->second == change.node) names.erase(old);
    if (change.kind == Kind::kMakeFolder || change.kind == Kind::kCreate)
      names[change.name] = change.node;
    if (change.kind == Kind::kRename) names[change.new_name] = change.node;
  }

  bool is_folder(int node) const {
    if (node == 0) return true;
    const auto at = static_cast<std::size_t>(node) - 1;
    if (at < recording_.before.size()) return recording_.before[at].is_folder;
    return std::ranges::any_of(recording_.changes, [&](const DiskChange& change) {
      return change.kind == Kind::kMakeFolder && change.node == node;
    });
  }

  std::vector<std::uint8_t> content(int node, Fate fate) const {
    std::vector<std::uint8_t> bytes;
    const auto at = static_cast<std::size_t>(node) - 1;
    if (at < recording_.before.size()) bytes = recording_.before[at].bytes;
    std::vector<const DiskChange*> pending;
    for (std::size_t i = 0; i < count_; ++i) {
      const DiskChange& change = recording_.changes[i];
      if (change.kind != Kind::kWrite || change.node != node) continue;
      if (is_flushed(node, i)) {
        put(bytes, change.offset, change.bytes);
      } else {
        pending.push_back(&change);
      }
    }
    for (const DiskChange* change : pending) {
      const bool last = change == pending.back();
      const std::span<const std::uint8_t> all(change->bytes);
      if (fate == Fate::kKept || (fate == Fate::kTorn && !last) ||
          (fate == Fate::kLastOnly && last))
        put(bytes, change->offset, all);
      if (fate == Fate::kTorn && last) put(bytes, change->offset, all.first(all.size() / 2));
      if (fate == Fate::kZeros)
        put(bytes, change->offset, std::vector<std::uint8_t>(all.size(), 0));
    }
    return bytes;
  }

  void add(const std::map<int, std::map<std::string, int>>& names, int folder,
           const std::string& path, Fate fate, Tree& out) const {
    const auto found = names.find(folder);
    if (found == names.end()) return;
    for (const auto& [name, node] : found->second) {
      const std::string below = path + "/" + name;
      if (is_folder(node)) {
        out.folders.insert(below);
        add(names, node, below, fate, out);
      } else {
        out.files[below] = content(node, fate);
      }
    }
  }

  const Recording& recording_;
  std::size_t count_;
  std::map<int, std::size_t> flushed_;  // change that flushed a node last
  std::vector<std::size_t> pending_;    // changes of names that are not flushed
};

std::string key_of(const Tree& tree, int promises) {
  std::string key = std::to_string(promises);
  for (const std::string& folder : tree.folders) key += "\n" + folder;
  for (const auto& [path, bytes] : tree.files)
    key += "\n" + path + "=" + std::string(bytes.begin(), bytes.end());
  return key;
}

}  // namespace

void for_each_crash(const Recording& recording,
                    const std::function<void(const Tree& disk, int promises)>& visit) {
  constexpr std::size_t kMostPending = 12;
  std::set<std::string> seen;
  for (std::size_t count = 0; count <= recording.changes.size(); ++count) {
    const auto promises = static_cast<int>(std::ranges::count_if(
        recording.promises, [&](std::size_t after) { return after <= count; }));
    const Crash crash(recording, count);
    if (crash.pending() > kMostPending)
      throw std::runtime_error("too many names are not flushed to try every subset");
    for (std::uint64_t lost = 0; lost < std::uint64_t{1} << crash.pending(); ++lost) {
      for (const Fate fate : kFates) {
        const Tree tree = crash.tree(lost, fate);
        if (seen.insert(key_of(tree, promises)).second) visit(tree, promises);
      }
    }
  }
}

// --- on real filesystems ---

namespace {

Tree tree_in(const std::string& path) {
  Tree tree;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    const std::string below = entry.path().string().substr(path.size());
    if (entry.is_directory()) {
      tree.folders.insert(below);
    } else {
      tree.files[below] = read_bytes(entry.path());
    }
  }
  return tree;
}

// Makes the folder's content this tree.
void write_tree(const std::string& path, const Tree& tree) {
  fs::create_directories(path);
  const Tree there = tree_in(path);
  for (const auto& [name, bytes] : there.files) {
    if (!tree.files.contains(name)) fs::remove(path + name);
  }
  for (const std::string& name : there.folders) {
    if (!tree.folders.contains(name)) fs::remove_all(path + name);
  }
  for (const std::string& name : tree.folders) fs::create_directories(path + name);
  for (const auto& [name, bytes] : tree.files) {
    const auto old = there.files.find(name);
    if (old == there.files.end() || old->second != bytes) write_bytes(path + name, bytes);
  }
}

// Collects the first few complaints.
class Complaints {
 public:
  void add(const std::string& complaint, const Tree& disk, int promises) {
    ++states_;
    if (complaint.empty() || ++wrong_ > kMost) return;
    text_ += complaint + "; after " + std::to_string(promises) + " promises, with";
    for (const auto& [path, bytes] : disk.files)
      text_ += " " + path + " (" + std::to_string(bytes.size()) + " bytes)";
    text_ += "\n";
  }
  int states() const { return states_; }
  std::string text() const {
    return wrong_ == 0 ? ""
                       : std::to_string(wrong_) + " of " + std::to_string(states_) +
                             " states are wrong:\n" + text_;
  }

 private:
  static constexpr int kMost = 3;
  int states_ = 0;
  int wrong_ = 0;
  std::string text_;
};

bool mount_overlay(const std::string& lower, const std::string& scratch,
                   const std::string& merged) {
  fs::remove_all(scratch);
  fs::create_directories(scratch + "/upper");
  fs::create_directories(scratch + "/work");
  const std::string options =
      "lowerdir=" + lower + ",upperdir=" + scratch + "/upper,workdir=" + scratch + "/work";
  return ::mount("overlay", merged.c_str(), "overlay", 0, options.c_str()) == 0;
}

}  // namespace

std::string check_crashes(const Recording& recording, const CrashCheck& check, int* states) {
  const TempDir folder;
  const std::string disk = folder / "disk";
  Complaints complaints;
  for_each_crash(recording, [&](const Tree& tree, int promises) {
    fs::remove_all(disk);
    write_tree(disk, tree);
    complaints.add(check(disk, promises), tree, promises);
  });
  if (states != nullptr) *states = complaints.states();
  return complaints.text();
}

std::string check_crashes_on_overlay(const Recording& recording, const CrashCheck& check) {
  const TempDir folder;
  return Child([&]() -> std::string {
           // Layers on a tmpfs: an overlay cannot have its upper layer on an overlay, which the
           // temporary folder of a container is.
           const std::string own = folder / "own";
           if (auto none = mount_tmpfs(own, 0, "mode=0755"); !none.empty()) return none;
           const std::string disk = own + "/disk";
           const std::string lower = own + "/lower";
           fs::create_directories(disk);
           Recording nothing;
           nothing.before = recording.before;
           for_each_crash(nothing, [&](const Tree& tree, int) { write_tree(lower, tree); });
           Complaints complaints;
           bool mounted = true;
           for_each_crash(recording, [&](const Tree& tree, int promises) {
             mounted = mounted && mount_overlay(lower, own + "/scratch", disk);
             if (!mounted) return;
             write_tree(disk, tree);
             complaints.add(check(disk, promises), tree, promises);
             ::umount(disk.c_str());
           });
           return mounted ? complaints.text() : "no right to mount";
         })
      .wait();
}

}  // namespace octile::cache::testing
