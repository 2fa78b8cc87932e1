#include "runtime/tuner/exploration.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "generator/families.h"
#include "runtime/families/gemm/operands.h"
#include "runtime/families/quantize/operands.h"

namespace octile::tuner {
namespace {

// What the search space of either family is told as.
template <typename Config>
Exploration exploration_of(const CandidatesOf<Config>& candidates, std::vector<Ranked> shortlist) {
  Exploration exploration;
  exploration.enumerated = candidates.enumerated;
  exploration.admitted = candidates.admitted.size();
  exploration.shortlist = std::move(shortlist);
  exploration.removed = candidates.removed;
  return exploration;
}

Exploration explore(const GemmProblem& problem, std::int64_t tokens, const DeviceSpec& device,
                    const ShortlistOptions& options) {
  const GemmCandidates found = octile::candidates(problem, tokens, device);
  Exploration exploration =
      exploration_of(found, shortlist(rank(problem, tokens, device, found),
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
  const QuantizeCandidates found = octile::candidates(problem, rows, device);
  return exploration_of(
      found, shortlist(rank(setting, found), default_config(problem, rows, device), options));
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
