// Keeps signals of the host away from threads and programs that the library starts.
#pragma once

#include <csignal>

namespace octile {

inline sigset_t all_signals() {
  sigset_t all;
  sigfillset(&all);
  return all;
}

// Returns what a thread of the library blocks, so that the host's handlers run on the host's
// threads only. Signals that a thread brings upon itself (SIGSEGV and the like) are left out,
// because the kernel would end the process without the host's handler. So is SIGPROF, by which
// profilers see the library's threads.
inline sigset_t signals_of_the_host() {
  sigset_t blocked = all_signals();
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF})
    sigdelset(&blocked, signal);
  return blocked;
}

// Blocks signals on the calling thread for a scope. A thread that starts in it inherits that.
class BlockedSignals {
 public:
  explicit BlockedSignals(const sigset_t& blocked = signals_of_the_host()) {
    pthread_sigmask(SIG_BLOCK, &blocked, &saved_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t saved_{};
};

}  // namespace octile
