// A consumer thread's operands for WGMMA: descriptors of shared memory.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/registers.cuh"
#endif

namespace gemm {

struct Operands {
  u32 a, b;  // stage 0: the warpgroup's first row of A, the tile of B

  __device__ __forceinline__ Operands(const SharedMemory& smem, int index, int, int, int)
      : a(wgmma::descriptor(smem.a(0) + index * kRowsPerConsumer * 128)),
        // The shuffle keeps the compiler from deriving it again before every WGMMA group.
        b(__shfl_sync(0xffffffffu, wgmma::descriptor(smem.b(0)), 0)) {}
};

}  // namespace gemm
