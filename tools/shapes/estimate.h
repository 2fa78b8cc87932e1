// `octile shapes --estimate`: whether FP8 pays in each layer, without a GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/command.h"
#include "tools/models/judge.h"

namespace octile::tools {

struct EstimateOptions {
  bool estimate = false;
  std::string device;  // empty: a GPU if there is one, else h200
  std::vector<std::int64_t> tokens;
  std::optional<std::int64_t> microbatches;
  double step_ms = 0;
  Option step_option;

  void add_to(CLI::App& app);
  std::optional<double> step() const;
  // Refuses the other options without --estimate, and values that are out of range.
  Status check() const;
};

// What is said of one model.
struct ModelEstimate {
  std::vector<JudgedLayer> layers;
  std::vector<ModelVerdict> sums;
};

// Returns the device that estimates are for. Errors: those of device_spec(); kUnsupported if it has
// no kernels.
Result<DeviceSpec> device_to_estimate(const std::string& device);

// Returns the verdicts on the layers of a rank. Errors: those of layer_cases(); kInvalidArgument if
// --step-ms is less than a sum of GEMMs in BF16.
Result<ModelEstimate> estimate_model(const Model& rank, ModelUse use, const DeviceSpec& device,
                                     const EstimateOptions& options, const LibraryHandle& library);

void print(const ModelEstimate& estimate, const DeviceSpec& device, const EstimateOptions& options,
           bool wide);
Json to_json(const ModelEstimate& estimate, const EstimateOptions& options);

}  // namespace octile::tools
