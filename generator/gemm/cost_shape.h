// Counts for estimates of a GEMM's time with any matrix unit: its extents, its tiles over the CTAs
// that are resident, and its elements.
#pragma once

#include <cstdint>

#include "generator/core/device_spec.h"
#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"

namespace octile::gemm_cost {

// The dimensions of a GEMM at a token count. Those of groups or of a batch are one GEMM with as
// many tiles, and a sum over a batch is one with all of its K.
struct Shape {
  std::int64_t m, n, k;
};
Shape tiled_shape(const GemmConfig&, const GemmProblem&, std::int64_t tokens);

struct Tiling {
  double waves = 0;   // rounds of the clusters that are resident at once
  double filled = 1;  // share of the slots of several rounds that would have work without splits
  double ctas = 0;    // CTAs of all tiles
  double ctas_at_once = 0;
};
Tiling tiling(const GemmConfig&, const Shape&, const DeviceSpec&);
// Returns the CTAs that share an SM.
double ctas_on_sm(const Tiling&, const DeviceSpec&);

// Returns the elements of both operands and of D. Rows and columns that only fill up tiles are
// neither read nor written, and a contiguous group without rows does not read its B.
struct Elements {
  double operands, d;
};
Elements elements_of(const GemmProblem&, std::int64_t tokens);

// Returns the K-blocks of a CTA's tile.
double k_blocks_of(const GemmConfig&, const Shape&);

// Returns true if D's old values are read and its sums written in fp32.
constexpr bool adds_fp32(const GemmProblem& p) { return p.accumulate && p.d.dtype == DType::kFP32; }

}  // namespace octile::gemm_cost
