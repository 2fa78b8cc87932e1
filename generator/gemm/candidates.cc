#include "generator/gemm/candidates.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "generator/gemm/axes.h"
#include "generator/gemm/constraints.h"

namespace octile {
namespace {

// ---- axes that are derived, and rasters beside the enumerated ones

// Rasters beside the usual one. Bands of columns are made equally wide (even_columns).
constexpr std::array kRasters{Raster{8, false}, Raster{16, false}, Raster{1, false},
                              Raster{8, true},  Raster{12, true},  Raster{16, true}};

// Returns the stages of the deepest ring that fits. More bytes in flight cost nothing but shared
// memory.
int deepest_ring(const GemmProblem& problem, GemmConfig c, const DeviceSpec& device) {
  c.stages = 1;
  const int one = resources_of(problem, c, device).smem.total_bytes;
  c.stages = 2;
  const int stage = resources_of(problem, c, device).smem.total_bytes - one;
  return std::clamp(1 + (smem_limit(c, device) - one) / stage, 1, kMostStages);
}

// Returns the stages of the ring: the deepest, but an even number up to 128 rows, if a pass has one
// or two K-blocks. Memory is the limit there. On an H100, 64x13312x16384 takes 3 to 5 % longer with
// 5, 7 and 9 stages of a 64x112 tile than with 6 and 8; with four K-blocks a pass the number has no
// effect. Weight gradients whose scales the tensor core multiplies take 1.4 % longer with 5 than
// with 4.
int stages_of(const GemmProblem& problem, const GemmConfig& c, std::int64_t tokens,
              const DeviceSpec& device) {
  constexpr std::int64_t kFewRows = 128;
  constexpr int kLeastEven = 4;
  const int deepest = deepest_ring(problem, c, device);
  const bool few_rows =
      tokens != kDynamic && !has_several_gemms(problem) && m_at(problem, tokens) <= kFewRows;
  const bool even = (few_rows && c.unroll <= 2) || c.mma_factors;
  return even && deepest > kLeastEven ? deepest / 2 * 2 : deepest;
}

// Returns the slots of sums in tensor memory: as many as fit beside the stages' scales, four at
// most. With two of them products and promotions overlap, and with more the products of the next
// tile go on for longer while one is stored.
int slots_of(const GemmProblem& problem, GemmConfig c) {
  for (c.in_flight = kMostSlots; c.in_flight > 1; c.in_flight /= 2) {
    if (tensor_columns(problem, c) <= kTensorColumns) break;
  }
  return c.in_flight;
}

// Returns bands of about `about` columns that are all equally wide.
Raster even_columns(int about, std::int64_t tiles_n) {
  const std::int64_t bands = std::max<std::int64_t>((tiles_n + about / 2) / about, 1);
  return {static_cast<int>(ceil_div(tiles_n, bands)), true};
}

// Returns one raster for all that describe the same walk. A band is at most as wide as D, and bands
// of one tile are a single band of the other kind.
Raster canonical_walk(Raster raster, std::int64_t tiles_m, std::int64_t tiles_n) {
  const std::int64_t across = raster.of_columns ? tiles_n : tiles_m;
  const std::int64_t along = raster.of_columns ? tiles_m : tiles_n;
  if (raster.band == 1) return {static_cast<int>(along), !raster.of_columns};
  return {static_cast<int>(std::min<std::int64_t>(raster.band, across)), raster.of_columns};
}

// Walks the loops of the axes (axes.h), the last of them fastest, and checks each constraint as
// soon as the fields that it reads are set.
class Enumeration {
 public:
  Enumeration(const GemmSetting& setting, MatrixUnit unit)
      : setting_(setting), census_(gemm_constraints()) {
    config_.promote = setting.problem.promote;
    config_.unit = unit;
    config_.copies = setting.device.has_tma ? Copies::kTma : Copies::kCpAsync;
    for (const GemmAxis& axis : gemm_axes()) {
      const auto loop = static_cast<std::size_t>(axis.loop);
      const bool is_fixed = (axis.of_wgmma && unit != MatrixUnit::kWgmma) ||
                            (axis.has_constant != nullptr && !axis.has_constant(setting.problem));
      if (loop == 0 || is_fixed) continue;
      loops_.resize(std::max(loops_.size(), loop));
      loops_[loop - 1].push_back(&axis);
    }
    std::erase_if(loops_, [](const auto& axes) { return axes.empty(); });
    for (std::size_t i = kTileLoops; i < loops_.size(); ++i) configs_of_tile_ *= steps(i);
  }

  GemmCandidates run() && {
    walk(0);
    return std::move(census_).result();
  }

 private:
  using Rules = std::span<const GemmConstraint>;

  std::size_t steps(std::size_t loop) const { return loops_[loop].front()->values.size(); }

  void walk(std::size_t loop) {
    if (loop == kTileLoops) {
      if (const GemmConstraint* refusal = refusal_by(rules_.of_tiles)) {
        census_.remove(*refusal, configs_of_tile_);
        return;
      }
    }
    if (loop == loops_.size()) {
      try_config();
      return;
    }
    for (std::size_t i = 0; i < steps(loop); ++i) {
      for (const GemmAxis* axis : loops_[loop]) axis->member.set(config_, axis->values[i]);
      walk(loop + 1);
    }
  }

  void try_config() {
    if (config_.unit == MatrixUnit::kTcgen05) {
      config_.in_flight = 1;
      config_.stages = stages_of(setting_.problem, config_, setting_.tokens, setting_.device);
      config_.in_flight = slots_of(setting_.problem, config_);
    }
    const GemmConstraint* refusal = refusal_by(rules_.of_configs);
    if (refusal == nullptr) {
      config_.raster = usual_raster(config_, setting_.problem.n);
      config_.stages = stages_of(setting_.problem, config_, setting_.tokens, setting_.device);
      refusal = refusal_by(rules_.of_rings);
    }
    if (refusal == nullptr) {
      census_.admit(config_);
    } else {
      census_.remove(*refusal);
    }
  }

  const GemmConstraint* refusal_by(Rules rules) const {
    return first_refusal(rules, config_, setting_);
  }

  GemmSetting setting_;
  const GemmRules rules_ = gemm_rules();
  std::vector<std::vector<const GemmAxis*>> loops_;  // the axes of each
  std::size_t configs_of_tile_ = 1;                  // configurations of a tile and its consumers
  Census<GemmProblem, GemmConfig> census_;
  GemmConfig config_;
};

// Adds the candidates of another matrix unit.
void add(GemmCandidates& all, const GemmCandidates& more) {
  all.admitted.insert(all.admitted.end(), more.admitted.begin(), more.admitted.end());
  all.enumerated += more.enumerated;
  for (std::size_t i = 0; i < more.removed.size(); ++i)
    all.removed[i].count += more.removed[i].count;
}

}  // namespace

std::vector<MatrixUnit> units_to_enumerate(const DeviceSpec& device) {
  if (device.has_unit(MatrixUnit::kWgmma)) return {MatrixUnit::kWgmma};
  std::vector<MatrixUnit> units;
  std::ranges::copy_if(device.units, std::back_inserter(units),
                       [&](MatrixUnit unit) { return !device.is_unused(unit); });
  // Whatever they are, the constraints say why there is no kernel.
  if (units.empty()) units.push_back(MatrixUnit::kWgmma);
  return units;
}

GemmCandidates candidates(const GemmProblem& problem, std::int64_t tokens,
                          const DeviceSpec& device) {
  const std::vector<MatrixUnit> units = units_to_enumerate(device);
  GemmCandidates all = Enumeration({problem, tokens, device}, units.front()).run();
  for (std::size_t i = 1; i < units.size(); ++i) {
    // Units keep sums in different precisions: an invariant problem has one at every token count.
    if (problem.invariant && !all.admitted.empty()) break;
    add(all, Enumeration({problem, tokens, device}, units[i]).run());
  }
  return all;
}

Raster usual_raster(const GemmConfig& c, std::int64_t n) {
  const bool rows_weigh_more = c.block_m > 128 && c.block_m > c.block_n;
  if (!rows_weigh_more || c.cluster_m * c.cluster_n > 1) return {};
  return even_columns(16, ceil_div(n, c.block_n));
}

std::vector<Raster> other_rasters(const GemmConfig& c, const GemmProblem& problem,
                                  std::int64_t tokens) {
  const std::int64_t m = m_at(problem, tokens);
  const std::int64_t tiles_m = ceil_div(m, std::int64_t{c.block_m} * c.cluster_m);
  const std::int64_t tiles_n = ceil_div(problem.n, std::int64_t{c.block_n} * c.cluster_n);
  std::vector<Raster> known{canonical_walk(c.raster, tiles_m, tiles_n)}, others;
  if (std::min(tiles_m, tiles_n) <= 1) return others;
  for (const Raster& raster : kRasters) {
    const Raster other = raster.of_columns ? even_columns(raster.band, tiles_n) : raster;
    const Raster walk = canonical_walk(other, tiles_m, tiles_n);
    if (std::ranges::find(known, walk) != known.end()) continue;
    known.push_back(walk);
    others.push_back(other);
  }
  return others;
}

std::vector<GemmConfig> variants(const GemmConfig& config, const GemmProblem& problem,
                                 std::int64_t tokens) {
  std::vector<GemmConfig> all;
  for (const Raster& raster : other_rasters(config, problem, tokens)) {
    all.push_back(config);
    all.back().raster = raster;
  }
  return all;
}

}  // namespace octile
