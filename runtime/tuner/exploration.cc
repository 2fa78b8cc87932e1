#include "runtime/tuner/exploration.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/prove/families.h"

namespace octile::tuner {
namespace {

// Returns the variants of every configuration of a list, in its order.
std::vector<Ranked> variants_of(const std::vector<Ranked>& list, const TuningTask& task) {
  std::vector<Ranked> all;
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (KernelConfig& config : variants(list[i].config, task.problem, task.tokens))
      all.push_back({std::move(config), list[i].estimate_us, static_cast<int>(i)});
  }
  return all;
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
  const auto& [problem, tokens] = task;
  Candidates found = candidates(problem, tokens, device);
  Exploration exploration;
  exploration.enumerated = found.enumerated;
  exploration.admitted = found.admitted.size();
  exploration.removed = std::move(found.removed);
  exploration.shortlist = shortlist(rank(problem, tokens, device, found.admitted),
                                    default_config(problem, tokens, device), options);
  exploration.variants = variants_of(exploration.shortlist, task);
  return exploration;
}

double floor_us(const TuningTask& task, const DeviceSpec& device) {
  const auto bytes = static_cast<double>(bytes_moved(task.problem, task.tokens));
  const double operations = flops(task.problem, task.tokens);
  return std::max(bytes / (device.dram_tbps * 1e6), operations / (device.fp8_tflops * 1e6));
}

}  // namespace octile::tuner
