// The one place where the library touches files. FileOps holds the system calls as virtual
// functions, so that tests can make any of them fail. The functions below it add the checks that
// every file gets: no link at the end of a path, regular files only, an owner and a mode that keep
// other users out, and a bound on the bytes read. A test of the source tree (House) refuses any
// other access to files in cache/ and runtime/.
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

// Every function returns the call's result, or -errno.
class FileOps {
 public:
  FileOps() = default;
  virtual ~FileOps() = default;
  FileOps(const FileOps&) = delete;
  FileOps& operator=(const FileOps&) = delete;

  // Names are relative to the folder `dir_fd` (or AT_FDCWD), so nobody can exchange an opened
  // folder for another between two calls.
  virtual int open_at(int dir_fd, const std::string& name, int flags, mode_t mode);
  virtual ssize_t read(int fd, std::span<std::uint8_t> into);
  virtual ssize_t read_at(int fd, std::span<std::uint8_t> into, off_t offset);
  // A file that may not be so long is -EFBIG, without the signal SIGXFSZ.
  virtual ssize_t write(int fd, std::span<const std::uint8_t> bytes);
  virtual int fsync(int fd);
  virtual int close(int fd);
  virtual int stat_fd(int fd, struct stat& out);
  // Does not follow a link.
  virtual int stat_at(int dir_fd, const std::string& name, struct stat& out);
  virtual int rename_at(int dir_fd, const std::string& from, const std::string& to);
  virtual int unlink_at(int dir_fd, const std::string& name);
  // Sets the file's times to now. Does not follow a link.
  virtual int touch_at(int dir_fd, const std::string& name);
  virtual int mkdir_at(int dir_fd, const std::string& name, mode_t mode);
  virtual int list(int dir_fd, std::vector<std::string>& names);  // omits "." and ".."
  virtual int try_lock(
      // Takes an exclusive advisory lock of the open file; -EWOULDBLOCK if another holder has it.
      int fd);
  // Gives a file of this process the permissions of another one, and its owner and group if this
  // process may. A group that it does not get gets no permissions.
  virtual int take_after(int fd, const struct stat& other);
};

// Returns the caller's `ops`, or the system's if it is null.
std::shared_ptr<FileOps> or_system(std::shared_ptr<FileOps> ops);

// Repeats a call that a signal interrupted and returns its result. The number of attempts is
// bounded, because some network filesystems always answer EINTR.
template <typename Call>
auto retry_interrupted(Call call) {
  constexpr int kAttempts = 100;
  auto result = call();
  for (int i = 1; i < kAttempts && result == -EINTR; ++i) result = call();
  return result;
}

// Owns a file descriptor.
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
  // Returns 0 or -errno. Some filesystems report a failed write only when the file is closed.
  int close() {
    // The call is never repeated after EINTR, because Linux has released the descriptor by then.
    return fd_ < 0 ? 0 : ops_->close(std::exchange(fd_, -1));
  }

 private:
  FileOps* ops_ = nullptr;
  int fd_ = -1;
};

// Says why a file operation failed. Code 0: no call failed, but the file itself is not acceptable.
struct IoError {
  int code = 0;          // errno
  std::string sentence;  // what was attempted, on which path, and the system's message
};
template <typename T>
using IoResult = tl::expected<T, IoError>;

// Returns the error for a failed call. `result` is its -errno.
tl::unexpected<IoError> io_failure(std::string_view action, const std::string& path,
                                   ssize_t result);

// Sees a file's status and may refuse the file.
using FileCheck = std::function<IoResult<void>(const struct stat&)>;

// Opens a regular file with the access mode and creation flags of `flags`; `mode` is that of a file
// that is created. Never follows a link at the end of the name, and never waits at a FIFO or
// device. `path` appears in the error sentence. `check`, if given, may refuse the file. `status`,
// if given, receives the file's status. Errors: code 0 for a link, for anything but a regular file,
// and for a file that `check` refuses so.
IoResult<OpenFile> open_regular(FileOps& ops, int dir_fd, const std::string& name, int flags,
                                mode_t mode, const std::string& path, const FileCheck& check,
                                struct stat* status = nullptr);

// Opens a regular file of a path that the caller chose, to read it: a link at its end is followed.
// Otherwise as open_regular().
IoResult<OpenFile> open_named(FileOps& ops, const std::string& path, struct stat* status = nullptr);

// Returns "a folder", "a FIFO", ...: what a sentence calls something else than a regular file.
const char* kind_of(mode_t mode);

// Returns true if both are the same file, with any content.
bool same_file(const struct stat& a, const struct stat& b);
// Returns true if it is the same file and nobody has touched or rewritten it.
bool same_state(const struct stat& a, const struct stat& b);

// Read the next bytes of an opened file, or those from an offset. Return how many; fewer than
// `into` holds only at the end of the file.
IoResult<std::size_t> read_next(FileOps& ops, const OpenFile& file, std::span<std::uint8_t> into,
                                const std::string& path);
IoResult<std::size_t> read_from(FileOps& ops, const OpenFile& file, std::span<std::uint8_t> into,
                                std::int64_t offset, const std::string& path);

// Returns the content of a regular file under the rules of open_regular(), all the bytes that it
// has when it is opened. Never maps the file, because SIGBUS kills the process if another NFS
// client removes a mapped file. Error EIO: it ends earlier than it said.
IoResult<std::vector<std::uint8_t>> read_file(FileOps& ops, int dir_fd, const std::string& name,
                                              std::size_t max_bytes, const std::string& path,
                                              const FileCheck& check = nullptr);

// Returns the first `most_bytes` of a regular file of any size, or all of a shorter one. Errors as
// above.
IoResult<std::vector<std::uint8_t>> read_beginning(FileOps& ops, int dir_fd,
                                                   const std::string& name, std::size_t most_bytes,
                                                   const std::string& path,
                                                   const FileCheck& check = nullptr);

// Refuses, with code 0, a file or folder that a user other than the caller and root may write.
IoResult<void> check_unwritable_by_others(const struct stat& status, const std::string& path);
// Returns that check as a FileCheck.
FileCheck unwritable_by_others(std::string path);

// Returns the path as an absolute one without a slash at the end, so that a later chdir() does not
// change its meaning. Links are not resolved.
std::string absolute_path(const std::string& path);

// Returns the path with all links resolved.
IoResult<std::string> resolve_links(const std::string& path);

// Returns true if the name still refers to the opened file.
IoResult<bool> is_still(FileOps& ops, const OpenFile& folder, const std::string& name,
                        const OpenFile& file, const std::string& path);

// Writes all bytes and flushes them to the device. The second function also closes the file.
IoResult<void> write_and_flush(FileOps& ops, const OpenFile& file,
                               std::span<const std::uint8_t> bytes, const std::string& path);
IoResult<void> write_and_close(FileOps& ops, OpenFile& file, std::span<const std::uint8_t> bytes,
                               const std::string& path);

// Flushes the names of a folder's files to the device. A filesystem that cannot flush folders
// (EINVAL) counts as flushed.
IoResult<void> flush_folder(FileOps& ops, const OpenFile& folder, const std::string& path);

// Creates `name`, which must not exist, with these bytes and flushes them to the device. If it
// fails, it leaves no file behind.
IoResult<void> write_new_file(FileOps& ops, int dir_fd, const std::string& name,
                              std::span<const std::uint8_t> bytes, const std::string& path);

// Writes a file whole or leaves what is there: through a temporary file, which is flushed and
// renamed; then the folder is flushed. `prefix` begins the temporary file's name, and those that
// dead processes left are removed. `path` is the file's, for errors. The file has mode 0644, or
// takes after `replaced` if that is given.
IoResult<void> replace_file(FileOps& ops, const OpenFile& folder, const std::string& name,
                            const std::string& prefix, std::span<const std::uint8_t> bytes,
                            const std::string& path, const struct stat* replaced = nullptr);

// Removes the temporary files of a prefix that dead processes left in the folder more than an hour
// ago. A failure leaves them where they are.
void remove_abandoned(FileOps& ops, const OpenFile& folder, std::string_view prefix);

}  // namespace octile::cache
