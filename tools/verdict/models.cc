#include "tools/verdict/models.h"

#include <utility>

#include "tools/models/estimated_times.h"

namespace octile::tools {

Result<Verdicts> estimate_verdicts(const Model& rank, const ModelUse& use,
                                   std::int64_t microbatches, const DeviceSpec& device,
                                   const cache::TuningSet& records) {
  const auto cases = layer_cases(rank, use, microbatches);
  if (!cases) return tl::unexpected<Error>(cases.error());
  Verdicts verdicts;
  for (const LayerCase& layer : *cases) {
    verdicts.layers.push_back(judge(layer, estimated_times(layer, device, records)));
  }
  verdicts.sums = sum_up(verdicts.layers);
  return verdicts;
}

Result<std::vector<ModelVerdicts>> verdicts_of_models(const ModelOptions& options,
                                                      const std::string& recipe,
                                                      const ModelUse& use, const DeviceSpec& device,
                                                      const cache::TuningSet& records) {
  std::vector<ModelVerdicts> all;
  for (const std::string& name : options.models) {
    if (name == "-") continue;
    const auto rank = options.read(name, recipe);
    if (!rank) return tl::unexpected<Error>(rank.error());
    auto verdicts = estimate_verdicts(*rank, use, 1, device, records);
    if (!verdicts) return tl::unexpected<Error>(verdicts.error());
    all.push_back({rank->name, std::move(*verdicts)});
  }
  return all;
}

}  // namespace octile::tools
