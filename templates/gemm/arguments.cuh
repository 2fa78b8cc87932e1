// The kernel's only argument, passed by value. The host fills its twin, GemmKernelArgs
// (runtime/families/gemm/launch.h), whose offsets must be the same.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/walk/scheduler.cuh"
#include "lib/types.cuh"
#endif

namespace gemm {

struct Arguments {
  TensorMap a_map;
  TensorMap b_map;
  TensorMap d_map;  // unused without kTmaStore
  const float* scale_a;
  const float* scale_b;
  void* d;
  i64 scale_a_ld;
  i64 scale_b_ld;
  i64 ldd;
  int m;
  int n;
  int k;
  // Stages of B that are loaded, or prefetched into L2, before the preceding kernel has ended.
  int early_stages;
  int prefetched_stages;
  TileOrder order;
};
static_assert(__builtin_offsetof(Arguments, scale_a) == 384 &&
                  __builtin_offsetof(Arguments, scale_a_ld) == 408 &&
                  __builtin_offsetof(Arguments, m) == 432 &&
                  __builtin_offsetof(Arguments, order) == 452,
              "the host's GemmKernelArgs has these offsets");

}  // namespace gemm
