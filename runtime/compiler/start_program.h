// Starts a program that is nobody's child, connected by a socket.
//
// A child of the host would meet the host's own handling of children: a SIGCHLD that the host does
// not expect, a wait() for any child that returns ours, or never returns because ours still runs.
// So the program is started by a process in between, which ends at once, reports no signal and
// waits for nothing. The program belongs to init, or to whoever adopts orphans (prctl(2),
// PR_SET_CHILD_SUBREAPER). If that is the host itself, it is a child of the host after all. It has
// a session of its own, so that a terminal's Ctrl-C and hang-up do not reach it. Its end is seen at
// the socket.
#pragma once

#include <string>

#include "generator/core/error.h"

namespace octile {

struct StartedProgram {
  int socket = -1;  // this end
  int child = 0;    // its process id if this process adopts orphans, and so has to wait for it
};

// Starts `program` with one argument. The program has the other end as descriptor 0, /dev/null as 1
// and 2, and every other descriptor that is not close-on-exec. It begins with all signals blocked.
// Its environment is this process's; empty if this process has more rights than its caller, because
// the system need not tell the program that it has them too.
// The calling thread is suspended until the program runs, as by vfork; no page is copied. Errors:
// kNoCompiler, with the system's reason.
Result<StartedProgram> start_program(const std::string& program, const std::string& argument);

}  // namespace octile
