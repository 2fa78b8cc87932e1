// A stream that reads kReads bytes for each kWrites bytes it writes. Its bandwidth is the ceiling
// that memory-bound kernels are compared with.
//
//   out[w] = xor of kReads / kWrites vectors of in; if more is written than read, the vectors of in
//   in turn
//
// A tile is kThreads * kUnroll * kReads contiguous vectors of 16 bytes of `in`, and kThreads *
// kUnroll * kWrites of `out`. Thread t takes vector t of each row of kThreads vectors, so a warp
// moves 512 contiguous bytes an instruction. All its loads are issued before the first is used.
// Each block works on one tile. The host rounds the buffers up to whole tiles.
//
// One tile a block, two loads a thread and plain ld.global.nc are the fastest of 108 variants of
// block size, unrolling, residency and cache hints: 82.0 us (4.30 TB/s) on an H200, for 16384 x
// 7168 units read twice and written once. With no_allocate it takes 89.6 us; persistent blocks with
// four loads a thread and no_allocate take 96.2 us.
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
constexpr int kIn = cfg::kReads * cfg::kUnroll;    // vectors of a tile that a thread reads
constexpr int kOut = cfg::kWrites * cfg::kUnroll;  // vectors of a tile that a thread writes
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
