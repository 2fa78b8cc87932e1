// A tuning run that a GPU made, for a simulated device to replay: the questions of a file, the
// candidates that were timed, and their times.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "generator/families.h"
#include "runtime/tuner/run.h"
#include "tests/support/simulated_gpu.h"

namespace octile::test {

struct RecordedQuestion {
  tuner::TuningTask task;
  std::vector<std::pair<std::string, double>> us;  // by configuration, the fastest first
};

// Races of 26 November 2026 on one H100: medians of nine interleaved rounds, of each race the
// eight fastest of twelve configurations.
inline const std::vector<RecordedQuestion>& recorded_run() {
  static const auto questions = [] {
    std::vector<RecordedQuestion> all;
    std::ifstream file(std::string(OCTILE_SOURCE_DIR) + "/tests/unit/tuner/recorded_run.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto recorded = nlohmann::ordered_json::parse(line);
      RecordedQuestion& question = all.emplace_back();
      question.task = {*parse_problem(recorded.at("problem").get<std::string>()),
                       recorded.at("tokens").get<std::int64_t>()};
      for (const auto& [config, us] : recorded.at("us").items())
        question.us.emplace_back(config, us.get<double>());
    }
    return all;
  }();
  return questions;
}

inline const DeviceSpec& recorded_device() { return *find_device("h100"); }

inline std::vector<tuner::TuningTask> recorded_tasks() {
  std::vector<tuner::TuningTask> tasks;
  for (const RecordedQuestion& question : recorded_run()) tasks.push_back(question.task);
  return tasks;
}

// Returns the place of a task in the recorded run.
inline std::size_t place_in_run(const tuner::TuningTask& task) {
  const auto& all = recorded_run();
  const auto found = std::ranges::find(all, task, &RecordedQuestion::task);
  return static_cast<std::size_t>(found - all.begin());
}

// Decides by a search on a simulated device, whose candidates take the recorded times and noise of
// 0.3 %. The default is the candidate that the cost model likes best. A question always has the
// same result, and takes about ten seconds.
class ReplayDecider final : public tuner::Decider {
 public:
  std::function<void(double)> pass;  // lets seconds pass
  std::vector<std::size_t> decided;  // places in the recorded run, in the order of the decisions
  std::size_t open = 0;              // the place of the last question that was begun

  void expect(const tuner::TuningTask&) override {}

  Result<tuner::Decision> decide(const tuner::TuningTask& task,
                                 const tuner::Budget& budget) override {
    open = place_in_run(task);
    tuner::Exploration exploration;
    SimulatedGpu gpu;
    gpu.seed = open + 1;
    for (const auto& [config, us] : in_order(recorded_run().at(open))) {
      exploration.shortlist.push_back({*parse_config(task.problem, config), us});
      SimulatedCandidate& candidate = gpu.candidates.emplace_back();
      candidate.us = us;
      candidate.compile_seconds = 3.5;
    }
    SimulatedBench bench(gpu);
    const tuner::Clock clock = bench.clock();
    const double began = clock();
    const auto found = tuner::search(bench, tuner::Budget(clock, 1000));
    if (!found) return tl::unexpected<Error>(found.error());
    for (double left = clock() - began; left > 0; left -= kStepSeconds) {
      pass(std::min(left, kStepSeconds));
      if (budget.left() <= 0) {
        tuner::Decision none;
        none.task = task;
        return none;
      }
    }
    decided.push_back(open);
    return decision_of(task, recorded_device(), exploration, *found, gpu.seed);
  }

 private:
  static constexpr double kStepSeconds = 2;

  // Returns the candidates, the default first.
  static std::vector<std::pair<std::string, double>> in_order(const RecordedQuestion& question) {
    const auto& [problem, tokens] = question.task;
    auto candidates = question.us;
    const auto liked = std::ranges::min_element(candidates, {}, [&](const auto& candidate) {
      return estimate_us(*parse_config(problem, candidate.first), problem, tokens,
                         recorded_device());
    });
    std::rotate(candidates.begin(), liked, liked + 1);
    return candidates;
  }
};

// Returns what records decide, one line a question, whoever decided it.
inline std::vector<std::string> decisions_in(std::vector<cache::TuningRecord> records) {
  std::vector<std::string> lines;
  for (cache::TuningRecord& record : records) {
    record.run.clear();
    lines.push_back(to_json_line(record));
  }
  std::ranges::sort(lines);
  return lines;
}

}  // namespace octile::test
