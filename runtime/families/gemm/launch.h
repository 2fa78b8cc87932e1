// Launching the kernel of templates/gemm/kernel.cu.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "generator/core/error.h"
#include "generator/gemm/config.h"
#include "runtime/families/gemm/resolve.h"
#include "runtime/launch/launch_kernel.h"
#include "runtime/reference/gemm/call.h"

namespace octile {

// It replaces an operand's tensor map if cp.async copies the operand: the twin of tma::PlainMap
// (templates/gemm/copies_cp_async.cuh). Rows and columns are those that exist; the matrices of a
// batch lie matrix_bytes apart.
struct GemmPlainMap {
  std::uint64_t base;
  std::int64_t row_bytes, matrix_bytes;
  std::int32_t rows, columns, box_rows;
};
static_assert(sizeof(GemmPlainMap) == 40 && offsetof(GemmPlainMap, rows) == 24);

// An operand as a kernel's copies find it: `plain` of kernels that copy by cp.async.
union GemmOperandMap {
  CUtensorMap tma;
  GemmPlainMap plain;
};
static_assert(sizeof(GemmOperandMap) == sizeof(CUtensorMap));

// The strides between the matrices of a batch: the twin of gemm::Batch.
struct GemmKernelBatch {
  std::int64_t scale_a, scale_b;
  std::int64_t d_bytes;
};

// The kernel's only argument, passed by value: the twin of gemm::Arguments
// (templates/gemm/arguments.cuh), with the same order and offsets.
struct alignas(128) GemmKernelArgs {
  GemmOperandMap a_map;
  GemmOperandMap b_map;
  CUtensorMap d_map;  // zero if D is not stored through TMA
  // fp32 [ceil(k/128)][scale_a_ld]; per row [m]; per tensor [1]; of MX bytes [m][scale_a_ld]
  const void* scale_a;
  // fp32 [ceil(n/128)][scale_b_ld] or, of 1x128 B, [ceil(k/128)][scale_b_ld]; per row [n]; per
  // tensor [1]; of MX bytes [n][scale_b_ld] or [ceil(n/32)][scale_b_ld]
  const void* scale_b;
  void* d;
  const void* bias;       // [n], if the problem has one
  std::uint32_t* sentry;  // if the problem has one
  std::int64_t scale_a_ld;
  std::int64_t scale_b_ld;
  std::int64_t ldd;
  std::int32_t m;
  std::int32_t n;
  std::int32_t k;
  // Stages of B that are loaded, or only prefetched into L2, before the preceding kernel has ended.
  std::int32_t early_stages;
  std::int32_t prefetched_stages;
  TileOrder order;
  std::int32_t groups;
  const std::int32_t* group_rows;  // offsets or counts, on the device
  std::int32_t tokens;             // that K of groups holds
  float* d_scale;                  // fp32 [ceil(n/128)][scale_d_ld], if D is FP8
  std::int64_t scale_d_ld;
  GemmKernelBatch batch;
};
static_assert(sizeof(GemmKernelArgs) == kGemmArgumentBytes);
static_assert(offsetof(GemmKernelArgs, b_map) == 128 && offsetof(GemmKernelArgs, d_map) == 256 &&
              offsetof(GemmKernelArgs, scale_a) == 384 && offsetof(GemmKernelArgs, d) == 400 &&
              offsetof(GemmKernelArgs, bias) == 408 && offsetof(GemmKernelArgs, sentry) == 416 &&
              offsetof(GemmKernelArgs, scale_a_ld) == 424 && offsetof(GemmKernelArgs, m) == 448 &&
              offsetof(GemmKernelArgs, early_stages) == 460 &&
              offsetof(GemmKernelArgs, order) == 468 && offsetof(GemmKernelArgs, groups) == 500 &&
              offsetof(GemmKernelArgs, group_rows) == 504 &&
              offsetof(GemmKernelArgs, tokens) == 512 && offsetof(GemmKernelArgs, d_scale) == 520 &&
              offsetof(GemmKernelArgs, batch) == 536 && sizeof(GemmKernelBatch) == 24);

// Enqueues a call that has work: one GEMM, or those of all groups or of a batch. Errors:
// kDeviceError.
Status enqueue(const LaunchSite& site, const ResolvedGemm& resolved, const GemmCall& call);

}  // namespace octile
