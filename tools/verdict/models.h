// Verdicts on the models that a command's options name, by records and by estimates for the rest.
// FP8 pays from a gain of kLeastGain on (tools/models/verdict.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/tuning_set.h"
#include "runtime/measure/record.h"
#include "tools/models/model_options.h"
#include "tools/verdict/report.h"

namespace octile::tools {

// Measurements of whole layers and of kernels.
struct KnownTimes {
  const cache::TuningSet& tuned;
  std::span<const Record> layers = {};
};

// Returns the verdicts on the layers of one rank without a GPU. Counts and microbatches are those
// of layer_cases(). Errors: those of layer_cases().
Result<Verdicts> estimate_verdicts(const Model& rank, const ModelUse& use,
                                   std::int64_t microbatches, const DeviceSpec& device,
                                   const KnownTimes& known);

struct ModelVerdicts {
  std::string model;
  Verdicts verdicts;
};

// Returns the verdicts on each model that the options name; standard input, which is read once, is
// left out. `use` has their modes and counts. Weights are quantised once a step to train. Errors:
// those of reading the models.
Result<std::vector<ModelVerdicts>> verdicts_of_models(const ModelOptions& options,
                                                      const std::string& recipe,
                                                      const ModelUse& use, const DeviceSpec& device,
                                                      const KnownTimes& known);

}  // namespace octile::tools
