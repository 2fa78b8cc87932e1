// Starts a program that is not a child of the host, connected by a socket.
//
// A child of the host would meet the host's own handling of children: a SIGCHLD that the host does
// not expect, a wait() for any child that returns ours, or never returns because ours still runs.
// So the program is started by a process in between, which reports no signal and is found by no
// wait() of the host. The program has a session of its own, so that a terminal's Ctrl-C and hang-up
// do not reach it. Its end is seen at the socket.
//
// Before it runs, the program's process sends a handle of itself (a pidfd) through the socket. The
// library kills it by that, also if it is stopped. Where the system has no such handles or refuses
// them, the end of the socket ends it, and a stopped one stays.
//
// Mostly the process in between ends at once, and the program belongs to process 1, which waits for
// its end. If nobody would, or the host itself adopts orphans (it is process 1, or by prctl(2),
// PR_SET_CHILD_SUBREAPER), the process in between stays until the program has ended and waits for
// it, and this library waits for the process in between. So nothing is left of either. It is a
// process that shares the host's memory, holds no descriptor and takes no signal.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

#include "cache/descriptor.h"

namespace octile {

// The program's process, and the process in between while it may run, with the memory of its stack.
class ProgramProcess {
 public:
  // handle: a pidfd of the program, or -1. between: 0 if it has ended.
  ProgramProcess(cache::Descriptor handle, int between, void* stacks)
      : handle_(std::move(handle)), between_(between), stacks_(stacks) {}
  ProgramProcess(ProgramProcess&& other) noexcept
      : handle_(std::move(other.handle_)),
        between_(std::exchange(other.between_, 0)),
        stacks_(std::exchange(other.stacks_, nullptr)) {}
  ProgramProcess& operator=(ProgramProcess&&) = delete;
  ProgramProcess(const ProgramProcess&) = delete;
  ProgramProcess& operator=(const ProgramProcess&) = delete;
  // Kills the program and waits for the process in between, whose end follows. After a second it
  // leaves them: the program may be in a system call of a disk that does not answer, or stopped and
  // without a handle. In a child of fork it does nothing to the program.
  ~ProgramProcess();

 private:
  cache::Descriptor handle_;
  int between_;
  void* stacks_;
};

struct StartedProgram {
  ProgramProcess process;    // destroyed after the socket, whose end ends the program
  cache::Descriptor socket;  // this end
};

// Starts `program` with one argument. The program has the other end as descriptor 0, /dev/null as 1
// and 2, and every other descriptor that is not close-on-exec. It begins with all signals blocked.
// Its environment is this process's; empty if this process has more rights than its caller, because
// the system need not tell the program that it has them too. Then kMoreRights precedes the argument
// (worker_program.h).
// The calling thread waits until the program runs; no page is copied. The error has the system's
// reason.
tl::expected<StartedProgram, std::string> start_program(const std::string& program,
                                                        const std::string& argument);

}  // namespace octile
