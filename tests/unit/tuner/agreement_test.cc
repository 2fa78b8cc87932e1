// Whether two searches of one question agree, and the cost of that, on recorded races: the true
// times are those of a race, and each search sees every configuration's time moved by the
// difference of separate races of it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "generator/families.h"
#include "generator/gemm/passes.h"
#include "runtime/tuner/search.h"
#include "tests/support/simulated_gpu.h"

namespace octile::tuner {
namespace {

// Two configurations are then 0.3 % apart from race to race in the mean, and 0.8 % in one pair of
// a hundred.
constexpr double kBetweenRaces = 0.003 / 1.4142135623730951;

// Returns the times of a race's configurations in the cost model's order.
std::vector<double> times_of(const nlohmann::json& race) {
  const auto problem = parse_gemm_shape(race.at("product").get<std::string>(), "blockwise");
  EXPECT_TRUE(problem);
  std::vector<std::pair<double, double>> ranked;
  for (const auto& [text, us] : race.at("us").items()) {
    const auto config = parse_gemm_config(text);
    EXPECT_TRUE(config) << text;
    ranked.emplace_back(estimate_us(*config, *problem, problem->m, *find_device("h200")), us);
  }
  std::ranges::sort(ranked);
  std::vector<double> times;
  for (const auto& [estimate, us] : ranked) times.push_back(us);
  return times;
}

std::vector<std::vector<double>> recorded_races() {
  std::ifstream file(OCTILE_SOURCE_DIR "/tests/unit/generator/gemm/cost_model_races.jsonl");
  std::vector<std::vector<double>> races;
  for (std::string line; std::getline(file, line);)
    races.push_back(times_of(nlohmann::json::parse(line)));
  return races;
}

// Returns the winner of the `session`-th search.
int search_of(const std::vector<double>& times, std::uint64_t session,
              std::optional<int> incumbent) {
  test::SimulatedGpu gpu;
  gpu.seed = 2 * session;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const double moved = kBetweenRaces * reference::random_normal(session + 7, i);
    gpu.candidates.emplace_back().us = times[i] * (1 + moved);
  }
  test::SimulatedBench bench(gpu);
  RaceOptions options;
  options.incumbent = incumbent;
  const auto result = search(bench, Budget(bench.clock(), 60), options);
  EXPECT_TRUE(result);
  return result->winner;
}

struct Agreement {
  double share = 0;  // of pairs of searches with the same winner
  double loss = 0;   // mean of the winner's true time over the fastest one's, less 1
};

Agreement agreement(const std::vector<std::vector<double>>& races, bool with_incumbent) {
  int agreed = 0;
  double loss = 0;
  for (std::size_t i = 0; i < races.size(); ++i) {
    const std::vector<double>& times = races[i];
    std::optional<int> incumbent;
    if (with_incumbent) incumbent = search_of(times, 3 * i, {});
    const double best = *std::ranges::min_element(times);
    const int first = search_of(times, 3 * i + 1, incumbent);
    const int second = search_of(times, 3 * i + 2, incumbent);
    agreed += first == second ? 1 : 0;
    for (const int winner : {first, second})
      loss += times[static_cast<std::size_t>(winner)] / best - 1;
  }
  const auto count = static_cast<double>(races.size());
  return {agreed / count, loss / (2 * count)};
}

TEST(Agreement, SearchesOfRecordedRacesAgree) {
  const auto races = recorded_races();
  ASSERT_EQ(races.size(), 220);
  const Agreement alone = agreement(races, false);
  const Agreement beside = agreement(races, true);
  RecordProperty("alone", fmt::format("{:.3f} at {:.4f}", alone.share, alone.loss));
  RecordProperty("beside", fmt::format("{:.3f} at {:.4f}", beside.share, beside.loss));
  EXPECT_GE(alone.share, 0.87);
  EXPECT_LE(alone.loss, 0.002);
  EXPECT_GE(beside.share, 0.97);
  EXPECT_LE(beside.loss, 0.003);
}

}  // namespace
}  // namespace octile::tuner
