#include "runtime/tuner/exploration.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/prove/families.h"

namespace octile::tuner {
namespace {

// Returns the variants of every configuration of a list, in its order. A known winner's variant may
// be in the list itself and is not a variant then.
std::vector<Ranked> variants_of(const std::vector<Ranked>& list, const TuningTask& task) {
  std::vector<Ranked> all;
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (KernelConfig& config : variants(list[i].config, task.problem, task.tokens)) {
      if (std::ranges::find(list, config, &Ranked::config) != list.end()) continue;
      all.push_back({std::move(config), list[i].estimate_us, static_cast<int>(i)});
    }
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

SearchSpace space_of(const TuningTask& task, const DeviceSpec& device) {
  const auto& [problem, tokens] = task;
  Candidates found = candidates(problem, tokens, device);
  return {found.enumerated, std::move(found.removed), rank(problem, tokens, device, found.admitted),
          default_config(problem, tokens, device)};
}

Exploration explore(const TuningTask& task, const DeviceSpec& device,
                    const ShortlistOptions& options, const std::vector<KernelConfig>& winners) {
  return explore(task, device, space_of(task, device), options, winners);
}

Exploration explore(const TuningTask& task, const DeviceSpec& device, const SearchSpace& space,
                    const ShortlistOptions& options, const std::vector<KernelConfig>& winners) {
  Exploration exploration;
  exploration.enumerated = space.enumerated;
  exploration.admitted = space.admitted.size();
  exploration.removed = space.removed;
  exploration.shortlist = shortlist(space.admitted, space.preferred, options,
                                    rank(task.problem, task.tokens, device, winners));
  exploration.variants = variants_of(exploration.shortlist, task);
  return exploration;
}

double floor_us(const TuningTask& task, const DeviceSpec& device) {
  const auto bytes = static_cast<double>(bytes_moved(task.problem, task.tokens));
  const double operations = flops(task.problem, task.tokens);
  return std::max(bytes / (device.dram_tbps * 1e6), operations / (device.fp8_tflops * 1e6));
}

}  // namespace octile::tuner
