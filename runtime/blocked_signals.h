// Keeps signals of the host away from threads that the library starts.
#pragma once

#include <csignal>

namespace octile {

// Blocks signals on the calling thread for a scope. A thread that starts in it inherits that, so
// that the host's handlers run on the host's threads only. What a thread brings upon itself
// (SIGSEGV and the like) stays, because the kernel would end the process without the host's
// handler. SIGPROF stays, so that profilers see the library's threads.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF})
      sigdelset(&blocked, signal);
    pthread_sigmask(SIG_BLOCK, &blocked, &saved_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t saved_{};
};

}  // namespace octile
