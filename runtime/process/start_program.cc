#include "runtime/process/start_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <ctime>
#include <string_view>
#include <system_error>

#include "cache/rights.h"
#include "runtime/base/blocked_signals.h"
#include "runtime/process/worker_program.h"

// A sanitizer must not instrument what runs on the stacks below, where it knows no thread.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OCTILE_PLAIN \
  __attribute__((no_sanitize("address", "thread", "undefined"), no_stack_protector, noinline))
#else
#define OCTILE_PLAIN __attribute__((no_stack_protector, noinline))
#endif

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer takes clone() for a fork without shared memory, and forgets what it knows of the
// thread. glibc has the function by this name too.
extern "C" int __clone(int (*run)(void*), void* stack, int flags, void* argument, ...);  // NOLINT
#define OCTILE_CLONE __clone
#else
#define OCTILE_CLONE ::clone
#endif

namespace octile {
namespace {

constexpr const char* kNameOfTheOneThatWaits = "octile-waits";  // at most 15 letters
constexpr int kOnlyClones = static_cast<int>(__WCLONE);
constexpr std::size_t kStackBytes = std::size_t{64} << 10;
constexpr std::size_t kGuardBytes = std::size_t{64} << 10;  // a page of any machine
constexpr std::size_t kTwoStacksBytes = 2 * (kGuardBytes + kStackBytes);

// Everything that the two new processes need. They share the host's memory until the program runs,
// so that they may only make system calls: another thread may hold any lock, such as malloc's.
// Pointers are plain, because a sanitizer instruments even the functions of std::array.
struct Start {
  const char* program = nullptr;
  char** arguments = nullptr;
  char** environment = nullptr;
  int socket = -1;
  int null = -1;
  msghdr* handle_message = nullptr;  // with `handle` as its only descriptor
  int* handle = nullptr;
  bool has_handle = false;       // the message is sent
  char* second_stack = nullptr;  // its top
  bool stays = false;            // the process in between waits for the program
  rlim_t most_descriptors = 0;
  const void* default_action = nullptr;  // the kernel's sigaction
  int error = 0;
  int done = 0;  // atomic; 1: the program runs or cannot be started
};

// Sends a handle of this process, by which it can be killed. A program that it executes has the
// same process.
OCTILE_PLAIN void send_handle(Start& start) {
#ifdef SYS_pidfd_open
  const long handle = ::syscall(SYS_pidfd_open, ::syscall(SYS_getpid), 0);
  if (handle < 0) return;
  *start.handle = static_cast<int>(handle);
  start.has_handle =
      ::syscall(SYS_sendmsg, start.socket, start.handle_message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
  ::syscall(SYS_close, handle);
#endif
}

// The program's process. Both descriptors are above 2, so that none overwrites another. These are
// bare system calls, because a sanitizer's versions of these functions change the host's memory.
OCTILE_PLAIN int become_program(void* argument) {
  auto& start = *static_cast<Start*>(argument);
  ::syscall(SYS_setsid);
  send_handle(start);
  if (::syscall(SYS_dup3, start.socket, STDIN_FILENO, 0) >= 0 &&
      ::syscall(SYS_dup3, start.null, STDOUT_FILENO, 0) >= 0 &&
      ::syscall(SYS_dup3, start.null, STDERR_FILENO, 0) >= 0)
    ::syscall(SYS_execve, start.program, start.arguments, start.environment);
  start.error = errno;
  ::syscall(SYS_exit_group, 1);
  return 1;
}

// Gives up what a process that only waits need not have: the host's session, name and folder, its
// handling of SIGCHLD, and every descriptor.
OCTILE_PLAIN void keep_nothing(const Start& start) {
  constexpr std::size_t kBytesOfSignalSet = 8;
  ::syscall(SYS_setsid);
  ::syscall(SYS_prctl, PR_SET_NAME, kNameOfTheOneThatWaits, 0, 0, 0);
  ::syscall(SYS_chdir, "/");
  ::syscall(SYS_rt_sigaction, SIGCHLD, start.default_action, nullptr, kBytesOfSignalSet);
#ifdef SYS_close_range
  if (::syscall(SYS_close_range, 0U, ~0U, 0) == 0) return;
#endif
  for (rlim_t number = 0; number < start.most_descriptors; ++number) ::syscall(SYS_close, number);
}

// The process in between. The clone returns once the new process executes the program or ends. The
// thread that called goes on, and may end, once `done` is set. After that nothing of it is used,
// not even errno: the calls cannot fail.
OCTILE_PLAIN int make_orphan(void* argument) {
  auto& start = *static_cast<Start*>(argument);
  const int program =
      OCTILE_CLONE(become_program, start.second_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, argument);
  if (program < 0) start.error = errno;
  const bool stays = start.stays;
  if (stays) {
    keep_nothing(start);
    __atomic_store_n(&start.done, 1, __ATOMIC_SEQ_CST);
    if (program > 0) ::syscall(SYS_wait4, program, nullptr, 0, nullptr);
  }
  ::syscall(SYS_exit_group, 0);
  return 0;
}

// Memory for two stacks, each with a page below that faults.
class Stacks {
 public:
  Stacks()
      : base_(::mmap(nullptr, kTwoStacksBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    for (const std::size_t index : {std::size_t{0}, std::size_t{1}})
      usable_ = usable_ && base_ != MAP_FAILED &&
                ::mprotect(top(index) - kStackBytes, kStackBytes, PROT_READ | PROT_WRITE) == 0;
  }
  ~Stacks() {
    if (base_ != MAP_FAILED) ::munmap(base_, kTwoStacksBytes);
  }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  bool usable() const { return usable_; }
  char* top(std::size_t index) const {
    return static_cast<char*>(base_) + (index + 1) * (kGuardBytes + kStackBytes);
  }
  void* release() { return std::exchange(base_, MAP_FAILED); }

 private:
  void* base_;
  bool usable_ = true;
};

tl::unexpected<std::string> cannot_start(const std::string& program, int error) {
  return tl::unexpected(
      fmt::format("\"{}\" cannot be started: {}", program, std::generic_category().message(error)));
}

bool adopts_orphans() {
  int subreaper = 0;
  return ::getpid() == 1 ||
         (::prctl(PR_GET_CHILD_SUBREAPER, &subreaper, 0, 0, 0) == 0 && subreaper != 0);
}

// Returns the set of signals on a line of /proc/<process>/status.
std::uint64_t signals_of(std::string_view status, std::string_view line) {
  const std::size_t at = status.find(line);
  std::uint64_t set = 0;
  if (at == std::string_view::npos) return set;
  constexpr std::size_t kDigits = 16;
  const std::string_view digits = status.substr(at + line.size()).substr(0, kDigits);
  std::from_chars(digits.data(), digits.data() + digits.size(), set, 16);
  return set;
}

// Returns true if process 1 does nothing about SIGCHLD: it neither catches nor ignores nor awaits
// the signal, as `sleep infinity` in a container. Then it probably waits for no process either. If
// nothing can be learnt of it, it counts as one that waits.
bool orphans_are_left() {
  const int file =
      cache::new_descriptor([] { return ::open("/proc/1/status", O_RDONLY | O_CLOEXEC); });
  if (file < 0) return false;
  const cache::Descriptor opened(file);
  std::array<char, 4096> text{};
  const ssize_t bytes = ::read(file, text.data(), text.size());
  const std::string_view status(text.data(), bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  if (status.find("SigCgt:") == std::string_view::npos) return false;
  const std::uint64_t handled = signals_of(status, "SigCgt:\t") | signals_of(status, "SigIgn:\t") |
                                signals_of(status, "SigBlk:\t");
  return (handled >> (SIGCHLD - 1) & 1U) == 0;
}

// A message of one byte and one descriptor.
class HandleMessage {
 public:
  HandleMessage() {
    message_.msg_iov = &bytes_;
    message_.msg_iovlen = 1;
    message_.msg_control = control_.data();
    message_.msg_controllen = control_.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message_);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
  }
  msghdr& message() { return message_; }
  int* descriptor() { return reinterpret_cast<int*>(CMSG_DATA(CMSG_FIRSTHDR(&message_))); }
  // Takes the message from a socket in which it is. Returns its descriptor, or a number below 0 if
  // this process may have no more of them.
  int receive(int socket) {
    return cache::new_descriptor([&] {
      const ssize_t got = ::recvmsg(socket, &message_, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
      if (got == 1 && CMSG_FIRSTHDR(&message_) != nullptr) return *descriptor();
      errno = EMFILE;
      return -1;
    });
  }

 private:
  char byte_ = 0;
  iovec bytes_{&byte_, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control_{};
  msghdr message_{};
};

bool has_ended(pid_t between) {
  const pid_t ended = ::waitpid(between, nullptr, kOnlyClones | WNOHANG);
  return ended == between || (ended < 0 && errno == ECHILD);
}

// Returns false if the process in between was killed before it said that the program runs. Both
// have one errno, so that nothing here may set it.
bool wait_for_program(const Start& start, pid_t between) {
  constexpr timespec kPause{0, 50'000};
  while (__atomic_load_n(&start.done, __ATOMIC_SEQ_CST) == 0) {
    if (has_ended(between)) return false;
    ::nanosleep(&kPause, nullptr);
  }
  return true;
}

}  // namespace

ProgramProcess::~ProgramProcess() {
  constexpr int kAttempts = 10'000;
  constexpr timespec kPause{0, 100'000};
#ifdef SYS_pidfd_send_signal
  if (handle_.get() >= 0) ::syscall(SYS_pidfd_send_signal, handle_.get(), SIGKILL, nullptr, 0);
#endif
  if (between_ == 0) return;
  for (int i = 0; i < kAttempts; ++i) {
    if (has_ended(between_)) {
      ::munmap(stacks_, kTwoStacksBytes);
      return;
    }
    ::nanosleep(&kPause, nullptr);
  }
}

tl::expected<StartedProgram, std::string> start_program(const std::string& program,
                                                        const std::string& argument) {
  std::string name = program;
  const bool has_more_rights = cache::has_more_rights_than_caller();
  std::string only = fmt::format("{}{}", has_more_rights ? kMoreRights : "", argument);
  Stacks stacks;
  if (!stacks.usable()) return cannot_start(program, ENOMEM);
  const auto [one, other] = cache::new_socket_pair();
  if (one < 0) return cannot_start(program, -one);
  cache::Descriptor own_end(one);
  const cache::Descriptor program_end(other);
  const int opened = cache::new_descriptor([] { return ::open("/dev/null", O_RDWR | O_CLOEXEC); });
  if (opened < 0) return cannot_start(program, -opened);
  const cache::Descriptor null(opened);

  rlimit descriptors{};
  ::getrlimit(RLIMIT_NOFILE, &descriptors);
  std::array<char*, 1> nothing{nullptr};
  std::array<char*, 3> arguments{name.data(), only.data(), nullptr};
  const std::array<unsigned long, 4> default_action{};
  HandleMessage handle;
  Start start{.program = program.c_str(),
              .arguments = arguments.data(),
              .environment = has_more_rights ? nothing.data() : environ,
              .socket = program_end.get(),
              .null = null.get(),
              .handle_message = &handle.message(),
              .handle = handle.descriptor(),
              .has_handle = false,
              .second_stack = stacks.top(1),
              .stays = adopts_orphans() || orphans_are_left(),
              .most_descriptors = descriptors.rlim_cur,
              .default_action = default_action.data(),
              .error = 0,
              .done = 0};
  const auto started = [&](int between, void* stacks_of_it) {
    cache::Descriptor handle_of_it(start.has_handle ? handle.receive(own_end.get()) : -1);
    return StartedProgram{ProgramProcess(std::move(handle_of_it), between, stacks_of_it),
                          std::move(own_end)};
  };
  {
    const BlockedSignals blocked(all_signals());  // a handler would run in the host's memory
    // Without a signal at its end only __WCLONE waits for it, so that no wait() of the host sees
    // it.
    const int flags = CLONE_VM | (start.stays ? 0 : CLONE_VFORK);
    const pid_t between = OCTILE_CLONE(make_orphan, stacks.top(0), flags, &start);
    if (between < 0) return cannot_start(program, errno);
    if (start.stays && wait_for_program(start, between) && start.error == 0)
      return started(between, stacks.release());
    while (::waitpid(between, nullptr, kOnlyClones) < 0 && errno == EINTR) {
    }
    if (start.stays && start.error == 0) return cannot_start(program, EINTR);
  }
  if (start.error != 0) return cannot_start(program, start.error);
  return started(0, nullptr);
}

}  // namespace octile
