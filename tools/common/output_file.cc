#include "tools/common/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "cache/file_name.h"

namespace octile::tools {
namespace {

constexpr std::array kSignals{SIGHUP, SIGINT, SIGTERM};
// Does not depend on the target's name, which may be as long as a name can be.
constexpr const char* kTemporaryName = ".octile-output";

// What the signal handler removes. It is set while `temporary_exists`.
struct Temporary {
  int folder_fd = -1;
  std::array<char, 64> name{};
};
Temporary temporary;
std::atomic<bool> temporary_exists = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler reads it");

// Every call here is one that a signal handler may make (signal-safety(7)).
extern "C" void remove_and_end(int signal) {
  if (temporary_exists.exchange(false)) ::unlinkat(temporary.folder_fd, temporary.name.data(), 0);
  // The parent process sees that a signal ended this one.
  (void)std::signal(signal, SIG_DFL);
  (void)::raise(signal);
}

// Installs the handler for the signals that would end the process, and puts back what was there.
class SignalGuard {
 public:
  SignalGuard() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      struct sigaction ours = {};
      ours.sa_handler = remove_and_end;
      sigemptyset(&ours.sa_mask);
      ::sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler == SIG_DFL) ::sigaction(kSignals[i], &ours, nullptr);
    }
  }
  ~SignalGuard() {
    for (std::size_t i = 0; i < kSignals.size(); ++i)
      ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  std::array<struct sigaction, kSignals.size()> before_{};
};

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

struct OutputFile::Impl {
  explicit Impl(std::string target) : path(std::move(target)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (file_fd >= 0) ::close(file_fd);
    if (folder_fd < 0) return;
    if (temporary_exists.exchange(false)) ::unlinkat(folder_fd, temporary.name.data(), 0);
    ::close(folder_fd);
  }

  tl::unexpected<Error> failure(const char* action) const {
    return fail(ErrorCode::kInternal, fmt::format("{} cannot be written: {}: {}", path, action,
                                                  std::generic_category().message(errno)));
  }

  Status check_target() const {
    struct stat status = {};
    if (::fstatat(folder_fd, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) return {};
      return failure("stat");
    }
    if (S_ISREG(status.st_mode)) return {};
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}; allowed: a regular file, which is replaced, a name that is "
                            "free, or - for stdout",
                            path, kind_of(status.st_mode)));
  }

  Status open() {
    const std::size_t slash = path.rfind('/');
    const std::string folder =
        slash == std::string::npos ? "." : path.substr(0, slash == 0 ? 1 : slash);
    name = slash == std::string::npos ? path : path.substr(slash + 1);
    if (name.empty() || name == "." || name == "..")
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("'{}' names no file; allowed: the path of a file, or - for stdout", path));
    folder_fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd < 0) return failure("open its folder");
    if (Status ok = check_target(); !ok) return ok;
    const std::string unique = cache::temporary_name_of(kTemporaryName);
    std::memcpy(temporary.name.data(), unique.c_str(), unique.size() + 1);
    temporary.folder_fd = folder_fd;
    guard.emplace();
    temporary_exists = true;  // before it does: removing what is not there does no harm
    file_fd = ::openat(folder_fd, unique.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file_fd >= 0) return {};
    const auto failed = failure("create a temporary file");
    temporary_exists = false;
    return failed;
  }

  Status commit() {
    if (::fsync(file_fd) != 0) return failure("fsync");
    if (::close(std::exchange(file_fd, -1)) != 0) return failure("close");
    if (Status ok = check_target(); !ok) return ok;
    if (::renameat(folder_fd, temporary.name.data(), folder_fd, name.c_str()) != 0)
      return failure("rename");
    temporary_exists = false;
    // EINVAL means that the filesystem cannot flush folders.
    if (::fsync(folder_fd) != 0 && errno != EINVAL) return failure("fsync its folder");
    return {};
  }

  const std::string path;
  std::string name;
  int folder_fd = -1;
  int file_fd = -1;
  std::optional<SignalGuard> guard;  // destroyed after the temporary file is removed
};

OutputFile::OutputFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OutputFile::OutputFile(OutputFile&&) noexcept = default;
OutputFile& OutputFile::operator=(OutputFile&&) noexcept = default;
OutputFile::~OutputFile() = default;

Result<OutputFile> OutputFile::create(const std::string& path) {
  auto impl = std::make_unique<Impl>(path);
  if (path != "-") {
    if (Status ok = impl->open(); !ok) return tl::unexpected<Error>(ok.error());
  }
  return OutputFile(std::move(impl));
}

int OutputFile::fd() const { return impl_->folder_fd < 0 ? STDOUT_FILENO : impl_->file_fd; }

Status OutputFile::commit() { return impl_->folder_fd < 0 ? Status{} : impl_->commit(); }

}  // namespace octile::tools
