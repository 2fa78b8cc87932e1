#include "runtime/process/surroundings.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <charconv>
#include <csignal>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "octile/octile.h"

namespace octile {
namespace {

// The kernel ends a process of a higher score first if memory runs out. The host's is 0 by default.
constexpr std::string_view kOutOfMemoryScore = "500";

void close_inherited() {
  constexpr unsigned kFirst = STDERR_FILENO + 1;
#ifdef SYS_close_range
  if (::syscall(SYS_close_range, kFirst, ~0U, 0) == 0) return;
#endif
  std::vector<int> inherited;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = entry.path().filename();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    inherited.push_back(descriptor);
  }
  for (const int descriptor : inherited)
    if (descriptor >= static_cast<int>(kFirst)) ::close(descriptor);
}

void take_signals() {
  for (int signal = 1; signal < NSIG; ++signal) (void)std::signal(signal, SIG_DFL);
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP}) sigaddset(&blocked, signal);
  pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
}

void be_the_first_to_go() {
  const int file = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  // If the system refuses, it chooses by size alone.
  static_cast<void>(::write(file, kOutOfMemoryScore.data(), kOutOfMemoryScore.size()));
  ::close(file);
}

}  // namespace

std::string own_version() {
  return fmt::format("{}.{}.{}", OCTILE_VERSION_MAJOR, OCTILE_VERSION_MINOR, OCTILE_VERSION_PATCH);
}

bool is_started_by_library() {
  int type = 0;
  socklen_t size = sizeof(type);
  return ::getsockopt(kHostSocket, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

void leave_the_host() {
  close_inherited();
  take_signals();
  be_the_first_to_go();
}

}  // namespace octile
