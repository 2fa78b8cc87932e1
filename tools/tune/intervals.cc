#include "tools/tune/intervals.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/families/families.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/prove/gemm/adversarial_error.h"
#include "tools/common/output.h"
#include "tools/common/text_table.h"

namespace octile::tools {
namespace {

constexpr std::array kIntervals{32, 64, 128, 256, 512, kPromoteNone};

std::string promote_of(const Problem& problem) {
  const auto* gemm = problem_as<GemmProblem>(problem);
  return gemm == nullptr ? "" : promote_text(gemm->promote);
}

bool has_task(const std::vector<Question>& questions, const tuner::TuningTask& task) {
  return std::ranges::find(questions, task, &Question::task) != questions.end();
}

// Returns the index of the row to ask for, or nothing if the asked one, the first, has no time.
std::optional<std::size_t> answer(const std::vector<Intervals::Row>& rows, double max_error) {
  const Intervals::Row& own = rows.front();
  if (own.us <= 0) return std::nullopt;
  std::size_t best = 0;
  double best_us = own.us / (1 + tuner::Allowances().standing_default);
  if (own.error > max_error) best_us = std::numeric_limits<double>::infinity();
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].us <= 0 || rows[i].error > max_error || rows[i].us >= best_us) continue;
    best = i;
    best_us = rows[i].us;
  }
  return best;
}

// where: empty, or " on <device>".
Status nothing_to_search(double max_error, const std::string& where) {
  return refuse(
      fmt::format("--max-error is {}, and no problem has another promotion interval to search{}; "
                  "allowed with GEMMs for which the support matrix has several",
                  max_error, where));
}

}  // namespace

std::vector<Problem> with_other_intervals(const Problem& problem) {
  const auto* gemm = problem_as<GemmProblem>(problem);
  if (gemm == nullptr) return {};
  std::vector<Problem> others;
  for (const int promote : kIntervals) {
    GemmProblem other = *gemm;
    other.promote = promote;
    if (promote != gemm->promote && check_supported(Problem(other))) others.emplace_back(other);
  }
  return others;
}

Status check_max_error(std::optional<double> max_error, const std::vector<Question>& asked) {
  if (!max_error) return {};
  // The condition also refuses a NaN.
  if (!(*max_error > 0) || !(*max_error <= 1))
    return refuse(fmt::format(
        "--max-error is {}; allowed: a share of the sum of magnitudes, more than 0 and at most 1",
        *max_error));
  const auto has_others = [](const Question& question) {
    return !with_other_intervals(question.task.problem).empty();
  };
  if (std::ranges::any_of(asked, has_others)) return {};
  return nothing_to_search(*max_error, "");
}

Result<Intervals> Intervals::measured(const std::vector<Question>& asked, const DeviceSpec& device,
                                      double max_error, const Measure& measure) {
  Intervals found;
  found.max_error_ = max_error;
  std::vector<tuner::TuningTask> tasks;
  for (const Question& question : asked) {
    OfQuestion intervals{{question.task}};
    for (Problem& other : with_other_intervals(question.task.problem)) {
      if (check_supported(other, device))
        intervals.push_back({{std::move(other), question.task.tokens}});
    }
    if (intervals.size() == 1) continue;
    for (const Interval& interval : intervals) tasks.push_back(interval.task);
    found.all_.push_back(std::move(intervals));
  }
  if (tasks.empty()) {
    return tl::unexpected<Error>(nothing_to_search(max_error, " on " + device.full_name).error());
  }
  const auto errors = measure(tasks);
  if (!errors) return tl::unexpected<Error>(errors.error());
  std::size_t at = 0;
  for (OfQuestion& intervals : found.all_) {
    for (Interval& interval : intervals) interval.error = errors->at(at++);
  }
  return found;
}

std::vector<Question> Intervals::searched(std::vector<Question> asked) const {
  std::vector<Question> questions = std::move(asked);
  for (const OfQuestion& intervals : all_) {
    const auto own = std::ranges::find(questions, intervals.front().task, &Question::task);
    // A copy, because the list grows below.
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
    const Question question = *own;
    for (const auto& [task, error] : intervals) {
      if (is_within(error) && !has_task(questions, task))
        questions.push_back({task, question.layer, question.layers});
    }
  }
  return questions;
}

std::optional<double> Intervals::error_of(const tuner::TuningTask& task) const {
  for (const OfQuestion& intervals : all_) {
    const auto found = std::ranges::find(intervals, task, &Interval::task);
    if (found != intervals.end()) return found->error;
  }
  return std::nullopt;
}

std::vector<Intervals::Row> Intervals::rows_of(const OfQuestion& intervals,
                                               const tuner::RunResult& result) const {
  std::vector<Row> rows;
  for (const auto& [task, error] : intervals) {
    Row row{intervals.front().task.problem, task, error};
    const auto decision = std::ranges::find(result.decisions, task, &tuner::Decision::task);
    const bool searched = decision != result.decisions.end();
    if (searched && decision->decided()) row.us = decision->record.winner.median_us;
    if (!is_within(error)) {
      row.result = fmt::format("error above {}{}", max_error_, searched ? "" : ", not searched");
    } else if (row.us <= 0) {
      row.result = "undecided";
    }
    rows.push_back(std::move(row));
  }
  for (Row& row : rows) {
    if (row.us > 0 && rows.front().us > 0) row.gain = rows.front().us / row.us;
  }
  const auto best = answer(rows, max_error_);
  if (!best) return rows;
  Row& to_ask = rows[*best];
  to_ask.answers = true;
  to_ask.result = fmt::format("ask for promote={}{}", promote_of(to_ask.task.problem),
                              to_ask.result.empty() ? "" : ": " + to_ask.result);
  return rows;
}

Intervals::Measure errors_on(tuner::TunerContext& context, std::uint64_t seed) {
  return [&context, seed](const std::vector<tuner::TuningTask>& tasks) {
    std::vector<tuner::GemmAtTokens> gemms;
    for (const auto& [problem, tokens] : tasks)
      gemms.push_back({*problem_as<GemmProblem>(problem), tokens});
    return tuner::adversarial_errors(context, gemms, seed);
  };
}

std::vector<Intervals::Row> Intervals::rows(const tuner::RunResult& result) const {
  std::vector<Row> rows;
  for (const OfQuestion& intervals : all_) {
    for (Row& row : rows_of(intervals, result)) rows.push_back(std::move(row));
  }
  return rows;
}

void print_intervals(const std::vector<Intervals::Row>& rows, bool wide) {
  if (rows.empty()) return;
  TextTable table({"<problem", "tokens", "promote", "error", "tuned us", "gain", "<result"});
  table.cut("problem", 20);
  for (const Intervals::Row& row : rows) {
    table.add_row({short_text(row.asked), std::to_string(row.task.tokens),
                   promote_of(row.task.problem), fmt::format("{:.2g}", row.error),
                   row.us > 0 ? fmt::format("{:.2f}", row.us) : "-",
                   row.gain > 0 ? fmt::format("{:.3f}", row.gain) : "-",
                   row.result.empty() ? "-" : row.result});
  }
  print_stdout("\n");
  print_table(table, wide);
  print_stdout(
      "\n  a record serves problems of its own promote= alone, so state that one in a problem to "
      "get it\n");
}

Json to_json(const std::vector<Intervals::Row>& rows) {
  const auto number = [](double value, bool known) { return known ? Json(value) : Json(nullptr); };
  Json all = Json::array();
  for (const Intervals::Row& row : rows)
    all.push_back({{"problem", to_text(row.task.problem)},
                   {"asked", to_text(row.asked)},
                   {"tokens", row.task.tokens},
                   {"promote", promote_of(row.task.problem)},
                   {"error", number(row.error, std::isfinite(row.error))},
                   {"us", number(row.us, row.us > 0)},
                   {"gain", number(row.gain, row.gain > 0)},
                   {"answers", row.answers}});
  return all;
}

}  // namespace octile::tools
