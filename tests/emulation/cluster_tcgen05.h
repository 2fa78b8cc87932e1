// tcgen05 of an emulated cluster: tensor memory, products that one thread issues, and the fences
// between threads. Its sums are exact if fp32 can hold every partial sum.
//
// Products of one D are done in the order of their issue, those of others in any order, and a
// commit follows all products before it. A product that overwrites sums which a thread has not
// finished reading is a fault unless that thread has waited for its loads, fenced and met the
// issuing thread, which fenced then. A load of sums that were written since the thread's last fence
// is a fault.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

namespace octile::emulation {

constexpr int kTensorLanes = 128;
constexpr int kTensorWidth = 512;  // columns

// tcgen05.mma as the kernel issues it.
struct TensorProduct {
  std::uint32_t d = 0, a = 0, b = 0, high = 0, instruction = 0;
  bool adds = false;
  int issuer = 0;  // thread
  bool is_done = false;
};

// A thread's reading of some columns, until a product may overwrite them.
struct TensorRead {
  int thread = 0;
  std::uint32_t first = 0, last = 0;  // columns [first, last)
  bool has_come = false;
  std::uint32_t published = 0;  // the thread's fence that followed; 0: none yet
};

struct TensorLoad {
  float* to = nullptr;
  int count = 0;
  std::uint32_t address = 0;
  std::size_t read = 0;  // number of its TensorRead
};

// The tensor memory of a block's SM, and the knowledge of its threads.
struct TensorMemory {
  explicit TensorMemory(int threads);

  std::vector<float> cells;          // [lane][column], NaN
  std::vector<std::uint32_t> times;  // of each cell: when it was written
  std::uint32_t clock = 0;
  std::uint32_t first = 0, columns = 0;  // that are taken; 0: none
  std::deque<TensorProduct> products;
  std::map<std::size_t, TensorRead> reads;
  std::size_t next_read = 0;
  std::vector<std::vector<TensorLoad>> loads;  // of each thread, that it has not waited for
  std::vector<std::uint32_t> fences;           // of each thread: fence_before() so far
  std::vector<std::uint32_t> fence_times;      // of each thread: clock at fence_after()
  std::vector<std::vector<std::uint32_t>> knows, sees;  // fences of others; the same once fenced
  // By number and generation of a named barrier: what those who have come know.
  std::map<std::pair<int, std::uint32_t>, std::vector<std::uint32_t>> meetings;
};

void tensor_allocate(std::uint32_t to, std::uint32_t columns);
void tensor_release(std::uint32_t address, std::uint32_t columns);
void tensor_fence_before();
void tensor_fence_after();
void tensor_commit(std::uint32_t barrier);
void tensor_multiply(const TensorProduct& product);
void tensor_load(float* to, int count, std::uint32_t address);
void tensor_wait_loads();
// Around the wait of a named barrier.
void tensor_meets(int barrier, std::uint32_t generation);
void tensor_has_met(int barrier, std::uint32_t generation);

// The fields of a descriptor and of an instruction's word, as PTX ISA tells them apart.
struct TensorDescriptor {
  std::uint32_t address = 0, leading = 0, stride = 0, version = 0, base_offset = 0, swizzle = 0;
  std::uint32_t others = 0;  // bits that have to be 0
};
TensorDescriptor decode_descriptor(std::uint32_t low, std::uint32_t high);
struct TensorInstruction {
  std::uint32_t sums = 0, type_of_a = 0, type_of_b = 0, n = 0, m = 0;
  std::uint32_t others = 0;  // bits that have to be 0: sparse, saturating, negating, transposing
};
TensorInstruction decode_instruction(std::uint32_t word);

}  // namespace octile::emulation
