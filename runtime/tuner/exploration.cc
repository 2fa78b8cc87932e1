#include "runtime/tuner/exploration.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "generator/gemm/cost.h"
#include "generator/quantize/candidates.h"
#include "runtime/families/gemm/operands.h"
#include "runtime/families/quantize/operands.h"

namespace octile::tuner {
namespace {

// What the search space of either family is told as.
template <typename Candidates, typename Constraints>
Exploration exploration_of(const Candidates& candidates, const Constraints& constraints,
                           std::vector<Ranked> shortlist) {
  Exploration exploration;
  exploration.enumerated = candidates.enumerated;
  exploration.admitted = candidates.admitted.size();
  exploration.shortlist = std::move(shortlist);
  // Counted in the table's order.
  for (std::size_t i = 0; i < candidates.removed.size(); ++i)
    exploration.removed.push_back(
        {constraints[i].name, constraints[i].reason, candidates.removed[i].second});
  return exploration;
}

Exploration explore(const GemmProblem& problem, std::int64_t tokens, const DeviceSpec& device,
                    const ShortlistOptions& options) {
  const GemmCandidates candidates = gemm_candidates(problem, device);
  Exploration exploration =
      exploration_of(candidates, gemm_constraints(),
                     shortlist(rank(problem, tokens, device, candidates),
                               default_config(problem, tokens, device), options));
  for (std::size_t i = 0; i < exploration.shortlist.size(); ++i) {
    Ranked variant = exploration.shortlist[i];
    variant.variant_of = static_cast<int>(i);
    auto& config = std::get<GemmConfig>(variant.config);
    for (const Raster& raster : other_rasters(GemmConfig(config), problem, tokens)) {
      config.raster = raster;
      exploration.variants.push_back(variant);
    }
  }
  return exploration;
}

Exploration explore(const QuantizeProblem& problem, std::int64_t rows, const DeviceSpec& device,
                    const ShortlistOptions& options) {
  const QuantizeSetting setting{problem, rows, device};
  const QuantizeCandidates candidates = quantize_candidates(setting);
  return exploration_of(
      candidates, quantize_constraints(),
      shortlist(rank(setting, candidates), default_config(problem, rows, device), options));
}

double floor_us(const GemmProblem& problem, std::int64_t tokens, const DeviceSpec& device) {
  const auto bytes = static_cast<double>(bytes_of_call(problem, tokens));
  const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(problem.n) *
                       static_cast<double>(problem.k);
  return std::max(bytes / (device.dram_tbps * 1e6), flops / (device.fp8_tflops * 1e6));
}

double floor_us(const QuantizeProblem& problem, std::int64_t rows, const DeviceSpec& device) {
  return static_cast<double>(bytes_moved(problem, rows)) / (device.dram_tbps * 1e6);
}

}  // namespace

std::vector<Ranked> Exploration::candidates() const {
  std::vector<Ranked> all = shortlist;
  all.insert(all.end(), variants.begin(), variants.end());
  return all;
}

std::string to_text(const TuningTask& task) {
  return fmt::format("{} at {} tokens", octile::to_text(task.problem), task.tokens);
}

Exploration explore(const TuningTask& task, const DeviceSpec& device,
                    const ShortlistOptions& options) {
  return std::visit(
      [&](const auto& problem) { return explore(problem, task.tokens, device, options); },
      task.problem);
}

double floor_us(const TuningTask& task, const DeviceSpec& device) {
  return std::visit([&](const auto& problem) { return floor_us(problem, task.tokens, device); },
                    task.problem);
}

}  // namespace octile::tuner
