// The system calls the store makes, as virtual functions, so that tests can let any of them fail.
// Every function returns what the call returns, or -errno.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace octile::cache {

class FileOps {
 public:
  FileOps() = default;
  virtual ~FileOps() = default;
  FileOps(const FileOps&) = delete;
  FileOps& operator=(const FileOps&) = delete;

  // Names are relative to the folder `dir_fd` (or AT_FDCWD), so that a folder once opened cannot be
  // exchanged for another between two calls.
  virtual int open_at(int dir_fd, const std::string& name, int flags, mode_t mode);
  virtual ssize_t read(int fd, std::span<std::uint8_t> into);
  virtual ssize_t read_at(int fd, std::span<std::uint8_t> into, off_t offset);
  virtual ssize_t write(int fd, std::span<const std::uint8_t> bytes);
  virtual int fsync(int fd);
  virtual int close(int fd);
  virtual int stat_fd(int fd, struct stat& out);
  virtual int stat_at(int dir_fd, const std::string& name, struct stat& out);  // of a link itself
  virtual int rename_at(int dir_fd, const std::string& from, const std::string& to);
  virtual int unlink_at(int dir_fd, const std::string& name);
  // Sets the times of the file to now, of a link its own.
  virtual int touch_at(int dir_fd, const std::string& name);
  virtual int mkdir_at(int dir_fd, const std::string& name, mode_t mode);
  virtual int list(int dir_fd, std::vector<std::string>& names);  // without "." and ".."
  virtual int try_lock(
      int fd);  // exclusive advisory lock of the open file; -EWOULDBLOCK when taken
};

// What a caller gave, else the system's.
std::shared_ptr<FileOps> or_system(std::shared_ptr<FileOps> ops);

// Repeats a call that a signal interrupted. Bounded: some network filesystems answer EINTR for
// ever.
template <typename Call>
auto retry_interrupted(Call call) {
  constexpr int kAttempts = 100;
  auto result = call();
  for (int i = 1; i < kAttempts && result == -EINTR; ++i) result = call();
  return result;
}

// Owns a descriptor.
class OpenFile {
 public:
  OpenFile() = default;
  OpenFile(FileOps& ops, int fd) : ops_(&ops), fd_(fd) {}
  OpenFile(OpenFile&& other) noexcept : ops_(other.ops_), fd_(std::exchange(other.fd_, -1)) {}
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(ops_, other.ops_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OpenFile() { close(); }

  int fd() const { return fd_; }
  // 0 or -errno: some filesystems report a failed write only here.
  int close() {
    // Never repeated after EINTR: on Linux the descriptor is gone by then.
    return fd_ < 0 ? 0 : ops_->close(std::exchange(fd_, -1));
  }

 private:
  FileOps* ops_ = nullptr;
  int fd_ = -1;
};

// Why a file operation failed. Code 0: no call failed, the file itself is not acceptable.
struct IoError {
  int code = 0;          // errno
  std::string sentence;  // what was tried, on which path, and the system's words
};
template <typename T>
using IoResult = tl::expected<T, IoError>;

// `result` is the -errno of the failed call.
tl::unexpected<IoError> io_failure(std::string_view action, const std::string& path,
                                   ssize_t result);

// The whole regular file. Never follows a link, never waits at a FIFO or device, never maps the
// file (a mapping of a file that another NFS client removes kills the process with SIGBUS). `path`
// is for the error sentence; `check`, where given, may refuse the regular file it is shown.
using FileCheck = std::function<IoResult<void>(const struct stat&)>;
IoResult<std::vector<std::uint8_t>> read_file(FileOps& ops, int dir_fd, const std::string& name,
                                              std::size_t max_bytes, const std::string& path,
                                              const FileCheck& check = nullptr);

// At most the first `most_bytes` of it, however large it is.
IoResult<std::vector<std::uint8_t>> read_beginning(FileOps& ops, int dir_fd,
                                                   const std::string& name, std::size_t most_bytes,
                                                   const std::string& path,
                                                   const FileCheck& check = nullptr);

// Refuses (code 0) a file or folder that a user other than this one and root may write.
IoResult<void> check_unwritable_by_others(const struct stat& status, const std::string& path);

// All of the bytes, flushed to the device; then closes the file.
IoResult<void> write_and_close(FileOps& ops, OpenFile& file, std::span<const std::uint8_t> bytes,
                               const std::string& path);

// Creates `name`, which must not exist, with these bytes, flushed to the device. Leaves nothing
// behind on failure.
IoResult<void> write_new_file(FileOps& ops, int dir_fd, const std::string& name,
                              std::span<const std::uint8_t> bytes, const std::string& path);

}  // namespace octile::cache
