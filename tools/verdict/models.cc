#include "tools/verdict/models.h"

#include <utility>

#include "tools/models/estimated_times.h"
#include "tools/models/layer_records.h"

namespace octile::tools {

Result<Verdicts> estimate_verdicts(const Model& rank, const ModelUse& use,
                                   std::int64_t microbatches, const DeviceSpec& device,
                                   const KnownTimes& known) {
  const auto cases = layer_cases(rank, use, microbatches);
  if (!cases) return tl::unexpected<Error>(cases.error());
  Verdicts verdicts;
  for (const LayerCase& layer : *cases) {
    auto judged = judge(layer, rank.name, device, known.layers);
    verdicts.layers.push_back(judged ? std::move(*judged)
                                     : judge(layer, estimated_times(layer, device, known.tuned)));
  }
  verdicts.sums = sum_up(verdicts.layers, device);
  return verdicts;
}

Result<std::vector<ModelVerdicts>> verdicts_of_models(const ModelOptions& options,
                                                      const std::string& recipe,
                                                      const ModelUse& use, const DeviceSpec& device,
                                                      const KnownTimes& known) {
  std::vector<ModelVerdicts> all;
  for (const std::string& name : options.models) {
    if (name == "-") continue;
    const auto rank = options.read(name, recipe);
    if (!rank) return tl::unexpected<Error>(rank.error());
    auto verdicts = estimate_verdicts(*rank, use, 1, device, known);
    if (!verdicts) return tl::unexpected<Error>(verdicts.error());
    all.push_back({rank->name, std::move(*verdicts)});
  }
  return all;
}

}  // namespace octile::tools
