// The default configuration of a quantise kernel: large tiles while there are enough of them to
// keep every SM's loads in flight, smaller ones where a small tensor would leave SMs idle.
#include "generator/cost_model.h"

namespace octile {
namespace {

// Resident warps an SM should find in the whole launch: 16 warps with 2 KB each are the 33 KB in
// flight that 4.3 TB/s over 132 SMs at about 1 us of loaded latency need.
constexpr std::int64_t kWarpsPerSm = 16;
constexpr int kWarp = 32;

QuantizeConfig rowwise_config(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& d) {
  QuantizeConfig c;
  c.tile_cols = kWarp * 16 / size_of(p.x);  // one load of a warp
  c.tile_rows = 8;  // 8 loads of a thread in flight; 8 scales are one 32-byte sector
  // Two warps a block: slots are refilled as soon as a warp pair is done. On an H200 1 % faster at
  // 32768x4096 than blocks of 8 warps, equal elsewhere.
  c.threads = 64;
  // Four elements a vector leave fp32 more addresses per element: 64 registers would spill.
  c.blocks_per_sm = p.x == DType::kFP32 ? 12 : 16;
  if (rows == kDynamic) return c;
  const auto warps = [&] { return ceil_div(rows, c.tile_rows) * ceil_div(p.cols, c.tile_cols); };
  while (c.tile_rows > 1 && warps() < kWarpsPerSm * d.sm_count) c.tile_rows /= 2;
  if (c.tile_rows < 8) {
    // The unit of scheduling shrinks with the tile, so that the warps spread over the SMs.
    c.threads = 128;
    c.blocks_per_sm = 8;
  }
  return c;
}

QuantizeConfig blockwise_config(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& d) {
  QuantizeConfig c;
  c.tile_rows = 128;
  c.tile_cols = 128;
  c.threads = 128 * size_of(p.x);  // 8 loads of a thread in flight, whatever the element
  // Measured on an H200 for bf16: 80 registers and 3 blocks beat 64 and 4 by 1 %.
  c.blocks_per_sm = p.x == DType::kFP32 ? 2 : 3;
  const std::int64_t tiles = ceil_div(rows, 128) * ceil_div(p.cols, 128);
  if (rows != kDynamic && tiles <= d.sm_count) {
    // One tile an SM at most: more threads with fewer loads each finish it sooner. For bf16, 1024
    // threads lose that again at the barrier (measured on an H200).
    c.threads = 256 * size_of(p.x);
    c.blocks_per_sm = 1024 / c.threads;
  }
  return c;
}

}  // namespace

QuantizeConfig default_config(const QuantizeProblem& problem, std::int64_t rows,
                              const DeviceSpec& device) {
  return problem.q.granularity == Granularity::k128x128 ? blockwise_config(problem, rows, device)
                                                        : rowwise_config(problem, rows, device);
}

}  // namespace octile
