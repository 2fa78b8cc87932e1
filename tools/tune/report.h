// Tasks and decisions of `octile tune`, as JSON and as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/choice.h"
#include "runtime/measure/record.h"
#include "runtime/tuner/run.h"
#include "tools/common/handles.h"
#include "tools/common/text_table.h"

namespace octile::tools {

Json to_json(const tuner::Decision& decision);
Json to_json(const tuner::TuningTask& task, const tuner::Exploration& exploration);

// Returns "31 candidates of 4 questions spilled registers and were left out"; empty if none did.
std::string spilled_text(const std::vector<tuner::Decision>& decisions);

// Returns the record of a decision: the winner's time, beside the default's and the baselines'.
// `record` has the card and the date. `error`: of a GEMM whose promotion interval was searched.
Record record_of(const tuner::Decision& decision, Record record,
                 std::optional<double> error = std::nullopt);
// Adds a GEMM's promotion interval and its error, if that was measured.
void add_error(const tuner::TuningTask& task, std::optional<double> error, Json& object);

struct ExplainedTask {
  tuner::TuningTask task;
  tuner::Exploration exploration;
};
// Returns a line for each task: configurations, admitted, shortlist, the constraint that removed
// most, and the default's time as the cost model estimates it.
TextTable explanation_summary(const std::vector<ExplainedTask>& tasks);

// Returns how many candidates each constraint removed and why, then the shortlist with the cost
// model's estimates, in lines of at most `width` columns; 0: of any.
std::string explanation_text(const tuner::TuningTask& task, const tuner::Exploration& exploration,
                             std::size_t width);

// Returns the time of that name in a record's baselines; 0 if it was not timed.
double baseline_us(const cache::TuningRecord& record, std::string_view name);

// Returns one line per decision: default, tuned, gain, share of the floor, the baselines, and what
// serves the task, in the order of the decisions.
TextTable decisions_table(const std::vector<tuner::Decision>& decisions,
                          const std::vector<ChosenBy>& served);

}  // namespace octile::tools
