#include "generator/gemm/cost_roofline.h"

#include <algorithm>
#include <cmath>

#include "generator/gemm/cost_shape.h"

namespace octile::gemm_cost {
namespace {

constexpr double kPortBytes = 128;   // that an SM's shared memory moves in a cycle
constexpr int kSchedulers = 4;       // of an SM, each with one instruction a cycle
constexpr double kStageCycles = 60;  // of a warp: the barrier, scales and the stage's return
constexpr double kPairLatency = 60;  // of 16 columns' operands and sums, beside the products
// Bytes of D that an SM stores in a cycle: whole lines by TMA, or half sectors from registers.
constexpr double kStagedBytesPerCycle = 32;
constexpr double kDirectBytesPerCycle = 16;
constexpr double kExchangeBytesPerCycle = 16;  // partial sums to other SMs of a cluster
constexpr double kLatencyUs = 1;               // of a copy from memory to a stage
constexpr double kFirstCopiesUs = 1.5;         // barriers, descriptors and the first copies
constexpr double kExchangeUs = 0.5;            // a cluster's start, exchange and end

// Returns true if the stages have a scale of B for each column of a tile.
bool has_scales_of_columns(const GemmProblem& p) {
  return stages_scales_of_columns(scheme_of(p)) || p.b.granularity == Granularity::k1x32;
}

// The instructions of a warp for 16 columns of 16 rows in a K-block: products, and promotions of 8
// sums a thread, each an addition, or with a factor of each column a multiplication too. Scales of
// columns that the products multiply are read and shifted, twice for 16 columns.
double pair_instructions(const GemmConfig& c, const GemmProblem& p) {
  if (has_scales_inside(p)) return 8 + (has_scales_of_columns(p) ? 4 : 0);
  const double parts = has_long_sums(c.promote) ? 0 : parts_of_block(c.promote);
  const bool two_factors = has_scales_of_columns(p) || scheme_of(p) == Scheme::kMx;
  return 8 + parts * (two_factors ? 18 : 8);
}

// Returns the cycles of one K-block of one CTA if `sharing` CTAs share the SM: what takes longest
// of tensor cores, shared memory and the schedulers. Warps that have neither rows nor columns take
// no turn, but that does not make the others faster.
double block_cycles(const GemmConfig& c, const GemmProblem& p, double sharing,
                    const DeviceSpec& d) {
  const int across = warps_across(p, c);
  const double strips = std::max(c.block_m, 64) / 64.0 / c.consumer_warpgroups;  // of a warp
  const double warps = std::min(c.block_m / 16 * across, 4 * c.consumer_warpgroups);
  const double turns = std::ceil(warps / kSchedulers);
  const double columns = static_cast<double>(c.block_n) / across;  // of a warp
  const double pairs = columns / 16;
  const double of_warp = 2.0 * 16 * strips * columns * 128;
  const double tensor = turns * of_warp * kSchedulers / d.flops_per_cycle(c.unit);
  const double of_columns = has_scales_of_columns(p) ? 2 * strips * pairs : 0;
  const double operands = 128.0 * (c.block_m * (1 + across) + c.block_n + warps * columns);
  const double port = operands / kPortBytes + warps * of_columns;
  const double issue = turns * pairs * (strips * pair_instructions(c, p) + 4);
  // A warp that is alone on its scheduler waits for its operands and sums.
  const double of_pair = 2.0 * 16 * 16 * 128 * kSchedulers / d.flops_per_cycle(c.unit);
  const double chain = pairs * (strips * of_pair + kPairLatency);
  return std::max(sharing * std::max({tensor, port, issue}), chain) + kStageCycles;
}

// Returns the cycles that the end of a tile takes.
double tile_cycles(const GemmConfig& c, const GemmProblem& p) {
  const double elements = static_cast<double>(c.block_m) * c.block_n;
  const double bytes = elements * size_of(p.d.dtype) * (p.accumulate ? 2 : 1) / c.splits;
  const bool by_tma = c.store == EpilogueStore::kTma;
  const double exchange = c.splits > 1 ? 4 * elements / kExchangeBytesPerCycle : 0;
  return bytes / (by_tma ? kStagedBytesPerCycle : kDirectBytesPerCycle) + exchange;
}

// Returns the K-blocks by which products whose sums are in tensor memory may be ahead of consumers.
double blocks_ahead(const GemmConfig& c, double k_blocks) {
  if (c.promote == kPromoteNone) return c.in_flight * k_blocks;
  if (has_long_sums(c.promote)) return c.in_flight * c.promote / 128.0;
  return static_cast<double>(c.in_flight) / parts_of_block(c.promote);
}

// Returns the cycles of `waves` tiles of one CTA whose sums are in tensor memory. A product has 128
// rows at the tensor core's rate, or 64 at half of it. It reads its rows of A and all columns of B.
// Promotions take multiplications and additions of an SM. Products go on while consumers promote
// and store, until the slots are full. By one slot alone they and promotions take turns. Sums of
// all K are read once a tile. Scales that products multiply are written to shared memory and
// copied.
double tensor_memory_cycles(const GemmConfig& c, const GemmProblem& p, const DeviceSpec& d,
                            double waves, double k_blocks) {
  constexpr double kAddsPerCycle = 128;
  constexpr double kTurnLatency = 400;  // a commit, loads, an arrival and the issue; assumed
  constexpr double kScaleGroupBytes = 512;
  const double products = tensor_products(p, c), rows = rows_of_consumer(p, c);
  const double elements = products * rows * c.block_n;
  const double of_tensor_core = rows < 128 ? 2 : 1;
  const double tensor = of_tensor_core * 2 * elements * 128 / d.flops_per_cycle(c.unit);
  const ScaleGroups groups = tensor_scale_groups(p, c);
  const double of_scales = 2 * kScaleGroupBytes * (groups.of_a + groups.of_b);
  const double operands = 128 * (products * (rows + c.block_n) + c.block_m + c.block_n);
  const double port = (operands + of_scales) / kPortBytes;
  const double multiply = std::max(tensor, port) + kStageCycles;
  const bool sums_all = c.promote == kPromoteNone;
  const double times = sums_all ? 1 : k_blocks;  // that a consumer waits for sums of a tile
  const double parts = sums_all ? 1 : has_long_sums(c.promote) ? 0.25 : parts_of_block(c.promote);
  const double factors = has_scales_of_columns(p) && !has_scales_inside(p) ? 2 : 1;
  const double promote = times * (elements * parts * factors / kAddsPerCycle + kPairLatency);
  const double store = tile_cycles(c, p);
  const double hidden = std::min(store, blocks_ahead(c, k_blocks) * multiply);
  const bool take_turns = products * c.in_flight <= 1;
  const double turns = take_turns ? promote + (sums_all ? kTurnLatency : 0) : 0;
  const double of_tensor_cores = k_blocks * multiply + turns;
  return std::max(waves * (of_tensor_cores + store - hidden) + hidden, waves * (promote + store));
}

}  // namespace

GemmCost estimate_roofline(const GemmConfig& c, const GemmProblem& p, std::int64_t tokens,
                           const DeviceSpec& d) {
  const Shape s = tiled_shape(c, p, tokens);
  const Tiling t = tiling(c, s, d);
  const double sharing = ctas_on_sm(t, d), k_blocks = k_blocks_of(c, s);
  const double cycles =
      multiplies_by_warps(c)
          ? t.waves * (k_blocks * block_cycles(c, p, sharing, d) + sharing * tile_cycles(c, p))
          : tensor_memory_cycles(c, p, d, t.waves, k_blocks);
  const Elements elements = elements_of(p, tokens);
  const double of_d = size_of(p.d.dtype) * (p.accumulate ? 2 : 1) * elements.d;
  const double copied = t.ctas * k_blocks * 128 * (c.block_m + c.block_n);
  GemmCost cost;
  cost.compute_us = cycles / (d.clock_ghz * 1e3);
  cost.memory_us = (elements.operands + of_d) / (d.dram_tbps * 1e6);
  // A ring's copies come once in the latency of memory.
  const double copies_us = t.waves * k_blocks / c.stages * kLatencyUs;
  cost.l2_us = std::max((copied + of_d) / (d.l2_tbps * 1e6), copies_us);
  cost.fixed_us = d.launch_us + kFirstCopiesUs + (c.splits > 1 ? kExchangeUs * t.waves : 0);
  // The next kernel's start is hidden; over several waves its CTAs would take the place of this
  // one's.
  if (c.pdl_early && t.waves <= 1) cost.fixed_us -= d.launch_us;
  cost.total_us = std::max({cost.compute_us, cost.memory_us, cost.l2_us}) + cost.fixed_us;
  return cost;
}

}  // namespace octile::gemm_cost
