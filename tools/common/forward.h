// The forward pass of one linear layer in FP8, Y[m,n] = X[m,k] W[n,k]^T, by octile/layers.h:
// quantises X and W, multiplies them, and compares the result with FP64.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "generator/core/recipe.h"
#include "octile/layers.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/measure/timing.h"
#include "runtime/prove/gemm/check.h"
#include "tools/common/handles.h"

namespace octile::tools {

// The uses of a forward pass's calls: its two copies and its GEMM.
inline constexpr std::uint32_t kForwardUses = OCTILE_LAYER_KEEP_W;

// Makes a layer in bf16 without a bias.
Result<LayerHandle> forward_layer(const LibraryHandle& library, const std::string& device,
                                  const std::string& recipe, std::int64_t n, std::int64_t k);

struct Layer {
  std::string recipe;
  std::int64_t m = 0, n = 0, k = 0;
  GemmProblem problem;           // with which Y is checked; m is dynamic
  std::vector<std::uint16_t> x;  // bf16 [m][k]
  std::vector<std::uint16_t> w;  // bf16 [n][k]
};

// Draws W from N(0, 0.02^2); x is [m][k].
Layer make_layer(const Recipe& recipe, std::vector<std::uint16_t> x, std::int64_t m, std::int64_t n,
                 std::int64_t k);

struct ForwardReport {
  std::string executor;         // "cuda:0" or "host"
  std::vector<Timing> timings;  // quantise X, quantise W, GEMM; wall clock if on the host
  double tflops = 0;            // rate of the GEMM
  bool compared_codes = false;  // true if codes_equal is known
  bool codes_equal = false;
  GemmCheck check;
  // sqrt(sum (Y - R)^2 / sum R^2) over sampled rows; R is the FP64 GEMM of X and W before
  // quantising.
  double relative_error = 0;
  bool ok() const { return check.ok && (!compared_codes || codes_equal); }
};

using Began = std::function<void(const std::string&)>;

Result<ForwardReport> forward_on_host(const LibraryHandle& library, const Layer& layer,
                                      const Began& began);
Result<ForwardReport> forward_on_gpu(const LibraryHandle& library, const GpuSession& gpu,
                                     const Layer& layer, const Began& began);

Json to_json(const ForwardReport& report);
std::string to_text(const ForwardReport& report);

}  // namespace octile::tools
