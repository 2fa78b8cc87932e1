// The kernels that the layers of a model run: of each layer its GEMMs, and its share of the
// quantisers of their operands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "generator/gemm/problem.h"
#include "generator/quantize/problem.h"
#include "tools/models/workload.h"

namespace octile::tools {

struct GemmUse {
  GemmProblem problem;  // with an open token count
  std::int64_t tokens = 0;
};

struct QuantizerUse {
  QuantizeProblem problem;
  std::int64_t tokens = 0;
  std::int64_t rows = 0;  // in all: of masked groups, those that all of them expect
  // The share that the layer is charged for. Layers that read one input share its quantiser by
  // their n, and a weight is quantised once for several microbatches.
  double share = 1;
  // The kernel that computes the norm or the activation too; nothing if there is none.
  std::optional<QuantizeProblem> fused = std::nullopt;
};

// One layer in one mode at one token count.
struct LayerCase {
  std::string layer;
  std::string recipe;
  Mode mode = Mode::kDecode;
  std::int64_t copies = 0, n = 0, k = 0, groups = 0;
  std::int64_t tokens = 0;
  std::vector<GemmUse> gemms = {};
  std::vector<QuantizerUse> quantizers = {};
  // For one copy. In training the weights of FP8 are masters in BF16 and two copies in FP8, and
  // kept is the copy of the input that backward needs, shared as its quantiser is.
  double weight_bytes_bf16 = 0, weight_bytes_fp8 = 0, copy_bytes_fp8 = 0;
  double kept_bytes_bf16 = 0, kept_bytes_fp8 = 0;
};

// Returns the cases of the layers of a rank that have a recipe, those of multi-token prediction
// aside. Without counts a mode has one: 64 tokens to decode, 4096 to prefill, 8192 to train. The
// model is laid out as `use` or the mode says. Weights are quantised beforehand to serve, and once
// for this number of microbatches to train. Errors: those of works_of_model().
Result<std::vector<LayerCase>> layer_cases(const Model& rank, const ModelUse& use,
                                           std::int64_t microbatches);

}  // namespace octile::tools
