#include "tests/support/fibers.h"

#include <fmt/format.h>
#include <ucontext.h>

#include <csetjmp>
#include <cstddef>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "tests/support/device_emulation.h"

namespace octile::emulation {
namespace {

constexpr std::size_t kStackBytes = std::size_t{64} * 1024;

// swapcontext() saves and restores the signal mask by system calls, which took four fifths of a
// test's time. A fiber therefore begins by setcontext(), and later control passes by _longjmp().
struct Fiber {
  ucontext_t start{};
  jmp_buf position{};  // if it waits
  bool started = false;
};

bool lasts(const Wait& wait) {
  return wait.counter != nullptr && static_cast<std::int32_t>(*wait.counter - wait.target) < 0;
}

struct Group {
  Blocks blocks;
  std::vector<Fiber> fibers;
  // These have an element for each fiber. They lie apart from the fibers' stacks and registers,
  // because every round looks at all of them.
  std::vector<Wait> waits;
  std::vector<char> ended;
  jmp_buf scheduler{};
  const std::function<void()>* body = nullptr;
  Surroundings* surroundings = nullptr;
  int current = 0;  // fiber that runs
};

// The process runs one group at a time, because the templates' names (threadIdx, static shared
// memory) are also global.
Group* group = nullptr;

// Stacks are kept from group to group: fresh pages for every fiber would cost more than its work.
std::byte* stack_of(std::size_t fiber) {
  static std::vector<std::unique_ptr<std::byte[]>> stacks;
  while (stacks.size() <= fiber) {
    stacks.push_back(std::make_unique_for_overwrite<std::byte[]>(kStackBytes));
  }
  return stacks[fiber].get();
}

Fiber& running() { return group->fibers[static_cast<std::size_t>(group->current)]; }

// These are separate functions, because _setjmp() returns twice and would affect a caller's
// variables.
void to_scheduler(Fiber& from) {
  if (_setjmp(from.position) == 0) _longjmp(group->scheduler, 1);
}

void to_fiber(Fiber& fiber) {
  if (_setjmp(group->scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.position, 1);
  fiber.started = true;
  setcontext(&fiber.start);
}

void fiber_main() {
  (*group->body)();
  group->surroundings->thread_ended();
  group->ended[static_cast<std::size_t>(group->current)] = 1;
  to_scheduler(running());
}

// This is a separate function, because getcontext() may return twice and would affect a caller's
// variables.
void prepare(ucontext_t& context, std::byte* stack) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = kStackBytes;
  makecontext(&context, fiber_main, 0);
}

void make_current(int fiber) {
  group->current = fiber;
  const int block = fiber / group->blocks.threads;
  current_thread.x = static_cast<unsigned>(fiber % group->blocks.threads);
  current_block.x = group->blocks.first + static_cast<unsigned>(block);
}

// The events of a warp's turn.
struct Turn {
  bool ran = false;
  bool is_left = false;  // some thread has not ended
};

Turn run_warp(int warp) {
  Turn turn;
  for (int i = warp * kWarp; i < (warp + 1) * kWarp; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (group->ended[at] != 0) continue;
    turn.is_left = true;
    if (lasts(group->waits[at])) continue;
    make_current(i);
    to_fiber(group->fibers[at]);
    turn.ran = true;
  }
  return turn;
}

// Gives every warp its turn, or those that the surroundings let run.
Turn run_round(bool all) {
  Turn round;
  for (int warp = 0; warp < group->blocks.count * group->blocks.threads / kWarp; ++warp) {
    if (!all && !group->surroundings->lets_run(warp)) continue;
    const Turn turn = run_warp(warp);
    round.ran = round.ran || turn.ran;
    round.is_left = round.is_left || turn.is_left;
  }
  return round;
}

std::string describe_waits() {
  struct Threads {
    int first = 0, count = 0;
  };
  std::map<std::tuple<int, std::string, std::uint32_t>, Threads> waits;
  for (int i = 0; i < static_cast<int>(group->fibers.size()); ++i) {
    const Wait& wait = group->waits[static_cast<std::size_t>(i)];
    if (group->ended[static_cast<std::size_t>(i)] != 0) continue;
    Threads& threads = waits[{i / kWarp, wait.what, wait.place}];
    if (threads.count++ == 0) threads.first = i % group->blocks.threads;
  }
  std::string text = "all threads wait:";
  const int warps = group->blocks.threads / kWarp;
  for (const auto& [key, threads] : waits) {
    const auto& [warp, what, place] = key;
    text += fmt::format("\n  block {} warp {}: {} threads from {} wait for {} {:#x}",
                        group->blocks.first + static_cast<unsigned>(warp / warps), warp % warps,
                        threads.count, threads.first, what, place);
  }
  return text;
}

}  // namespace

std::string run_fibers(const Blocks& blocks, const std::function<void()>& body,
                       Surroundings& surroundings) {
  Group g;
  g.blocks = blocks;
  g.fibers.resize(static_cast<std::size_t>(blocks.count * blocks.threads));
  g.body = &body;
  g.surroundings = &surroundings;
  group = &g;
  current_grid.x = blocks.grid;
  for (std::size_t i = 0; i < g.fibers.size(); ++i) prepare(g.fibers[i].start, stack_of(i));
  g.waits.resize(g.fibers.size());
  g.ended.resize(g.fibers.size());
  std::string deadlock;
  while (deadlock.empty()) {
    Turn round = run_round(false);
    if (!round.ran) round = run_round(true);
    if (!round.is_left && !round.ran) break;
    if (round.ran) {
      surroundings.after_round();
    } else if (!surroundings.when_all_wait()) {
      deadlock = describe_waits();
    }
  }
  group = nullptr;
  return deadlock;
}

void wait_until(const Wait& wait) {
  if (wait.counter != nullptr && !lasts(wait)) return;
  const int index = group->current;
  group->waits[static_cast<std::size_t>(index)] = wait;
  to_scheduler(running());
  make_current(index);
}

int fiber_index() { return group->current; }

void FiberBarrier::wait(int threads, const char* what, std::uint32_t place) {
  if (++arrived == threads) {
    arrived = 0;
    ++generation;
    return;
  }
  wait_until({&generation, generation + 1, what, place});
}

}  // namespace octile::emulation
