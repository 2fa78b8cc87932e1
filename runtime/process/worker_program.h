// A program that the library starts (start_program.h), from its main() on.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/thread.h"
#include "runtime/process/message.h"

namespace octile {

// Before a program's argument: the program counts as having more rights than its caller, because
// the process that starts it has.
constexpr std::string_view kMoreRights = "+";

// "0.2.0". A program and a library of different versions do not work together.
std::string own_version();

struct WorkerProgram {
  std::string_view name;                          // "octile-prover"
  std::string_view purpose;                       // "to test kernels", for a person who starts it
  std::size_t stack_bytes = Thread::kStackBytes;  // of the thread that serves
  // Reads the argument, without kMoreRights. Returns false if it is not the library's.
  std::function<bool(std::string_view argument)> read;
  // Answers the library until it has no more questions or is gone. A thread of its own calls it,
  // whose stack does not depend on the host's limit.
  std::function<void(Channel& channel)> serve;
  // If there is one, the first thread calls it once a second.
  std::function<void()> beat = nullptr;
  // Returns the message to the library if the system refuses the thread, for the reason `why`.
  std::function<Channel::Message(const std::string& why)> refusal;
};

// main() of a program: descriptor 0 is a socket to the library. The process leaves what the host
// left open, and its signals. It ends with status 0 when serve() returns, or when the library's end
// of the socket is closed, also in the middle of serve(): no destructor runs, so nothing that hangs
// is waited for. Returns 2 if a person started it, and says so on standard error.
int run_worker_program(int argc, char** argv, const WorkerProgram& program);

// How long a program waits for the library: for its next question, and to take an answer.
constexpr std::chrono::minutes kTimeToAsk{1};
constexpr std::chrono::minutes kTimeToAnswer{1};

}  // namespace octile
