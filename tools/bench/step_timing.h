// Times whole steps and their parts, beside what does the same work in bf16.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/measure/timing.h"
#include "runtime/prove/gemm/check.h"
#include "tools/bench/measurement.h"

namespace octile::tools {

// A part of a step: one kernel, or several that belong together.
struct StepCall {
  std::string name;
  std::function<Status(CUstream)> enqueue;
};

// The whole step, and its parts in the order in which it runs them.
struct StepCalls {
  std::function<Status(CUstream)> step;  // ours
  std::vector<StepCall> ours, bf16;
};

struct StepPart {
  Timing timing;
  double share = 0;  // part of the sum of its step's parts
};

struct StepReport {
  // Ours as a graph and call by call; bf16 as a graph.
  Timing step, call_by_call, bf16_step;
  double speedup = 0;  // bf16 / ours, both as graphs, median over rounds
  std::vector<StepPart> parts, bf16_parts;
  std::vector<GemmCheck> checks;  // checks of the GEMMs against FP64
  bool ok() const;
};

// Returns the reports of the steps, which take turns with each other and with all parts in one
// interleaved run. The checks are left empty.
Result<std::vector<StepReport>> time_steps(const BenchContext& context,
                                           const std::vector<StepCalls>& steps);

// Returns the fields of the report, for the caller's object.
Json to_json(const StepReport& report);
// Returns the table of all parts and a line of ratios.
std::string step_text(const StepReport& report);

}  // namespace octile::tools
