// The step of a linear layer (layer_step.h), and beside it the same three GEMMs in bf16.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tools/bench/layer_step.h"
#include "tools/bench/step_timing.h"
#include "tools/command_line/command_line.h"

namespace octile::tools {

// Checks the three GEMMs of one step against FP64 on the quantised operands, then times the step
// and its parts in one interleaved run. Returns the records of time_steps(). The shape and the
// recipe were checked. Errors: those of preparing, running and measuring.
Result<std::vector<Record>> bench_linear(const BenchContext& context, const Recipe& recipe,
                                         const LayerShape& shape);

// Adds `bench linear`. Returns what runs it, or nothing if the command line does not name it.
std::function<std::optional<Status>()> add_bench_linear(CLI::App& bench);

}  // namespace octile::tools
