// The configuration that serves each question after a run, decided or not.
#pragma once

#include <string>
#include <vector>

#include "runtime/engine/choice.h"
#include "runtime/tuner/run.h"
#include "tools/common/text_table.h"
#include "tools/tune/questions.h"

namespace octile::tools {

// Returns what serves each task of the run, in its order: for a decided one its own record, for
// others what the records leave.
std::vector<ChosenBy> served_by(const tuner::RunResult& result, const DeviceSpec& device,
                                const cache::TuningSet& records);

// Returns "near bucket 9, cost model 3" of the tasks that are undecided; empty if none is.
std::string undecided_text(const tuner::RunResult& result, const std::vector<ChosenBy>& served);

// Returns a row for each undecided task with the configuration that serves it, heaviest first as
// the run had them.
TextTable undecided_table(const std::vector<Question>& questions, const tuner::RunResult& result,
                          const std::vector<ChosenBy>& served);

// Returns "159 questions for h200 need about 170 s on 16 cores". us: predicted_us() of them, as
// below.
std::string plan_line(const std::vector<Question>& questions, const std::vector<double>& us,
                      const DeviceSpec& device, int cores);

// Returns a row for each problem of a layer: how many token counts ask it, and what it weighs by
// the cost model, in microseconds of one pass through the model's layers at the smallest and at the
// largest count, and as a share of all counts.
TextTable plan_table(const std::vector<Question>& questions, const std::vector<double>& us);

// Returns a row for each problem of a layer: sums over the token counts that are decided of the
// default's, the winner's, the floor's and bf16's times, and what serves how many counts.
TextTable layers_table(const std::vector<Question>& questions, const tuner::RunResult& result,
                       const std::vector<ChosenBy>& served);

}  // namespace octile::tools
