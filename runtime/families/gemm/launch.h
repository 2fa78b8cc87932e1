// Launching the kernel of templates/gemm.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "generator/core/error.h"
#include "runtime/engine/launch_kernel.h"
#include "runtime/families/gemm/arguments.h"
#include "runtime/families/gemm/resolve.h"

namespace octile {

// The kernel's parameters in order. They are passed one by one. The emitter states the size of each
// and every cubin is checked against that.
struct GemmParameters {
  CUtensorMap a_map;
  CUtensorMap b_map;
  CUtensorMap d_map;    // zero if D is not stored through TMA
  const void* scale_a;  // fp32 [ceil(k/128)][scale_a_ld]
  const void* scale_b;  // fp32 [ceil(n/128)][scale_b_ld]
  void* d;
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
};
constexpr int kGemmParameterCount = 15;

// Enqueues one GEMM. `args` were checked, with every leading dimension filled in; m, n > 0.
// Errors: kDeviceError.
Status launch(const LaunchSite& site, const ResolvedGemm& resolved, const GemmArguments& args);

}  // namespace octile
