// The step of a model's experts on one rank of expert parallelism: layer_step.h for gate_up and for
// down, with a group of rows for each expert. Beside it the same GEMMs in bf16, one for each expert
// that has rows, because cuBLASLt has no grouped GEMM. Frameworks have: their time is estimated.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/layer_step.h"
#include "tools/bench/routing.h"
#include "tools/bench/step_timing.h"
#include "tools/command_line/command_line.h"
#include "tools/models/workload.h"

namespace octile::tools {

// The experts and rows of a rank of a model.
struct ExpertRank : ExpertShare {
  std::string model;
  std::int64_t ranks = 0;
  std::int64_t tokens = 0;  // tokens of a rank before they go to the experts
  std::int64_t rows = 0;    // what this rank's experts receive in all

  LayerShape gate_up_shape() const { return {rows, gate_up.n, gate_up.k, experts}; }
  LayerShape down_shape() const { return {rows, down.n, down.k, experts}; }
};

// Errors: kInvalidArgument for a model without experts, ranks that do not divide them, a token
// count that is out of range, or a layer that is not a multiple of 16. `model` is that of --model.
Result<ExpertRank> rank_of(const Model& file, const std::string& model, std::int64_t ranks,
                           std::int64_t tokens);

// Checks every GEMM of one step by each routing against FP64 on the quantised operands, then times
// all steps and their parts in one interleaved run. Returns the records of time_steps() for each
// routing. The recipe was checked for both layers. Errors: those of preparing, running and
// measuring.
Result<std::vector<std::vector<Record>>> bench_experts(const BenchContext& context,
                                                       const Recipe& recipe, const ExpertRank& rank,
                                                       const std::vector<Routing>& routings);

// Adds `bench experts`. Returns what runs it, or nothing if the command line does not name it.
std::function<std::optional<Status>()> add_bench_experts(CLI::App& bench);

}  // namespace octile::tools
