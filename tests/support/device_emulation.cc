#include "tests/support/device_emulation.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/fibers.h"

namespace octile::emulation {

Dim current_thread;
Dim current_block;
Dim current_grid;
Wait preceding_kernel;

namespace {

// The state by which the threads of a group of blocks talk to each other.
struct Exchanges {
  explicit Exchanges(const Blocks& b)
      : blocks(b),
        warps(static_cast<std::size_t>(b.count * b.threads / kWarp)),
        slots(warps.size()),
        whole(static_cast<std::size_t>(b.count)) {}
  Blocks blocks;
  std::vector<FiberBarrier> warps;
  std::vector<std::array<std::uint32_t, kWarp>> slots;
  std::vector<FiberBarrier> whole;  // one a block
};

Exchanges* exchanges = nullptr;

std::size_t current_warp() { return static_cast<std::size_t>(fiber_index() / kWarp); }

}  // namespace

std::string run_blocks_together(const Blocks& blocks, const std::function<void()>& body,
                                Surroundings& surroundings) {
  Exchanges e(blocks);
  exchanges = &e;
  std::string deadlock = run_fibers(blocks, body, surroundings);
  exchanges = nullptr;
  return deadlock;
}

void run_block(unsigned index, int threads, const std::function<void()>& body, unsigned blocks) {
  Surroundings none;
  const std::string deadlock = run_blocks_together({index, 1, threads, blocks}, body, none);
  if (deadlock.empty()) return;
  std::fprintf(stderr, "%s\n", deadlock.c_str());
  std::abort();
}

WarpValues exchange(std::uint32_t value) {
  const unsigned lane = current_thread.x % kWarp;
  const std::size_t warp = current_warp();
  exchanges->slots[warp][lane] = value;
  exchanges->warps[warp].wait(kWarp, "the lanes of its warp");
  return {exchanges->slots[warp].data(), lane};
}

void release() { exchanges->warps[current_warp()].wait(kWarp, "the lanes of its warp"); }

void block_barrier() {
  const int threads = exchanges->blocks.threads;
  exchanges->whole[static_cast<std::size_t>(fiber_index() / threads)].wait(threads,
                                                                           "__syncthreads");
}

void wait_for_preceding_kernel() {
  if (preceding_kernel.counter != nullptr) wait_until(preceding_kernel);
}

}  // namespace octile::emulation

unsigned char* dynamic_memory() {
  alignas(128) static std::array<unsigned char, std::size_t{227} * 1024> memory;
  return memory.data();
}
