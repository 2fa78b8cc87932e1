// `octile tune --max-error`: the promotion intervals of a GEMM beside its own, what their errors
// are, which of them are searched, and which one to ask for.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/measure/record.h"
#include "runtime/prove/gpu_bench.h"
#include "runtime/tuner/run.h"
#include "tools/common/handles.h"
#include "tools/tune/questions.h"

namespace octile::tools {

// Returns a GEMM with each other promotion interval that the support matrix has for it, short ones
// first. Problems of other families have none.
std::vector<Problem> with_other_intervals(const Problem& problem);

// Checks --max-error, which may be absent, against what is asked. Errors: kInvalidArgument if it is
// not more than 0 and at most 1, or if no question has another interval.
Status check_max_error(std::optional<double> max_error, const std::vector<Question>& asked);

class Intervals {
 public:
  // Returns the errors of tasks' default kernels (runtime/prove/gemm/adversarial_error.h).
  using Measure =
      std::function<Result<std::vector<double>>(const std::vector<tuner::TuningTask>& tasks)>;

  // There are none: only the stated interval is searched.
  Intervals() = default;
  // Measures the asked GEMMs and those with other intervals that the device has. Errors:
  // kInvalidArgument if it has none; those of `measure`.
  static Result<Intervals> measured(const std::vector<Question>& asked, const DeviceSpec& device,
                                    double max_error, const Measure& measure);

  // Returns the stated interval with any error, and the other intervals within the greatest error.
  std::vector<Question> searched(std::vector<Question> asked) const;

  // Returns a task's error, or nothing if it was not measured.
  std::optional<double> error_of(const tuner::TuningTask& task) const;

  // An interval of an asked GEMM. Times are 0 if it was not decided.
  struct Row {
    Problem asked;
    tuner::TuningTask task;
    double error = 0;
    double us = 0;
    double gain = 0;          // time of the asked interval by this one's
    bool answers = false;     // it is the one to ask for
    std::string result = {};  // for a person
  };
  // Returns a row for each interval of each asked GEMM that has several, its own first. The fastest
  // within the greatest error answers. The asked one answers if it is within it and slower by less
  // than separate races differ by, or if no interval is within it. Nothing answers as long as the
  // asked one is not decided.
  std::vector<Row> rows(const tuner::RunResult& result) const;

 private:
  struct Interval {
    tuner::TuningTask task;
    double error = 0;
  };
  using OfQuestion = std::vector<Interval>;  // the asked one first

  bool is_within(double error) const { return error <= max_error_; }
  std::vector<Row> rows_of(const OfQuestion& intervals, const tuner::RunResult& result) const;

  double max_error_ = 0;
  std::vector<OfQuestion> all_;
};

// Returns what measures on a GPU, with operands by `seed`. The context outlives it.
Intervals::Measure errors_on(tuner::TunerContext& context, std::uint64_t seed);

// Prints the table and how to get an interval; nothing without rows.
void print_intervals(const std::vector<Intervals::Row>& rows, bool wide);
Json to_json(const std::vector<Intervals::Row>& rows);

}  // namespace octile::tools
