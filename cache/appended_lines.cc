#include "cache/appended_lines.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <thread>
#include <utility>

namespace octile::cache {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Set for any umask, because a file that others may write would be refused when it is read.
constexpr mode_t kFileMode = 0644;
// How long a file may be replaced again and again while one writer appends to it.
constexpr milliseconds kMostReplacing{60'000};
constexpr const char* kTemporaryName = ".octile-records";
constexpr std::size_t kMostLateBytes = std::size_t{64} << 20;

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// Returns 0 with the lock, -EWOULDBLOCK if another holds it until the end, or why there is none.
int lock_until(FileOps& ops, const OpenFile& file, Clock::time_point end) {
  constexpr milliseconds kLongestPause{8};
  for (milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
    const int locked = retry_interrupted([&] { return ops.try_lock(file.fd()); });
    const auto now = Clock::now();
    if (locked != -EWOULDBLOCK || now >= end) return std::min(locked, 0);
    std::this_thread::sleep_for(std::min<Clock::duration>(pause, end - now));
  }
}

// Returns what to write before a line: a newline if the file ends within a line, else nothing. A
// writer that died or found the disk full leaves such a line. If another writer without the lock is
// in the middle of a line, the newline only adds a blank line after it.
IoResult<std::string> separator(const LinesFile& lines, const OpenFile& file, std::int64_t bytes) {
  if (bytes == 0) return std::string();
  std::array<std::uint8_t, 1> last{};
  const auto filled = read_from(lines.ops, file, last, bytes - 1, lines.path);
  if (!filled) return tl::unexpected(filled.error());
  return std::string(*filled == 1 && last[0] == '\n' ? "" : "\n");
}

// Appends the text to the file that the name refers to. Returns false if that was replaced
// meanwhile, so that the text may be lost.
IoResult<bool> append_once(const LinesFile& lines, std::string_view text, Clock::time_point end) {
  // The file is readable for separator(), which reads its last byte.
  auto file = open_regular(lines.ops, lines.folder.fd(), lines.name, O_RDWR | O_APPEND | O_CREAT,
                           kFileMode, lines.path, lines.check);
  if (!file) return tl::unexpected(file.error());
  if (Clock::now() < end) (void)lock_until(lines.ops, *file, end);
  auto still = is_still(lines.ops, lines.folder, lines.name, *file, lines.path);
  if (!still || !*still) return still;
  struct stat status = {};
  const int asked = retry_interrupted([&] { return lines.ops.stat_fd(file->fd(), status); });
  if (asked < 0) return io_failure("stat", lines.path, asked);
  const auto before = separator(lines, *file, status.st_size);
  if (!before) return tl::unexpected(before.error());
  // With one call, so that lines do not mix even on a filesystem without locks.
  const std::string all = *before + std::string(text);
  if (auto ok = write_and_flush(lines.ops, *file, bytes_of(all), lines.path); !ok)
    return tl::unexpected(std::move(ok.error()));
  // The descriptor is open, so that no other file has its number.
  still = is_still(lines.ops, lines.folder, lines.name, *file, lines.path);
  if (const int closed = file->close(); closed < 0) return io_failure("close", lines.path, closed);
  // The file may be new, so the folder is flushed too.
  if (still && *still && status.st_size == 0) {
    if (auto ok = flush_folder(lines.ops, lines.folder, lines.path); !ok)
      return tl::unexpected(std::move(ok.error()));
  }
  return still;
}

IoResult<void> append_text(const LinesFile& file, std::string_view text, milliseconds timeout) {
  const auto began = Clock::now();
  do {
    const auto kept = append_once(file, text, began + timeout);
    if (!kept) return tl::unexpected(kept.error());
    if (*kept) return {};
  } while (Clock::now() < began + kMostReplacing);
  return tl::unexpected(
      IoError{EWOULDBLOCK,
              fmt::format("{}: others replaced it again and again for {} s; allowed: once they "
                          "have ended",
                          file.path, kMostReplacing.count() / 1000)});
}

}  // namespace

IoResult<void> append_lines(const LinesFile& file, const std::vector<std::string>& lines,
                            milliseconds timeout) {
  std::string text;
  for (const std::string& line : lines) text.append(line).append(1, '\n');
  return append_text(file, text, timeout);
}

// ---- replacing

IoResult<void> LinesReplacement::open_folder() {
  const std::size_t slash = path_.rfind('/');
  const std::string above =
      slash == std::string::npos ? "." : path_.substr(0, std::max<std::size_t>(slash, 1));
  name_ = slash == std::string::npos ? path_ : path_.substr(slash + 1);
  if (name_.empty() || name_ == "." || name_ == "..")
    return tl::unexpected(
        IoError{0, fmt::format("'{}' names no file; allowed: the path of a file", path_)});
  const int opened = retry_interrupted(
      [&] { return ops_->open_at(AT_FDCWD, above, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (opened < 0) return io_failure("open the folder of", path_, opened);
  folder_ = OpenFile(*ops_, opened);
  struct stat status = {};
  const int result = retry_interrupted([&] { return ops_->stat_at(folder_.fd(), name_, status); });
  if (result < 0 && result != -ENOENT) return io_failure("stat", path_, result);
  if (result == 0 && !S_ISREG(status.st_mode))
    return tl::unexpected(
        IoError{0, fmt::format("{} is {}; allowed: a regular file, which is replaced, or a name "
                               "that is free",
                               path_, kind_of(status.st_mode))});
  return {};
}

// Over NFS an exclusive lock needs a file that was opened to write.
IoResult<void> LinesReplacement::open_target() {
  const auto open = [&](int flags) {
    return open_regular(*ops_, folder_.fd(), name_, flags, kFileMode, path_, nullptr);
  };
  auto file = open(O_RDWR);
  if (!file && file.error().code == ENOENT) {
    file = open(O_RDWR | O_CREAT | O_EXCL);
    made_ = made_ || file.has_value();
    if (!file && file.error().code == EEXIST) file = open(O_RDWR);
  }
  if (!file && file.error().code == EACCES) file = open(O_RDONLY);
  target_ = OpenFile();
  if (file) {
    target_ = std::move(*file);
  } else if (file.error().code != EACCES) {
    return tl::unexpected(std::move(file.error()));
  }
  return {};
}

// Returns true if nobody else has the file, as far as locks tell.
IoResult<bool> LinesReplacement::is_taken() {
  if (auto opened = open_target(); !opened) return tl::unexpected(std::move(opened.error()));
  int result = 0;
  if (target_.fd() < 0) {
    result = retry_interrupted([&] { return ops_->stat_at(folder_.fd(), name_, seen_); });
  } else {
    if (retry_interrupted([&] { return ops_->try_lock(target_.fd()); }) == -EWOULDBLOCK)
      return false;
    const auto still = is_still(*ops_, folder_, name_, target_, path_);
    if (!still || !*still) return still;
    result = retry_interrupted([&] { return ops_->stat_fd(target_.fd(), seen_); });
  }
  if (result < 0) return io_failure("stat", path_, result);
  return true;
}

IoResult<LinesReplacement> LinesReplacement::begin(const std::string& path,
                                                   std::shared_ptr<FileOps> ops,
                                                   milliseconds timeout) {
  constexpr milliseconds kPause{5};
  LinesReplacement replacement(path, or_system(std::move(ops)));
  if (auto opened = replacement.open_folder(); !opened)
    return tl::unexpected(std::move(opened.error()));
  for (const auto end = Clock::now() + timeout;; std::this_thread::sleep_for(kPause)) {
    const auto taken = replacement.is_taken();
    if (!taken) return tl::unexpected(taken.error());
    if (*taken) return replacement;
    if (Clock::now() >= end)
      return tl::unexpected(
          IoError{EWOULDBLOCK, fmt::format("{}: others have been writing it for {} s; allowed: "
                                           "once they have ended",
                                           path, timeout.count() / 1000)});
  }
}

LinesReplacement::~LinesReplacement() {
  struct stat now = {};
  if (!made_ || target_.fd() < 0 || ops_->stat_fd(target_.fd(), now) < 0 || now.st_size != 0)
    return;
  struct stat named = {};
  if (ops_->stat_at(folder_.fd(), name_, named) >= 0 && same_file(now, named))
    ops_->unlink_at(folder_.fd(), name_);
}

IoResult<void> LinesReplacement::commit(std::string_view text) {
  auto replaced =
      replace_file(*ops_, folder_, name_, kTemporaryName, bytes_of(text), path_, &seen_);
  if (!replaced) return replaced;
  made_ = false;
  return append_late_lines();
}

// Appends to the new file what came to the old one since it was locked, from those who could not
// wait for the lock or have none.
IoResult<void> LinesReplacement::append_late_lines() {
  struct stat now = {};
  if (target_.fd() < 0 || ops_->stat_fd(target_.fd(), now) < 0 || now.st_size <= seen_.st_size)
    return {};
  std::vector<std::uint8_t> late(
      std::min(static_cast<std::size_t>(now.st_size - seen_.st_size), kMostLateBytes));
  const auto filled = read_from(*ops_, target_, late, seen_.st_size, path_);
  if (!filled) return tl::unexpected(filled.error());
  const std::string_view all(reinterpret_cast<const char*>(late.data()), *filled);
  // Whoever is at work on the rest finds the file replaced.
  const std::string_view whole = all.substr(0, all.rfind('\n') + 1);
  if (whole.empty()) return {};
  return append_text({*ops_, folder_, name_, path_, nullptr}, whole, milliseconds(5000));
}

}  // namespace octile::cache
