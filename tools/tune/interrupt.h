// SIGINT ends a tuning run and not the process, which still prints and keeps its decisions.
#pragma once

namespace octile::tools {

// Returns true once SIGINT came while it was caught.
bool is_interrupted();

// Catches SIGINT as long as it lives. A second SIGINT ends the process, because a device may no
// longer answer.
class CatchInterrupt {
 public:
  CatchInterrupt();
  ~CatchInterrupt();
  CatchInterrupt(const CatchInterrupt&) = delete;
  CatchInterrupt& operator=(const CatchInterrupt&) = delete;

 private:
  void (*before_)(int);
};

// Ends the process as SIGINT does, so that its parent sees that a signal ended it.
void end_by_interrupt();

}  // namespace octile::tools
