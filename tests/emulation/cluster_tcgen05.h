// tcgen05 of an emulated cluster: tensor memory, products that one thread issues, and the fences
// between threads. Its sums are exact if fp32 can hold every partial sum.
//
// A thread's products of one D and one shape are done in the order of their issue, others in any
// order, and a commit follows all products of its thread before it (PTX ISA 9.7.16.6.2). Accesses
// of two threads are in order by the patterns of 9.7.16.6.4 alone:
//   - A product's sums may be loaded, and its D taken by a product that is not in order with it, by
//     a thread that has waited for the mbarrier of a commit behind it and then fenced, or has heard
//     of it: from a thread that knew of it and fenced before both met, fencing behind the meeting.
//   - Sums that are loaded may be overwritten by a thread that has heard of the load: its thread
//     has waited for it and fenced before both met.
// Copies of scales to tensor memory (tcgen05.cp) are done before the products that their thread
// issues behind them, and in any order with everything else: whoever copies onto columns that an
// operation has used knows that it is done.
//
// Threads meet at named barriers, at __syncthreads and __syncwarp. One that arrives at an mbarrier
// of its block is met by those who wait for that phase. The cluster's barrier is relaxed and orders
// nothing. A thread that reads the address of tensor memory has met the one that took it.
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

// tcgen05.mma as the kernel issues it, with or without scales, or tcgen05.cp: of a copy, d is where
// it writes and a the low half of its descriptor.
struct TensorProduct {
  std::uint32_t d = 0, a = 0, b = 0, high = 0, instruction = 0;
  bool adds = false;
  enum class Kind { kPlain, kScaled, kCopy } kind = Kind::kPlain;
  std::uint32_t scales_a = 0, scales_b = 0;
  int issuer = 0;            // thread
  std::uint32_t number = 0;  // of its issuer's products and copies, from 1
  bool is_done = false;
};

// A thread's knowledge of each thread: its fence_before() up to this number, each behind loads that
// have come, and its products up to this number, which are done.
struct TensorKnowledge {
  std::vector<std::uint32_t> fences, products;
};

// The product or copy that wrote a cell last; number 0: none.
struct TensorWriter {
  std::uint32_t issuer = 0, number = 0;
};

// A thread's reading of some columns, until a product may overwrite them.
struct TensorRead {
  int thread = 0;
  std::uint32_t first = 0, last = 0;  // columns [first, last)
  bool has_come = false;
  std::uint32_t published = 0;  // the thread's fence that followed; 0: none yet
};

// The words of those who arrived at an mbarrier: in the phase that goes on, and in those before it.
struct TensorArrivals {
  std::uint32_t phase = 0;
  TensorKnowledge pending, completed;
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

  std::vector<float> cells;              // [lane][column], NaN
  std::vector<std::uint32_t> words;      // what copies wrote there
  std::vector<bool> are_words;           // of each cell: whether a copy wrote it last
  std::vector<TensorWriter> writers;     // of each cell
  std::uint32_t first = 0, columns = 0;  // that are taken; 0: none
  std::uint32_t place = 0;               // where the address of the first is
  std::uint32_t taker = 0, taken = 0;    // the thread that wrote it, and its fence then
  std::deque<TensorProduct> products;
  std::size_t left = 0;  // those before it are done
  std::map<std::size_t, TensorRead> reads;
  std::size_t next_read = 0;
  std::vector<std::vector<TensorLoad>> loads;  // of each thread, that it has not waited for
  std::vector<std::uint32_t> fences, issued;   // of each thread: fence_before(), products so far
  std::vector<std::uint32_t> block_meetings;   // of each thread: __syncthreads so far
  std::vector<std::uint32_t> warp_meetings;    // of each thread: __syncwarp so far
  // Each thread hears of others where it waits. Its next fence_after() makes it see that, and its
  // next fence_before() makes it say so to others.
  std::vector<TensorKnowledge> hears, sees, says;
  // By number and generation of a barrier: what those who have come say.
  std::map<std::pair<int, std::uint32_t>, TensorKnowledge> meetings;
  std::map<std::uint32_t, TensorArrivals> arrivals;  // by mbarrier
};

void tensor_allocate(std::uint32_t to, std::uint32_t columns);
void tensor_release(std::uint32_t address, std::uint32_t columns);
void tensor_fence_before();
void tensor_fence_after();
// At the mbarrier of each block of `ranks`, 0: of its own.
void tensor_commit(std::uint32_t barrier, std::uint32_t ranks = 0);
// A product or a copy.
void tensor_issue(const TensorProduct& product);
void tensor_load(float* to, int count, std::uint32_t address);
void tensor_wait_loads();
// Around the wait of a named barrier.
void tensor_meets(int barrier, std::uint32_t generation);
void tensor_has_met(int barrier, std::uint32_t generation);
// __syncthreads and __syncwarp.
void tensor_block_barrier();
void tensor_warp_barrier();
// Before a thread's arrival at an mbarrier.
void tensor_arrives(std::uint32_t barrier);
// Behind the wait for an mbarrier.
void tensor_has_waited(std::uint32_t barrier);
// Before a load of shared memory.
void tensor_reads_shared(std::uint32_t address);

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
// The same of kind::mxf8f6f4.
struct TensorScaledInstruction {
  std::uint32_t type_of_a = 0, type_of_b = 0, n = 0, m = 0;
  std::uint32_t byte_of_a = 0, byte_of_b = 0, type_of_scales = 0;
  std::uint32_t others = 0;
};
TensorScaledInstruction decode_scaled_instruction(std::uint32_t word);

}  // namespace octile::emulation
