#include "tools/common/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace octile::tools {

InputFile::InputFile(std::string name, int fd, bool owned)
    : name_(std::move(name)), ops_(cache::or_system(nullptr)), fd_(fd) {
  if (owned) owned_ = cache::OpenFile(*ops_, fd);
}

tl::unexpected<Error> InputFile::failure(int error) const {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} cannot be read: {}", name_, std::generic_category().message(-error)));
}

// Does not wait: neither for the writer of a FIFO nor for a device.
Result<InputFile> InputFile::open_named(const std::string& path) {
  const InputFile file(path, -1, false);
  const int fd = cache::retry_interrupted([&] {
    return file.ops_->open_at(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
  });
  if (fd < 0) return file.failure(fd);
  return InputFile(path, fd, true).examined();
}

Result<InputFile> InputFile::examined() && {
  struct stat status = {};
  if (const int result = ops_->stat_fd(fd_, status); result < 0) return failure(result);
  mode_ = status.st_mode;
  bytes_ = static_cast<std::uint64_t>(status.st_size);
  return std::move(*this);
}

Result<InputFile> InputFile::open(const std::string& path) {
  // Opening /dev/stdin would open a FIFO anew, whose writer may have ended by then.
  const bool standard = path == "-" || path == "/dev/stdin";
  auto file =
      standard ? InputFile("standard input", STDIN_FILENO, false).examined() : open_named(path);
  if (!file) return file;
  if (S_ISDIR(file->mode_)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is a folder; allowed: a file, a pipe, or - for standard input",
                            file->name_));
  }
  if (!standard && !S_ISREG(file->mode_)) file->wait_for_writer();
  return file;
}

void InputFile::wait_for_writer() const {
  // Before a FIFO has had a writer, a read would find its end.
  pollfd first = {.fd = fd_, .events = POLLIN, .revents = 0};
  while (::poll(&first, 1, -1) < 0 && errno == EINTR) {
  }
  if (const int flags = ::fcntl(fd_, F_GETFL); flags >= 0)
    ::fcntl(fd_, F_SETFL, flags & ~O_NONBLOCK);
}

Result<InputFile> InputFile::open_regular(const std::string& path) {
  auto file = open_named(path);
  if (!file || S_ISREG(file->mode_)) return file;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is {}; allowed: a regular file", path, cache::kind_of(file->mode_)));
}

std::uint64_t InputFile::bytes_now() const {
  struct stat now = {};
  return ops_->stat_fd(fd_, now) < 0 ? 0 : static_cast<std::uint64_t>(now.st_size);
}

Result<std::size_t> InputFile::read_at(std::span<std::uint8_t> into, std::int64_t offset) const {
  const ssize_t n = cache::retry_interrupted(
      [&] { return ops_->read_at(fd_, into, static_cast<off_t>(offset)); });
  if (n < 0) return failure(static_cast<int>(n));
  return static_cast<std::size_t>(n);
}

Result<std::size_t> InputFile::read_next(std::span<std::uint8_t> into) const {
  const ssize_t n = cache::retry_interrupted([&] { return ops_->read(fd_, into); });
  if (n < 0) return failure(static_cast<int>(n));
  return static_cast<std::size_t>(n);
}

Result<std::vector<std::uint8_t>> InputFile::read_all(std::size_t most_bytes) const {
  constexpr std::size_t kStepBytes = std::size_t{1} << 16;
  std::vector<std::uint8_t> bytes;
  for (;;) {
    const std::size_t filled = bytes.size();
    // One byte more than is allowed tells whether more follows.
    bytes.resize(filled + std::min(kStepBytes, most_bytes + 1 - filled));
    const auto n = read_next(std::span(bytes).subspan(filled));
    if (!n) return tl::unexpected<Error>(n.error());
    bytes.resize(filled + *n);
    if (*n == 0) return bytes;
    if (bytes.size() > most_bytes) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} has more than {} bytes; allowed: at most {}", name_, most_bytes,
                              most_bytes));
    }
  }
}

}  // namespace octile::tools
