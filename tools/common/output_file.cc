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
#include <string>
#include <system_error>
#include <utility>

#include "cache/file_name.h"

namespace octile::tools {
namespace {

constexpr std::array kSignals{SIGHUP, SIGINT, SIGTERM};
// Does not depend on the target's name, which may be as long as a name can be.
constexpr const char* kTemporaryName = ".octile-output";

// The file that the signal handler removes. It is set while `temporary_exists`.
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
      struct sigaction removing = {};
      removing.sa_handler = remove_and_end;
      sigemptyset(&removing.sa_mask);
      ::sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler == SIG_DFL) ::sigaction(kSignals[i], &removing, nullptr);
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

}  // namespace

struct OutputFile::Impl {
  Impl(std::string target, std::shared_ptr<cache::FileOps> file_ops)
      : path(std::move(target)), ops(cache::or_system(std::move(file_ops))) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (folder.fd() >= 0 && temporary_exists.exchange(false))
      ops->unlink_at(folder.fd(), temporary.name.data());
  }

  tl::unexpected<Error> failure(const char* action, int result) const {
    return fail(ErrorCode::kInternal, fmt::format("{} cannot be written: {}: {}", path, action,
                                                  std::generic_category().message(-result)));
  }

  // Returns the status of the file that is replaced; nothing if there is none.
  Result<std::optional<struct stat>> check_target() const {
    struct stat status = {};
    const int result = ops->stat_at(folder.fd(), name, status);
    if (result == -ENOENT) return std::nullopt;
    if (result < 0) return failure("stat", result);
    if (S_ISREG(status.st_mode)) return status;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}; allowed: a regular file, which is replaced, a name that is "
                            "free, or - for stdout",
                            path, cache::kind_of(status.st_mode)));
  }

  Status open() {
    const std::size_t slash = path.rfind('/');
    const std::string above =
        slash == std::string::npos ? "." : path.substr(0, slash == 0 ? 1 : slash);
    name = slash == std::string::npos ? path : path.substr(slash + 1);
    if (name.empty() || name == "." || name == "..")
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("'{}' names no file; allowed: the path of a file, or - for stdout", path));
    const int opened = ops->open_at(AT_FDCWD, above, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (opened < 0) return failure("open its folder", opened);
    folder = cache::OpenFile(*ops, opened);
    const auto replaced = check_target();
    if (!replaced) return tl::unexpected<Error>(replaced.error());
    cache::remove_abandoned(*ops, folder, kTemporaryName);
    // Nobody may read it before it takes after what it replaces.
    return create(*replaced ? 0600 : 0666);
  }

  Status create(mode_t mode) {
    const std::string unique = cache::temporary_name_of(kTemporaryName);
    std::memcpy(temporary.name.data(), unique.c_str(), unique.size() + 1);
    temporary.folder_fd = folder.fd();
    guard.emplace();
    temporary_exists = true;  // before it does: removing what is not there does no harm
    const int created = ops->open_at(folder.fd(), unique,
                                     O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (created < 0) {
      temporary_exists = false;
      return failure("create a temporary file", created);
    }
    file = cache::OpenFile(*ops, created);
    return {};
  }

  Status commit() {
    const auto replaced = check_target();
    if (!replaced) return tl::unexpected<Error>(replaced.error());
    if (const std::optional<struct stat>& old = *replaced) {
      if (const int result = ops->take_after(file.fd(), *old); result < 0)
        return failure("set its permissions", result);
    }
    if (const int result = ops->fsync(file.fd()); result < 0) return failure("fsync", result);
    if (const int result = file.close(); result < 0) return failure("close", result);
    if (const int result = ops->rename_at(folder.fd(), temporary.name.data(), name); result < 0)
      return failure("rename", result);
    temporary_exists = false;
    if (auto flushed = cache::flush_folder(*ops, folder, "its folder"); !flushed)
      return failure("fsync its folder", -flushed.error().code);
    return {};
  }

  const std::string path;
  const std::shared_ptr<cache::FileOps> ops;
  std::string name;
  cache::OpenFile folder;
  cache::OpenFile file;
  std::optional<SignalGuard> guard;  // destroyed after the temporary file is removed
};

OutputFile::OutputFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OutputFile::OutputFile(OutputFile&&) noexcept = default;
OutputFile& OutputFile::operator=(OutputFile&&) noexcept = default;
OutputFile::~OutputFile() = default;

Result<OutputFile> OutputFile::create(const std::string& path,
                                      std::shared_ptr<cache::FileOps> file_ops) {
  auto impl = std::make_unique<Impl>(path, std::move(file_ops));
  if (path != "-") {
    if (Status ok = impl->open(); !ok) return tl::unexpected<Error>(ok.error());
  }
  return OutputFile(std::move(impl));
}

int OutputFile::fd() const { return impl_->folder.fd() < 0 ? STDOUT_FILENO : impl_->file.fd(); }

Status OutputFile::write(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = cache::retry_interrupted([&] { return impl_->ops->write(fd(), bytes); });
    if (n <= 0) {
      const int error = n < 0 ? static_cast<int>(-n) : EIO;
      return fail(ErrorCode::kInternal, fmt::format("{} cannot be written: {}",
                                                    impl_->folder.fd() < 0 ? "stdout" : impl_->path,
                                                    std::generic_category().message(error)));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Status OutputFile::commit() { return impl_->folder.fd() < 0 ? Status{} : impl_->commit(); }

Status check_output_file(const std::string& path) {
  return OutputFile::create(path).map([](const OutputFile&) {});
}

Status write_output_file(const std::string& path, std::string_view bytes) {
  auto file = OutputFile::create(path);
  if (!file) return tl::unexpected<Error>(file.error());
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  if (Status ok = file->write({data, bytes.size()}); !ok) return ok;
  return file->commit();
}

}  // namespace octile::tools
