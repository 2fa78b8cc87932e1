// The facts for a GEMM kernel's launches, resolved once when the kernel is prepared.
#pragma once

#include <cstdint>

#include "generator/core/device_spec.h"
#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"
#include "runtime/families/gemm/tile_order.h"
#include "runtime/launch/kernel_registry.h"
#include "runtime/reference/gemm/call.h"

namespace octile {

// The part of a launch that depends on the extents.
struct GemmWork {
  int a_box_rows = 0;  // rows of A that one TMA copy loads
  TileOrder order{};
  std::int64_t blocks = 0;  // CTAs
};

// The part of a launch that a problem, a configuration and a device determine.
struct ResolvedGemm {
  GemmProblem problem;
  GemmConfig config;
  KernelHandle kernel;
  int threads = 0;
  int smem_bytes = 0;
  int cluster = 1;  // CTAs of a cluster
  int sm_count = 0;
  // Tiles of D.
  std::int64_t cluster_rows = 0, cluster_cols = 0;  // what a cluster works on at once
  Raster raster;
  int tail_cols = 0;  // columns of the tiles that even out the last round; 0: there are none
  // Boxes of the tensor maps.
  int a_box_rows = 0, b_box_rows = 0, d_box_rows = 0, d_box_cols = 0;
  bool a_is_shared = false;  // a cluster loads A in slices
  bool tma_store = false;
  // Stages of B that are loaded or prefetched before the preceding kernel has ended.
  int early_stages = 0;

  // Returns the other part, for a call of this shape on at most `sm_limit` SMs (0: all); m, n > 0.
  GemmWork at(const GemmShape& shape, int sm_limit = 0) const;
  std::int64_t workspace_bytes(std::int64_t /*tokens*/) const { return 0; }
};

inline std::int64_t workspace_bytes(const GemmProblem&, const DeviceSpec&,
                                    std::int64_t /*tokens*/) {
  return 0;
}

ResolvedGemm resolve(const GemmProblem& problem, const GemmConfig& config, const DeviceSpec& device,
                     const LoadedKernel& loaded);

}  // namespace octile
