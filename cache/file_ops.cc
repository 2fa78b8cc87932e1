#include "cache/file_ops.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "cache/descriptor.h"
#include "cache/file_name.h"
#include "cache/rights.h"

namespace octile::cache {
namespace {

template <typename T>
T or_errno(T result) {
  return result < 0 ? static_cast<T>(-errno) : result;
}

// Keeps SIGXFSZ from the calling thread for a scope. A write beyond the process's limit of a file's
// size (RLIMIT_FSIZE) sends it, which would end the host; the write also says EFBIG. One that was
// pending before stays pending.
class WithoutSizeSignal {
 public:
  WithoutSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    sigset_t pending{};
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &signal_, &saved_);
  }
  ~WithoutSizeSignal() {
    const timespec now{};
    while (!was_pending_ && sigtimedwait(&signal_, nullptr, &now) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &saved_, nullptr);
  }
  WithoutSizeSignal(const WithoutSizeSignal&) = delete;
  WithoutSizeSignal& operator=(const WithoutSizeSignal&) = delete;

 private:
  sigset_t signal_{};
  sigset_t saved_{};
  bool was_pending_ = false;
};

struct CloseDir {
  void operator()(DIR* dir) const {
    const WithoutFork none_meanwhile;
    forget_descriptor(::dirfd(dir), none_meanwhile);
    ::closedir(dir);
  }
};

// Fills `into` by calls of `read(rest, how many bytes came before)` until it is full or the file
// ends. Returns how many bytes came.
template <typename Read>
IoResult<std::size_t> fill(std::span<std::uint8_t> into, const std::string& path,
                           const Read& read) {
  std::size_t filled = 0;
  while (filled < into.size()) {
    const ssize_t n = retry_interrupted([&] { return read(into.subspan(filled), filled); });
    if (n < 0) return io_failure("read", path, n);
    if (n == 0) break;
    filled += static_cast<std::size_t>(n);
  }
  return filled;
}

IoResult<void> write_all(FileOps& ops, int fd, std::span<const std::uint8_t> bytes,
                         const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = retry_interrupted([&] { return ops.write(fd, bytes); });
    if (n < 0) return io_failure("write", path, n);
    // POSIX allows 0 only for an empty request. A filesystem that returns it otherwise makes no
    // progress.
    if (n == 0) return io_failure("write", path, -EIO);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

tl::unexpected<IoError> unacceptable(const std::string& path, const std::string& why) {
  return tl::unexpected(IoError{0, fmt::format("{}: {}", path, why)});
}

// Fails if fewer bytes come than the file had when it was opened: it has been cut meanwhile, or a
// file server gave up. A file that is short on disk is read in full, and its reader refuses it.
IoResult<std::vector<std::uint8_t>> read_first(FileOps& ops, const OpenFile& file,
                                               std::size_t count, const std::string& path) {
  std::vector<std::uint8_t> bytes(count);
  const auto filled = read_next(ops, file, bytes, path);
  if (!filled) return tl::unexpected(filled.error());
  if (*filled < count) {
    return tl::unexpected(IoError{
        EIO, fmt::format("cannot read {}: it ends after {} of {} bytes", path, *filled, count)});
  }
  return bytes;
}

// Opens what O_NOFOLLOW of `flags`, or its absence, finds. Neither the open nor a read of a file of
// /proc waits: the flags have O_NONBLOCK.
IoResult<OpenFile> open_checked(FileOps& ops, int dir_fd, const std::string& name, int flags,
                                mode_t mode, const std::string& path, const FileCheck& check,
                                struct stat* status) {
  const int all = flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const int fd = retry_interrupted([&] { return ops.open_at(dir_fd, name, all, mode); });
  if (fd == -ELOOP && (flags & O_NOFOLLOW) != 0)
    return unacceptable(path, "a symbolic link is not followed");
  // A FIFO without a reader that is opened to write, and a socket.
  if (fd == -ENXIO) return unacceptable(path, "not a regular file");
  if (fd < 0) return io_failure("open", path, fd);
  OpenFile file(ops, fd);
  struct stat now = {};
  const int result = retry_interrupted([&] { return ops.stat_fd(fd, now); });
  if (result < 0) return io_failure("stat", path, result);
  if (!S_ISREG(now.st_mode)) return unacceptable(path, "not a regular file");
  if (check) {
    if (const auto checked = check(now); !checked) return tl::unexpected(checked.error());
  }
  if (status != nullptr) *status = now;
  return file;
}

// Creates a file, which takes after `other` if that is given.
IoResult<void> write_new(FileOps& ops, int dir_fd, const std::string& name,
                         const struct stat* other, std::span<const std::uint8_t> bytes,
                         const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  const mode_t mode = other == nullptr ? 0644 : 0600;  // nobody may read it before it takes after
  const int fd = retry_interrupted([&] { return ops.open_at(dir_fd, name, kFlags, mode); });
  if (fd < 0) return io_failure("create", path, fd);
  OpenFile file(ops, fd);
  IoResult<void> written;
  const int taken =
      other == nullptr ? 0 : retry_interrupted([&] { return ops.take_after(fd, *other); });
  written = taken < 0 ? IoResult<void>(io_failure("set the permissions of", path, taken))
                      : write_and_close(ops, file, bytes, path);
  if (!written) ops.unlink_at(dir_fd, name);
  return written;
}

}  // namespace

int FileOps::open_at(int dir_fd, const std::string& name, int flags, mode_t mode) {
  return new_descriptor([&] { return ::openat(dir_fd, name.c_str(), flags | O_CLOEXEC, mode); });
}
ssize_t FileOps::read(int fd, std::span<std::uint8_t> into) {
  return or_errno(::read(fd, into.data(), into.size()));
}
ssize_t FileOps::read_at(int fd, std::span<std::uint8_t> into, off_t offset) {
  return or_errno(::pread(fd, into.data(), into.size(), offset));
}
ssize_t FileOps::write(int fd, std::span<const std::uint8_t> bytes) {
  const WithoutSizeSignal without;
  return or_errno(::write(fd, bytes.data(), bytes.size()));
}
int FileOps::fsync(int fd) { return or_errno(::fsync(fd)); }
int FileOps::close(int fd) { return close_descriptor(fd); }
int FileOps::stat_fd(int fd, struct stat& out) { return or_errno(::fstat(fd, &out)); }
int FileOps::stat_at(int dir_fd, const std::string& name, struct stat& out) {
  return or_errno(::fstatat(dir_fd, name.c_str(), &out, AT_SYMLINK_NOFOLLOW));
}
int FileOps::rename_at(int dir_fd, const std::string& from, const std::string& to) {
  return or_errno(::renameat(dir_fd, from.c_str(), dir_fd, to.c_str()));
}
int FileOps::unlink_at(int dir_fd, const std::string& name) {
  return or_errno(::unlinkat(dir_fd, name.c_str(), 0));
}
int FileOps::touch_at(int dir_fd, const std::string& name) {
  return or_errno(::utimensat(dir_fd, name.c_str(), nullptr, AT_SYMLINK_NOFOLLOW));
}
int FileOps::mkdir_at(int dir_fd, const std::string& name, mode_t mode) {
  return or_errno(::mkdirat(dir_fd, name.c_str(), mode));
}

int FileOps::list(int dir_fd, std::vector<std::string>& names) {
  // fdopendir() takes over the descriptor it gets, including its position, so the folder is opened
  // a second time.
  const int fd =
      new_descriptor([&] { return ::openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (fd < 0) return fd;
  const std::unique_ptr<DIR, CloseDir> dir(::fdopendir(fd));
  if (dir == nullptr) {
    const int code = errno;
    close_descriptor(fd);
    return -code;
  }
  errno = 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): safe on a DIR of its own, and this one is
  while (const dirent* item = ::readdir(dir.get())) {
    const std::string_view name = item->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  return -errno;
}

int FileOps::try_lock(int fd) {
  const int locked = or_errno(::flock(fd, LOCK_EX | LOCK_NB));
  if (locked >= 0) note_lock(fd);
  return locked;
}

int FileOps::take_after(int fd, const struct stat& other) {
  mode_t mode = other.st_mode & 0777U;
  struct stat own = {};
  if (::fstat(fd, &own) < 0) return -errno;
  const bool is_alike = own.st_uid == other.st_uid && own.st_gid == other.st_gid;
  if (!is_alike && ::fchown(fd, other.st_uid, other.st_gid) < 0 && own.st_gid != other.st_gid &&
      ::fchown(fd, static_cast<uid_t>(-1), other.st_gid) < 0)
    mode &= ~static_cast<mode_t>(S_IRWXG);
  return or_errno(::fchmod(fd, mode));
}

std::shared_ptr<FileOps> or_system(std::shared_ptr<FileOps> ops) {
  return ops != nullptr ? std::move(ops) : std::make_shared<FileOps>();
}

tl::unexpected<IoError> io_failure(std::string_view action, const std::string& path,
                                   ssize_t result) {
  const int code = static_cast<int>(-result);
  return tl::unexpected(IoError{
      code, fmt::format("cannot {} {}: {}", action, path, std::generic_category().message(code))});
}

IoResult<OpenFile> open_regular(FileOps& ops, int dir_fd, const std::string& name, int flags,
                                mode_t mode, const std::string& path, const FileCheck& check,
                                struct stat* status) {
  return open_checked(ops, dir_fd, name, flags | O_NOFOLLOW, mode, path, check, status);
}

IoResult<OpenFile> open_named(FileOps& ops, const std::string& path, struct stat* status) {
  return open_checked(ops, AT_FDCWD, path, O_RDONLY, 0, path, nullptr, status);
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISREG(mode) ? "a regular file" : "a device";
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

bool same_state(const struct stat& a, const struct stat& b) {
  return same_file(a, b) && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

IoResult<std::size_t> read_next(FileOps& ops, const OpenFile& file, std::span<std::uint8_t> into,
                                const std::string& path) {
  return fill(into, path,
              [&](std::span<std::uint8_t> rest, std::size_t) { return ops.read(file.fd(), rest); });
}

IoResult<std::size_t> read_from(FileOps& ops, const OpenFile& file, std::span<std::uint8_t> into,
                                std::int64_t offset, const std::string& path) {
  return fill(into, path, [&](std::span<std::uint8_t> rest, std::size_t filled) {
    return ops.read_at(file.fd(), rest, offset + static_cast<off_t>(filled));
  });
}

IoResult<std::vector<std::uint8_t>> read_file(FileOps& ops, int dir_fd, const std::string& name,
                                              std::size_t max_bytes, const std::string& path,
                                              const FileCheck& check) {
  struct stat status = {};
  const auto file = open_regular(ops, dir_fd, name, O_RDONLY, 0, path, check, &status);
  if (!file) return tl::unexpected(file.error());
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  if (file_bytes > max_bytes) {
    return unacceptable(path, fmt::format("{} bytes, at most {} are read", file_bytes, max_bytes));
  }
  return read_first(ops, *file, static_cast<std::size_t>(file_bytes), path);
}

IoResult<std::vector<std::uint8_t>> read_beginning(FileOps& ops, int dir_fd,
                                                   const std::string& name, std::size_t most_bytes,
                                                   const std::string& path,
                                                   const FileCheck& check) {
  struct stat status = {};
  const auto file = open_regular(ops, dir_fd, name, O_RDONLY, 0, path, check, &status);
  if (!file) return tl::unexpected(file.error());
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  return read_first(
      ops, *file, static_cast<std::size_t>(std::min<std::uint64_t>(file_bytes, most_bytes)), path);
}

IoResult<void> check_unwritable_by_others(const struct stat& status, const std::string& path) {
  const auto refuse = [](std::string sentence) {
    return tl::unexpected(IoError{0, std::move(sentence)});
  };
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return refuse(
        fmt::format("{}: its mode is {:04o}; allowed: not writable by group or others (chmod go-w)",
                    path, status.st_mode & 07777U));
  const uid_t user = ::geteuid();
  if (status.st_uid == 0 || (status.st_uid == user && own_user_is_trusted())) return {};
  return refuse(
      fmt::format("{}: it belongs to user {}; allowed: {}root", path, status.st_uid,
                  own_user_is_trusted() ? fmt::format("this user ({}) or ", user) : std::string()));
}

FileCheck unwritable_by_others(std::string path) {
  return [path = std::move(path)](const struct stat& status) {
    return check_unwritable_by_others(status, path);
  };
}

std::string absolute_path(const std::string& path) {
  std::error_code error;
  std::string text = std::filesystem::absolute(path, error).lexically_normal().string();
  if (error) return path;
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

IoResult<std::string> resolve_links(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> resolved(::realpath(path.c_str(), nullptr),
                                                        &std::free);
  if (resolved == nullptr) return io_failure("resolve", path, -errno);
  return std::string(resolved.get());
}

IoResult<bool> is_still(FileOps& ops, const OpenFile& folder, const std::string& name,
                        const OpenFile& file, const std::string& path) {
  struct stat opened = {};
  struct stat named = {};
  int result = retry_interrupted([&] { return ops.stat_fd(file.fd(), opened); });
  if (result >= 0) {
    result = retry_interrupted([&] { return ops.stat_at(folder.fd(), name, named); });
    if (result == -ENOENT) return false;
  }
  if (result < 0) return io_failure("stat", path, result);
  return same_file(opened, named);
}

IoResult<void> write_and_flush(FileOps& ops, const OpenFile& file,
                               std::span<const std::uint8_t> bytes, const std::string& path) {
  if (auto written = write_all(ops, file.fd(), bytes, path); !written) return written;
  const int synced = retry_interrupted([&] { return ops.fsync(file.fd()); });
  if (synced < 0) return io_failure("fsync", path, synced);
  return {};
}

IoResult<void> write_and_close(FileOps& ops, OpenFile& file, std::span<const std::uint8_t> bytes,
                               const std::string& path) {
  if (auto written = write_and_flush(ops, file, bytes, path); !written) return written;
  if (const int closed = file.close(); closed < 0) return io_failure("close", path, closed);
  return {};
}

IoResult<void> flush_folder(FileOps& ops, const OpenFile& folder, const std::string& path) {
  const int synced = retry_interrupted([&] { return ops.fsync(folder.fd()); });
  if (synced < 0 && synced != -EINVAL) return io_failure("fsync", path, synced);
  return {};
}

IoResult<void> write_new_file(FileOps& ops, int dir_fd, const std::string& name,
                              std::span<const std::uint8_t> bytes, const std::string& path) {
  return write_new(ops, dir_fd, name, nullptr, bytes, path);
}

IoResult<void> replace_file(FileOps& ops, const OpenFile& folder, const std::string& name,
                            const std::string& prefix, std::span<const std::uint8_t> bytes,
                            const std::string& path, const struct stat* replaced) {
  remove_abandoned(ops, folder, prefix);
  const std::string temporary = temporary_name_of(prefix);
  if (auto written = write_new(ops, folder.fd(), temporary, replaced, bytes, path); !written)
    return written;
  const int renamed =
      retry_interrupted([&] { return ops.rename_at(folder.fd(), temporary, name); });
  if (renamed < 0) {
    ops.unlink_at(folder.fd(), temporary);
    return io_failure("rename a temporary file to", path, renamed);
  }
  return flush_folder(ops, folder, path);
}

void remove_abandoned(FileOps& ops, const OpenFile& folder, std::string_view prefix) {
  constexpr std::time_t kAbandonedSeconds = 3600;  // writing one takes seconds at most
  std::vector<std::string> names;
  if (ops.list(folder.fd(), names) < 0) return;
  const std::time_t now = std::time(nullptr);
  for (const std::string& name : names) {
    struct stat status = {};
    if (!is_temporary_name_of(prefix, name)) continue;
    if (ops.stat_at(folder.fd(), name, status) < 0) continue;
    if (now - status.st_mtime >= kAbandonedSeconds) ops.unlink_at(folder.fd(), name);
  }
}

}  // namespace octile::cache
