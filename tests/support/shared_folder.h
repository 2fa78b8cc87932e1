// A folder on a simulated file server, as several hosts see it: each keeps the attributes of a
// file, and the names in a folder, for a while after it has asked for them, as a client of NFS
// does, which asks again when the file or folder is opened. The server's clock is the test's; the
// bytes are on a real disk.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/file_ops.h"

namespace octile::cache::testing {

class SimulatedServer {
 public:
  explicit SimulatedServer(std::shared_ptr<double> now) : now_(std::move(now)) {}

  double now() const { return *now_; }
  void changed(ino_t file) { modified_[file] = now(); }
  // Returns when the file was changed, which is when it was first asked for if nobody did.
  double modified(ino_t file) { return modified_.try_emplace(file, now()).first->second; }

 private:
  std::shared_ptr<double> now_;
  std::map<ino_t, double> modified_;
};

class HostOfServer : public FileOps {
 public:
  HostOfServer(std::shared_ptr<SimulatedServer> server, double keeps_seconds)
      : server_(std::move(server)), keeps_(keeps_seconds) {}

  int open_at(int dir_fd, const std::string& name, int flags, mode_t mode) override {
    const int fd = FileOps::open_at(dir_fd, name, flags, mode);
    struct stat status = {};
    if (fd < 0 || FileOps::stat_fd(fd, status) < 0) return fd;
    attributes_.erase(status.st_ino);
    listed_.erase(status.st_ino);
    if ((flags & O_CREAT) != 0 && status.st_size == 0) change(status.st_ino);
    return fd;
  }
  ssize_t write(int fd, std::span<const std::uint8_t> bytes) override {
    struct stat status = {};
    if (FileOps::stat_fd(fd, status) >= 0) change(status.st_ino);
    return FileOps::write(fd, bytes);
  }
  int stat_fd(int fd, struct stat& out) override { return seen(FileOps::stat_fd(fd, out), out); }
  int stat_at(int dir_fd, const std::string& name, struct stat& out) override {
    return seen(FileOps::stat_at(dir_fd, name, out), out);
  }
  int list(int dir_fd, std::vector<std::string>& names) override {
    struct stat status = {};
    const int found = FileOps::stat_fd(dir_fd, status);
    if (found < 0) return found;
    auto& [asked, kept] = listed_[status.st_ino];
    if (kept.empty() || server_->now() - asked >= keeps_) {
      kept.clear();
      if (const int listed = FileOps::list(dir_fd, kept); listed < 0) return listed;
      asked = server_->now();
    }
    names.insert(names.end(), kept.begin(), kept.end());
    return 0;
  }
  int try_lock(int fd) override { return locks ? *locks : FileOps::try_lock(fd); }
  int fsync(int) override { return 0; }

  std::optional<int> locks;  // the answer to whoever asks for one; nothing: the server's

 private:
  // Its own changes a host sees at once.
  void change(ino_t file) {
    server_->changed(file);
    attributes_[file] = {server_->now(), server_->now()};
  }
  int seen(int result, struct stat& out) {
    if (result < 0 || !S_ISREG(out.st_mode)) return result;
    auto& [asked, modified] =
        attributes_.try_emplace(out.st_ino, server_->now(), server_->modified(out.st_ino))
            .first->second;
    if (server_->now() - asked >= keeps_) {
      asked = server_->now();
      modified = server_->modified(out.st_ino);
    }
    out.st_mtim.tv_sec = static_cast<time_t>(modified);
    out.st_mtim.tv_nsec =
        static_cast<long>((modified - static_cast<double>(out.st_mtim.tv_sec)) * 1e9);
    return result;
  }

  std::shared_ptr<SimulatedServer> server_;
  const double keeps_;
  std::map<ino_t, std::pair<double, double>> attributes_;  // when asked, and what was said
  std::map<ino_t, std::pair<double, std::vector<std::string>>> listed_;
};

}  // namespace octile::cache::testing
