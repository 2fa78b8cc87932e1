// A linear layer's step as training runs it: quantise X, W and dY, then three GEMMs. Beside it the
// same three GEMMs in bf16.
//
//   Y[m,n] = X[m,k] W[n,k]^T      dX[m,k] = dY[m,n] W[n,k]      dW[n,k] += dY[m,n]^T X[m,k]
//
// Each tensor is quantised once: the row-wise copy serves one GEMM and the transposed copy, which
// the same read writes, another. dX takes W's transposed codes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "generator/core/recipe.h"
#include "runtime/families/gemm/check.h"
#include "runtime/measure/timing.h"
#include "tools/bench/measurement.h"
#include "tools/common/command_line.h"

namespace octile::tools {

// The layer at one token count. All three are multiples of 16.
struct LinearShape {
  std::int64_t m = 0, n = 0, k = 0;
};

struct LinearPart {
  Timing timing;
  double share = 0;  // of the sum of the parts of its step
};

struct LinearReport {
  std::string recipe;
  LinearShape shape;
  // Ours as a graph and call by call; bf16 as a graph.
  Timing step, call_by_call, bf16_step;
  double speedup = 0;                  // bf16 / ours, both as graphs, median over rounds
  std::vector<LinearPart> parts;       // quantise X, W, dY; fprop, dgrad, wgrad
  std::vector<LinearPart> bf16_parts;  // fprop, dgrad, wgrad
  std::vector<GemmCheck> checks;       // of fprop, dgrad, wgrad against FP64
  bool ok() const;
};
Json to_json(const LinearReport& report);

// Refuses dimensions that are not positive multiples of 16, and a recipe whose GEMMs do not exist.
Status check_linear_shape(const LinearShape& shape);
Status check_linear_supported(const Recipe& recipe, const LinearShape& shape);

// Checks the three GEMMs of one step against FP64 on the quantised operands, then times the step
// and its parts in one interleaved run. The shape and the recipe were checked. Errors: those of
// preparing, running and measuring.
Result<LinearReport> bench_linear(const BenchContext& context, const Recipe& recipe,
                                  const LinearShape& shape);

// Adds `bench linear`. Returns what runs it, or nothing if the command line does not name it.
std::function<std::optional<Status>()> add_bench_linear(CLI::App& bench);

}  // namespace octile::tools
