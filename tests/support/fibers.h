// Runs the threads of one or more thread blocks as fibers that take turns. A thread that has to
// wait names a counter and the value it waits for, so that the scheduler looks at the counter
// without switching to the thread. Sanitizer builds cannot use it, because their runtimes do not
// follow stack switches.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace octile::emulation {

constexpr int kWarp = 32;

// The condition that a thread waits for: a counter that only grows reaches a value.
struct Wait {
  const std::uint32_t* counter = nullptr;  // null: for nothing but its next turn
  std::uint32_t target = 0;
  const char* what = "";    // for the report of a deadlock
  std::uint32_t place = 0;  // likewise: a shared-memory address or a barrier's number
};

// A group of blocks that run together.
struct Blocks {
  unsigned first = 0;  // index of the first one in the grid
  int count = 1;
  int threads = 0;  // of a block, a multiple of 32
  unsigned grid = 1;
};

// Work between the turns of threads.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  // Returns whether a warp takes its turn in this round. It does anyway if no other can run.
  virtual bool lets_run(int /*warp*/) { return true; }
  virtual void after_round() {}  // in which a thread ran
  // Called if every thread waits. Returns false if nothing can end that.
  virtual bool when_all_wait() { return false; }
  // Called on the ending thread.
  virtual void thread_ended() {}
};

// Runs `body` once for each thread of the blocks. Returns an empty text, or, if all threads wait
// and nothing can end that, what they wait for. Their stacks are then abandoned.
std::string run_fibers(const Blocks& blocks, const std::function<void()>& body,
                       Surroundings& surroundings);

// These are called by a thread that runs.
void wait_until(const Wait& wait);
inline void yield() { wait_until({}); }
int fiber_index();  // thread of the group: block's rank * threads + thread of the block

// A barrier of threads that all know how many they are.
struct FiberBarrier {
  int arrived = 0;
  std::uint32_t generation = 0;
  // Waits for the others. `what` and `place` are for the report of a deadlock.
  void wait(int threads, const char* what, std::uint32_t place = 0);
};

}  // namespace octile::emulation
