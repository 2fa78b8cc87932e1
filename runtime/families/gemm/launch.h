// Launching the kernel of templates/gemm/hopper_1d2d.cu: its parameter list, tensor maps and grid.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "generator/core/error.h"
#include "generator/gemm/config.h"
#include "octile/octile.h"
#include "runtime/engine/launch_kernel.h"
#include "runtime/families/gemm/tile_order.h"

namespace octile {

// The kernel's parameters in order. They are passed one by one; the emitter states the size of each
// and every cubin is checked against that.
struct GemmParameters {
  CUtensorMap a_map;
  CUtensorMap b_map;
  CUtensorMap d_map;    // zero where D is not stored through TMA
  const void* scale_a;  // fp32 [ceil(k/128)][scale_a_ld]
  const void* scale_b;  // fp32 [ceil(n/128)][scale_b_ld]
  void* d;
  std::int64_t scale_a_ld;
  std::int64_t scale_b_ld;
  std::int64_t ldd;
  std::int32_t m;
  std::int32_t n;
  std::int32_t k;
  // Of B, before the kernel before this one has ended: loaded, or only asked into L2.
  std::int32_t early_stages;
  std::int32_t prefetched_stages;
  TileOrder order;
};
constexpr int kGemmParameterCount = 15;

// What is the same in every launch of one kernel on one device.
struct GemmLaunch {
  KernelHandle kernel;
  std::int64_t cluster_rows = 0, cluster_cols = 0;  // of D, that a cluster works on at once
  Raster raster;
  int a_box_rows = 0, b_box_rows = 0, d_box_rows = 0, d_box_cols = 0;
  bool a_is_shared = false;  // by a cluster, in slices
  bool tma_store = false;
  int tail_cols = 0;  // of the tiles that even out the last round
  int cluster = 1;
  // Of B, asked for before the kernel before has ended.
  int early_stages = 0;
  int max_blocks = 0;  // resident at once, a whole number of clusters
  int threads = 0;
  int smem_bytes = 0;
};
GemmLaunch gemm_launch(const GemmConfig& config, int sm_count, const KernelHandle& kernel);

// `args` were validated, every leading dimension is filled in and m, n, k > 0. Errors:
// kDeviceError.
Status launch_gemm(const LaunchSite& site, const GemmLaunch& launch, std::int64_t n, std::int64_t k,
                   const octile_gemm_args& args);

}  // namespace octile
