#include "runtime/process/worker_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <exception>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "cache/rights.h"
#include "octile/octile.h"

namespace octile {
namespace {

constexpr int kHostSocket = STDIN_FILENO;
constexpr int kBadUsage = 2;
constexpr int kSecond = 1000;  // in ms

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

// Closes what the host left open, so that nobody waits for the end of a file that is open here.
// Signals to the host's terminal or its service are the host's business: they are blocked, and
// others have the system's handling. If memory runs out, the system ends this process before the
// host.
void leave_the_host() {
  close_inherited();
  take_signals();
  be_the_first_to_go();
}

bool is_started_by_library() {
  int type = 0;
  socklen_t size = sizeof(type);
  return ::getsockopt(kHostSocket, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

[[noreturn]] void end_with_the_host(const WorkerProgram& program) {
  for (;;) {
    pollfd one{kHostSocket, POLLRDHUP, 0};
    if (::poll(&one, 1, program.beat ? kSecond : -1) > 0) ::_exit(0);
    if (program.beat) program.beat();
  }
}

int run(std::string_view argument, const WorkerProgram& program) {
  const bool more_rights = argument.starts_with(kMoreRights);
  if (more_rights) argument.remove_prefix(kMoreRights.size());
  if (!is_started_by_library() || !program.read(argument)) {
    fmt::print(stderr, "{}: the Octile library starts this program {}; it does nothing else\n",
               program.name, program.purpose);
    return kBadUsage;
  }
  if (more_rights) cache::count_as_having_more_rights();
  leave_the_host();
  Channel channel{cache::Descriptor(kHostSocket)};
  try {
    const Thread serves(
        [&] {
          program.serve(channel);
          ::_exit(0);
        },
        program.stack_bytes);
    end_with_the_host(program);
  } catch (const std::system_error& error) {
    static_cast<void>(channel.send(
        program.refusal(fmt::format("cannot start a thread: {}", error.code().message())),
        Channel::Clock::now() + kTimeToAnswer));
  }
  ::_exit(0);
}

}  // namespace

std::string own_version() {
  return fmt::format("{}.{}.{}", OCTILE_VERSION_MAJOR, OCTILE_VERSION_MINOR, OCTILE_VERSION_PATCH);
}

int run_worker_program(int argc, char** argv, const WorkerProgram& program) {
  try {
    return run(argc == 2 ? argv[1] : "", program);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", program.name, error.what());
    return 1;
  }
}

}  // namespace octile
