// Shared by the cache's tests: a temporary folder, entries, a recorded log, injected faults and
// child processes that report.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache/file_name.h"
#include "cache/file_ops.h"
#include "cache/store.h"

namespace octile::cache::testing {

namespace fs = std::filesystem;

class TempDir {
 public:
  TempDir() {
    std::string pattern = fs::temp_directory_path() / "octile-cache-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
    fs::permissions(path_, fs::perms(0755));  // unprivileged children may pass
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Returns an entry whose identity depends on `kernel`; `variant` changes only the stored bytes.
inline Entry make_entry(int kernel = 0, int variant = 0) {
  Entry entry;
  const std::string name = "octile_test_" + std::to_string(kernel);
  entry.identity = {
      name, "sm_90a", {"-std=c++17"}, "extern \"C\" __global__ void " + name + "() {}\n"};
  entry.toolchain = {"nvrtc 13.0", "0123456789abcdef"};
  entry.metadata.problem = "gemm m=? n=" + std::to_string(kernel);
  entry.metadata.compile_ms = 1.5;
  entry.metadata.date = "2026-01-31T12:00:00Z";
  entry.cubin = {
      0x7f, 'E', 'L', 'F', static_cast<std::uint8_t>(kernel), static_cast<std::uint8_t>(variant)};
  entry.cubin.resize(1000, 0xab);
  return entry;
}

inline FileStem stem_of(const Entry& entry) {
  return {digest_hex(key_text(entry.identity)), digest_hex(entry.toolchain.text())};
}
inline std::string path_in(const std::string& root, const Entry& entry) {
  const FileStem stem = stem_of(entry);
  return root + "/v1/" + stem.folder() + "/" + stem.entry_name();
}

// Publishes through a store of its own, as another process would.
inline bool publish_in(const std::string& root, const Entry& entry) {
  StoreOptions options;
  options.writable_root = root;
  return Store(std::move(options)).publish(entry);
}

class LogRecorder {
 public:
  Log callback() {
    return [this](Severity severity, const std::string& message) {
      const std::lock_guard guard(mutex_);
      (severity == Severity::kWarning ? warnings_ : others_).push_back(message);
    };
  }
  std::vector<std::string> warnings() const {
    const std::lock_guard guard(mutex_);
    return warnings_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> warnings_, others_;
};

inline std::vector<std::uint8_t> read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}
inline void write_bytes(const std::string& path, const std::vector<std::uint8_t>& bytes) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

// Returns every regular file below a root whose name ends with `suffix`.
inline std::vector<std::string> files_ending(const std::string& root, const std::string& suffix) {
  std::vector<std::string> found;
  if (!fs::exists(root)) return found;
  for (const auto& item : fs::recursive_directory_iterator(root)) {
    const std::string path = item.path().string();
    if (path.ends_with(suffix)) found.push_back(path);
  }
  std::sort(found.begin(), found.end());
  return found;
}

enum class Op {
  kOpen,
  kRead,
  kWrite,
  kFsync,
  kClose,
  kStat,
  kRename,
  kUnlink,
  kTouch,
  kMkdir,
  kList,
  kLock
};
inline const char* name_of(Op op) {
  constexpr const char* kNames[] = {"open",   "read",   "write", "fsync", "close", "stat",
                                    "rename", "unlink", "touch", "mkdir", "list",  "lock"};
  return kNames[static_cast<int>(op)];
}

// Calls `before` ahead of every call. If it returns a number, the call fails with that errno.
// Writes and reads move at most `chunk` bytes, as on a pipe or a network filesystem.
class HookedOps : public FileOps {
 public:
  using Before = std::function<std::optional<int>(Op)>;
  explicit HookedOps(Before before, std::size_t chunk = 1 << 20)
      : before_(std::move(before)), chunk_(chunk) {}

  int open_at(int dir, const std::string& name, int flags, mode_t mode) override {
    return failing(Op::kOpen).value_or_else(
        [&] { return FileOps::open_at(dir, name, flags, mode); });
  }
  ssize_t read(int fd, std::span<std::uint8_t> into) override {
    const auto part = into.first(std::min(into.size(), chunk_));
    return failing(Op::kRead).value_or_else([&] { return FileOps::read(fd, part); });
  }
  ssize_t read_at(int fd, std::span<std::uint8_t> into, off_t offset) override {
    const auto part = into.first(std::min(into.size(), chunk_));
    return failing(Op::kRead).value_or_else([&] { return FileOps::read_at(fd, part, offset); });
  }
  ssize_t write(int fd, std::span<const std::uint8_t> bytes) override {
    const auto part = bytes.first(std::min(bytes.size(), chunk_));
    return failing(Op::kWrite).value_or_else([&] { return FileOps::write(fd, part); });
  }
  int fsync(int) override {
    // Nothing is flushed: no test here needs to survive a power loss, and each flush would take
    // milliseconds.
    return failing(Op::kFsync).value_or_else([] { return 0; });
  }
  int close(int fd) override {
    const auto injected = failing(Op::kClose);
    const int result = FileOps::close(fd);  // the descriptor is closed even if close() fails
    return injected.value_or_else([&] { return result; });
  }
  int stat_fd(int fd, struct stat& out) override {
    return failing(Op::kStat).value_or_else([&] { return FileOps::stat_fd(fd, out); });
  }
  int stat_at(int dir, const std::string& name, struct stat& out) override {
    return failing(Op::kStat).value_or_else([&] { return FileOps::stat_at(dir, name, out); });
  }
  int rename_at(int dir, const std::string& from, const std::string& to) override {
    return failing(Op::kRename).value_or_else([&] { return FileOps::rename_at(dir, from, to); });
  }
  int unlink_at(int dir, const std::string& name) override {
    return failing(Op::kUnlink).value_or_else([&] { return FileOps::unlink_at(dir, name); });
  }
  int touch_at(int dir, const std::string& name) override {
    return failing(Op::kTouch).value_or_else([&] { return FileOps::touch_at(dir, name); });
  }
  int mkdir_at(int dir, const std::string& name, mode_t mode) override {
    return failing(Op::kMkdir).value_or_else([&] { return FileOps::mkdir_at(dir, name, mode); });
  }
  int list(int dir, std::vector<std::string>& names) override {
    return failing(Op::kList).value_or_else([&] { return FileOps::list(dir, names); });
  }
  int try_lock(int fd) override {
    return failing(Op::kLock).value_or_else([&] { return FileOps::try_lock(fd); });
  }

 private:
  struct Injected {
    std::optional<int> code;
    template <typename Call>
    auto value_or_else(Call call) const -> decltype(call()) {
      return code ? static_cast<decltype(call())>(-*code) : call();
    }
  };
  Injected failing(Op op) { return {before_(op)}; }

  Before before_;
  std::size_t chunk_;
};

struct Outcome {
  bool published = false;
  bool right_or_missed = true;
  std::vector<std::string> warnings;
};

// Does what a call does: looks up, locks, looks up again and publishes. Later it looks up once
// more.
inline Outcome compile_one(const std::string& root, const std::shared_ptr<FileOps>& ops = nullptr) {
  LogRecorder log;
  StoreOptions options;
  options.writable_root = root;
  options.lock_timeout = std::chrono::milliseconds(50);
  options.log = log.callback();
  options.file_ops = ops;
  Store store(options);
  const Entry entry = make_entry();
  Outcome outcome;
  const auto look = [&] {
    for (const auto& toolchain : {std::optional(entry.toolchain), std::optional<Toolchain>()}) {
      const auto hit = store.lookup(entry.identity, toolchain);
      if (hit && hit->entry != entry) outcome.right_or_missed = false;
    }
  };
  look();
  {
    const Store::Lock lock = store.lock(entry.identity, entry.toolchain);
    look();
    outcome.published = store.publish(entry);
  }
  look();
  store.list();
  outcome.warnings = log.warnings();
  return outcome;
}

// Runs `work` in a forked child and returns its report; "" means success.
class Child {
 public:
  explicit Child(const std::function<std::string()>& work) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
    pid_ = ::fork();
    if (pid_ == 0) {
      // Whoever started the tests may ignore them (nohup, a shell's background job).
      for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM})
        (void)std::signal(signal, SIG_DFL);
      std::string report;
      try {
        report = work();
      } catch (const std::exception& error) {
        report = std::string("exception: ") + error.what();
      }
      const ssize_t written = ::write(ends[1], report.data(), report.size());
      ::_exit(written == static_cast<ssize_t>(report.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    report_fd_ = ends[0];
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), report_fd_(std::exchange(other.report_fd_, -1)) {}
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }

  pid_t pid() const { return pid_; }
  // Returns the report. A death by signal is also reported. A child that runs longer is killed.
  std::string wait(std::chrono::milliseconds most = std::chrono::minutes(5)) {
    const auto deadline = std::chrono::steady_clock::now() + most;
    std::string report;
    char buffer[512];
    for (ssize_t n = 1; n > 0;) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd one{report_fd_, POLLIN, 0};
      const int ready = ::poll(&one, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
      if (ready < 0 && errno == EINTR) continue;
      if (ready == 0) {
        ::kill(pid_, SIGKILL);
        report += "it did not end within " + std::to_string(most.count()) + " ms, ";
        break;
      }
      n = ::read(report_fd_, buffer, sizeof buffer);
      if (n > 0) report.append(buffer, static_cast<std::size_t>(n));
    }
    ::close(report_fd_);
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    if (WIFSIGNALED(status)) report += "signal " + std::to_string(WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) report += " exit";
    return report;
  }

 private:
  pid_t pid_ = -1;
  int report_fd_ = -1;
};

}  // namespace octile::cache::testing
