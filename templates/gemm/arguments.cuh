// The kernel's only argument, passed by value. The host fills the same struct, GemmKernelArgs
// (runtime/families/gemm/launch.h), whose offsets must be equal.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/walk/scheduler.cuh"
#include "lib/types.cuh"
#endif

namespace gemm {

// The strides between the matrices of a batch.
struct Batch {
  i64 scale_a, scale_b;  // from the scales of one matrix to those of the next
  i64 d_bytes;           // from one D to the next
};

struct alignas(128) Arguments {
  TensorMap a_map;
  TensorMap b_map;
  TensorMap d_map;  // unused if D is not stored through TMA
  const float* scale_a;
  const float* scale_b;
  void* d;
  const void* bias;
  u32* sentry;
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
  int groups;  // or the GEMMs of a batch
  // The offsets or counts of groups, on the device, and the tokens that their K holds.
  const int* group_rows;
  int tokens;
  float* d_scale;  // [ceil(n/128)][scale_d_ld], m contiguous, if D is FP8
  i64 scale_d_ld;
  Batch batch;
};
// The host asserts the offsets of its twin; these sizes and the order above give the same ones.
static_assert(sizeof(TensorMap) == 128 && sizeof(TileOrder) == 32 && sizeof(Batch) == 24 &&
                  sizeof(Arguments) == 640,
              "the host's GemmKernelArgs has these sizes");

}  // namespace gemm
