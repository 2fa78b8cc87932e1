// A stream of a given read:write mix: the ceiling that memory-bound kernels are compared with.
//
//   out[w] = xor of kReads / kWrites vectors of in,  for kReads bytes read per kWrites written;
//   where more is written than read, each vector of in in its turn
//
// Tile: kThreads * kUnroll * kReads vectors of 16 bytes in, contiguous, and as many times kWrites
// out. Thread t takes vector t of each row of kThreads vectors, so a warp moves 512 contiguous
// bytes an instruction; its loads are all issued before the first is used. One block a tile. The
// host rounds the buffers up to whole tiles: there are no tails.
//
// Ladder (one H200, 2:1 mix, 16384 x 7168 units, us): persistent blocks, 4 loads a thread,
// no_allocate 96.2; one tile a block, 2 loads a thread 89.6; the same with plain ld.global.nc 82.0
// (4.30 TB/s), the best of 108 variants of block size, unrolling, residency and cache hints.
#ifndef OCTILE_EMITTED
#include "lib/launch.cuh"
#include "lib/memory.cuh"
#include "lib/types.cuh"
#define OCTILE_KERNEL_NAME octile_bench_stream
namespace cfg {
constexpr int kThreads = 256;
constexpr int kReads = 2;
constexpr int kWrites = 1;
constexpr int kUnroll = 1;
}  // namespace cfg
#endif

namespace stream {
constexpr int kVectorBytes = 16;
constexpr int kIn = cfg::kReads * cfg::kUnroll;    // vectors a thread reads of a tile
constexpr int kOut = cfg::kWrites * cfg::kUnroll;  // and writes
constexpr i64 kRowBytes = cfg::kThreads * kVectorBytes;
constexpr i64 kTileInBytes = kIn * kRowBytes;
constexpr i64 kTileOutBytes = kOut * kRowBytes;
}  // namespace stream

extern "C" __global__ void __launch_bounds__(cfg::kThreads)
    OCTILE_KERNEL_NAME(const char* in, char* out, i64 tiles) {
  using namespace stream;
  wait_for_previous_kernel();
  const i64 tile = blockIdx.x;
  if (tile < tiles) {
    const char* source = in + tile * kTileInBytes + threadIdx.x * kVectorBytes;
    char* target = out + tile * kTileOutBytes + threadIdx.x * kVectorBytes;
    memory::Words4 v[kIn];
#pragma unroll
    for (int i = 0; i < kIn; ++i) v[i] = memory::load_16(source + i * kRowBytes);
#pragma unroll
    for (int i = 0; i < kOut; ++i) {
      uint4 sum = make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int j = i % kIn; j < kIn; j += kOut) {
        sum.x ^= v[j].word[0];
        sum.y ^= v[j].word[1];
        sum.z ^= v[j].word[2];
        sum.w ^= v[j].word[3];
      }
      *reinterpret_cast<uint4*>(target + i * kRowBytes) = sum;
    }
  }
}
