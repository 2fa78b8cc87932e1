#include "tests/support/device_emulation.h"

#include <ucontext.h>

#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace octile::emulation {

Dim current_thread;
Dim current_block;
Dim current_grid;

namespace {

constexpr std::size_t kStackBytes = std::size_t{64} * 1024;
constexpr int kWarp = 32;

struct Barrier {
  int arrived = 0;
  int generation = 0;
};

// swapcontext() saves and restores the signal mask by system calls, which took four fifths of a
// test's time. A fiber therefore begins by setcontext(), and later control passes by _longjmp().
struct Fiber {
  ucontext_t start{};
  jmp_buf position{};  // of a fiber that waits
  bool started = false;
  bool done = false;
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Barrier> warp_barriers;
  std::vector<std::array<std::uint32_t, kWarp>> slots;
  Barrier barrier;
  jmp_buf scheduler{};
  const std::function<void()>* body = nullptr;
  bool progressed = false;
};

// The process runs one block at a time, because the templates' names (threadIdx, static shared
// memory) are also global.
Block* block = nullptr;

// Stacks are kept from block to block: fresh pages for every fiber would cost more than its work.
std::byte* stack_of(std::size_t thread) {
  static std::vector<std::unique_ptr<std::byte[]>> stacks;
  while (stacks.size() <= thread) {
    stacks.push_back(std::make_unique_for_overwrite<std::byte[]>(kStackBytes));
  }
  return stacks[thread].get();
}

// These are separate functions, because _setjmp() returns twice and would affect a caller's
// variables.
void to_scheduler(Block& b, Fiber& from) {
  if (_setjmp(from.position) == 0) _longjmp(b.scheduler, 1);
}

void to_fiber(Block& b, Fiber& fiber) {
  if (_setjmp(b.scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.position, 1);
  fiber.started = true;
  setcontext(&fiber.start);
}

void yield() {
  const unsigned self = current_thread.x;
  to_scheduler(*block, block->fibers[self]);
  current_thread.x = self;
}

void wait(Barrier& barrier, int threads) {
  block->progressed = true;
  const int generation = barrier.generation;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  while (barrier.generation == generation) yield();
}

void fiber_main() {
  (*block->body)();
  block->fibers[current_thread.x].done = true;
  block->progressed = true;
  yield();
}

// This is a separate function, because getcontext() may return twice and would affect a caller's
// variables.
void prepare(ucontext_t& context, std::byte* stack) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = kStackBytes;
  makecontext(&context, fiber_main, 0);
}

}  // namespace

void run_block(unsigned index, int threads, const std::function<void()>& body, unsigned blocks) {
  Block b;
  b.fibers.resize(static_cast<std::size_t>(threads));
  b.warp_barriers.resize(static_cast<std::size_t>(threads / kWarp));
  b.slots.resize(static_cast<std::size_t>(threads / kWarp));
  b.body = &body;
  block = &b;
  current_block.x = index;
  current_grid.x = blocks;
  for (std::size_t i = 0; i < b.fibers.size(); ++i) prepare(b.fibers[i].start, stack_of(i));
  for (bool running = true; running;) {
    running = false;
    b.progressed = false;
    for (std::size_t i = 0; i < b.fibers.size(); ++i) {
      if (b.fibers[i].done) continue;
      current_thread.x = static_cast<unsigned>(i);
      to_fiber(b, b.fibers[i]);
      running = running || !b.fibers[i].done;
    }
    if (running && !b.progressed) {
      std::fprintf(stderr, "block %u: threads wait at a barrier the others never reach\n", index);
      std::abort();
    }
  }
  block = nullptr;
}

WarpValues exchange(std::uint32_t value) {
  const unsigned lane = current_thread.x % kWarp;
  const std::size_t warp = current_thread.x / kWarp;
  block->slots[warp][lane] = value;
  wait(block->warp_barriers[warp], kWarp);
  return {block->slots[warp].data(), lane};
}

void release() { wait(block->warp_barriers[current_thread.x / kWarp], kWarp); }

void block_barrier() { wait(block->barrier, static_cast<int>(block->fibers.size())); }

}  // namespace octile::emulation

unsigned char* dynamic_memory() {
  alignas(128) static std::array<unsigned char, std::size_t{227} * 1024> memory;
  return memory.data();
}
