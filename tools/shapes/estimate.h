// `octile shapes --estimate`: whether FP8 pays in each layer, without a GPU.
#pragma once

#include <string>

#include "tools/command.h"
#include "tools/verdict/options.h"
#include "tools/verdict/report.h"

namespace octile::tools {

struct EstimateOptions {
  bool estimate = false;
  std::string device;  // empty: a GPU if there is one, else h200
  VerdictOptions verdict;

  void add_to(CLI::App& app);
  // Refuses the other options without --estimate.
  Status check() const;
};

// Returns the device that estimates are for. Errors: those of device_spec(); kUnsupported if it has
// no kernels.
Result<DeviceSpec> device_to_estimate(const std::string& device);

// Errors: those of layer_cases() and VerdictOptions::check_step().
Result<Verdicts> estimate_model(const Model& rank, ModelUse use, const DeviceSpec& device,
                                const EstimateOptions& options, const LibraryHandle& library);

}  // namespace octile::tools
