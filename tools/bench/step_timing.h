// Times whole steps and their parts, beside the same work in bf16.
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
  std::function<Status(CUstream)> step;  // of Octile
  std::vector<StepCall> octile, bf16;
};

// Returns the records of each step, in the order of its parts, then "step" and "step, call by
// call". The bf16 GEMMs are their peers. The steps take turns with each other and with all parts in
// one interleaved run. `blanks` are the records that get the values: one for each step.
Result<std::vector<std::vector<Record>>> time_steps(const BenchContext& context,
                                                    const std::vector<StepCalls>& steps,
                                                    const std::vector<Record>& blanks);

// Notes what the checks of a step's GEMMs found.
void note_checks(const std::vector<GemmCheck>& checks, Record& record);

// Returns the whole step of its records.
const Record& step_of(const std::vector<Record>& records);
// Returns the table of all parts and a line of ratios.
std::string step_text(const std::vector<Record>& records);

}  // namespace octile::tools
