#include "runtime/compiler/start_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include "cache/rights.h"
#include "runtime/blocked_signals.h"

// A sanitizer must not instrument what runs on the stacks below, where it knows no thread.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OCTILE_PLAIN __attribute__((no_sanitize("address", "thread", "undefined"), noinline))
#else
#define OCTILE_PLAIN __attribute__((noinline))
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

constexpr int kOnlyClones = static_cast<int>(__WCLONE);
constexpr std::size_t kStackBytes = std::size_t{64} << 10;

// Everything that the two new processes need. They share the host's memory until the program runs,
// so that they may only make system calls: another thread may hold any lock, such as malloc's.
struct Start {
  const char* program = nullptr;
  std::array<char*, 3> arguments{};
  char** environment = nullptr;
  int socket = -1;
  int null = -1;
  char* second_stack = nullptr;  // its top
  int error = 0;
  int program_id = 0;
};

// The program's process. Both descriptors are above 2, so that none overwrites another. These are
// bare system calls, because a sanitizer's versions of these functions change the host's memory.
OCTILE_PLAIN int become_program(void* argument) {
  auto& start = *static_cast<Start*>(argument);
  ::syscall(SYS_setsid);
  if (::syscall(SYS_dup3, start.socket, STDIN_FILENO, 0) >= 0 &&
      ::syscall(SYS_dup3, start.null, STDOUT_FILENO, 0) >= 0 &&
      ::syscall(SYS_dup3, start.null, STDERR_FILENO, 0) >= 0)
    ::syscall(SYS_execve, start.program, start.arguments.data(), start.environment);
  start.error = errno;
  ::syscall(SYS_exit_group, 1);
  return 1;
}

// The process in between. Each clone returns once the new process executes the program or ends.
OCTILE_PLAIN int make_orphan(void* argument) {
  auto& start = *static_cast<Start*>(argument);
  start.program_id =
      OCTILE_CLONE(become_program, start.second_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, argument);
  if (start.program_id < 0) start.error = errno;
  ::syscall(SYS_exit_group, 0);
  return 0;
}

// A descriptor that is closed at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

// Memory for two stacks, each with a page below that faults.
class Stacks {
 public:
  Stacks() : base_(::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    for (const std::size_t index : {std::size_t{0}, std::size_t{1}})
      usable_ = usable_ && base_ != MAP_FAILED &&
                ::mprotect(top(index) - kStackBytes, kStackBytes, PROT_READ | PROT_WRITE) == 0;
  }
  ~Stacks() {
    if (base_ != MAP_FAILED) ::munmap(base_, kBytes);
  }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  bool usable() const { return usable_; }
  char* top(std::size_t index) const {
    return static_cast<char*>(base_) + (index + 1) * (kGuardBytes + kStackBytes);
  }

 private:
  static constexpr std::size_t kGuardBytes = std::size_t{64} << 10;  // a page of any machine
  static constexpr std::size_t kBytes = 2 * (kGuardBytes + kStackBytes);
  void* base_;
  bool usable_ = true;
};

tl::unexpected<Error> cannot_start(const std::string& program, int error) {
  return fail(ErrorCode::kNoCompiler, fmt::format("\"{}\" cannot be started: {}", program,
                                                  std::generic_category().message(error)));
}

bool adopts_orphans() {
  int subreaper = 0;
  return ::getpid() == 1 ||
         (::prctl(PR_GET_CHILD_SUBREAPER, &subreaper, 0, 0, 0) == 0 && subreaper != 0);
}

// Returns a copy of a descriptor above 2 that programs do not inherit.
int above_standard(int descriptor) {
  return descriptor < 0 ? -1 : ::fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

}  // namespace

Result<StartedProgram> start_program(const std::string& program, const std::string& argument) {
  std::string name = program;
  std::string only = argument;
  const Stacks stacks;
  std::array<int, 2> pair{-1, -1};
  if (!stacks.usable() || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0)
    return cannot_start(program, errno);
  Descriptor ours(pair[0]);
  const Descriptor theirs(pair[1]);
  const Descriptor opened(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const Descriptor socket(above_standard(theirs.get()));
  const Descriptor null(above_standard(opened.get()));
  if (socket.get() < 0 || null.get() < 0) return cannot_start(program, errno);

  std::array<char*, 1> nothing{nullptr};
  Start start{.program = program.c_str(),
              .arguments = {name.data(), only.data(), nullptr},
              .environment = cache::has_more_rights_than_caller() ? nothing.data() : environ,
              .socket = socket.get(),
              .null = null.get(),
              .second_stack = stacks.top(1),
              .error = 0,
              .program_id = 0};
  {
    const BlockedSignals blocked(all_signals());  // a handler would run in the host's memory
    // Without a signal at its end only __WCLONE waits for it, so that no wait() of the host sees
    // it.
    const pid_t between = OCTILE_CLONE(make_orphan, stacks.top(0), CLONE_VM | CLONE_VFORK, &start);
    if (between < 0) return cannot_start(program, errno);
    while (::waitpid(between, nullptr, kOnlyClones) < 0 && errno == EINTR) {
    }
  }
  if (start.error != 0) return cannot_start(program, start.error);
  return StartedProgram{ours.release(), adopts_orphans() ? start.program_id : 0};
}

}  // namespace octile
