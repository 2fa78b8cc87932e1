#include "tools/tune/served.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "tools/tune/report.h"

namespace octile::tools {
namespace {

constexpr std::array kAll{ChosenBy::kRecord, ChosenBy::kNearBucket, ChosenBy::kNearShape,
                          ChosenBy::kSisterCard, ChosenBy::kModel};

using Counts = std::map<ChosenBy, int>;

std::string text_of(const Counts& counts) {
  std::string text;
  for (const ChosenBy by : kAll) {
    const auto count = counts.find(by);
    if (count == counts.end()) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(by), count->second);
  }
  return text;
}

// Sums over the decided token counts of one problem.
struct LayerRow {
  const Question* first = nullptr;
  int counts = 0;
  double default_us = 0, tuned_us = 0, floor_us = 0, bf16_us = 0;
  int without_bf16 = 0;
  Counts served = {};

  void add(const tuner::Decision& decision, ChosenBy by) {
    ++counts;
    ++served[by];
    if (!decision.decided()) return;
    const cache::TuningRecord& record = decision.record;
    tuned_us += record.winner.median_us;
    default_us += record.default_config ? record.default_config->median_us
                                        : record.winner.median_us * record.gain;
    floor_us += baseline_us(record, "floor");
    const double bf16 = baseline_us(record, "bf16");
    bf16_us += bf16;
    without_bf16 += bf16 > 0 ? 0 : 1;
  }
};

std::string sum_text(double us) { return us > 0 ? fmt::format("{:.1f}", us) : "-"; }

}  // namespace

std::string plan_line(const std::vector<Question>& questions, const std::vector<double>& us,
                      const DeviceSpec& device, int cores) {
  const auto needs = tuner::needs_of(tasks_of(by_weight(questions, us)), device, {}, cores);
  const bool is_one = questions.size() == 1;
  return fmt::format("{} question{} for {} need{} about {:.0f} s on {} cores", questions.size(),
                     is_one ? "" : "s", device.name, is_one ? "s" : "",
                     tuner::seconds_of_run(needs), cores);
}

TextTable plan_table(const std::vector<Question>& questions, const std::vector<double>& us) {
  struct Row {
    const Question* first = nullptr;
    std::int64_t least = 0, most = 0;  // token counts
    double least_us = 0, most_us = 0, all_us = 0;
    int counts = 0;
  };
  std::vector<Row> rows;
  std::unordered_map<std::string, std::size_t> places;  // by a problem's text
  double model_us = 0;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const Question& question = questions[i];
    const auto& [problem, tokens] = question.task;
    const auto [place, is_new] = places.try_emplace(to_text(problem), rows.size());
    if (is_new) rows.push_back({.first = &question, .least = tokens});
    Row& row = rows[place->second];
    const double of_layers = static_cast<double>(question.layers) * us[i];
    if (tokens <= row.least) row.least = tokens, row.least_us = of_layers;
    if (tokens >= row.most) row.most = tokens, row.most_us = of_layers;
    ++row.counts;
    row.all_us += of_layers;
    model_us += of_layers;
  }
  TextTable table(
      {"<layer", "layers", "<problem", "counts", "tokens", "us at least", "us at most", "weight"});
  table.cut("layer", 12).cut("problem", 20).leave_out({"us at least", "us at most", "counts"});
  for (const Row& row : rows) {
    table.add_row({row.first->layer, std::to_string(row.first->layers),
                   short_text(row.first->task.problem), std::to_string(row.counts),
                   row.least == row.most ? std::to_string(row.least)
                                         : fmt::format("{}-{}", row.least, row.most),
                   sum_text(row.least_us), sum_text(row.most_us),
                   model_us > 0 ? fmt::format("{:.1f} %", 100 * row.all_us / model_us) : "-"});
  }
  return table;
}

std::vector<ChosenBy> served_by(const tuner::RunResult& result, const DeviceSpec& device,
                                const cache::TuningSet& records) {
  std::vector<ChosenBy> served;
  for (const tuner::Decision& decision : result.decisions) {
    const auto& [problem, tokens] = decision.task;
    served.push_back(decision.decided() ? ChosenBy::kRecord
                                        : choose_config(problem, tokens, device, records).by);
  }
  return served;
}

std::string undecided_text(const tuner::RunResult& result, const std::vector<ChosenBy>& served) {
  Counts counts;
  for (std::size_t i = 0; i < served.size(); ++i) {
    if (!result.decisions[i].decided()) ++counts[served[i]];
  }
  return text_of(counts);
}

TextTable undecided_table(const std::vector<Question>& questions, const tuner::RunResult& result,
                          const std::vector<ChosenBy>& served) {
  TextTable table({"<undecided", "<problem", "tokens", "<served by"});
  table.cut("problem", 24).cut("undecided", 12);
  for (std::size_t i = 0; i < served.size(); ++i) {
    if (result.decisions[i].decided()) continue;
    const auto& [problem, tokens] = questions[i].task;
    table.add_row({questions[i].layer.empty() ? "-" : questions[i].layer, short_text(problem),
                   std::to_string(tokens), std::string(name_of(served[i]))});
  }
  return table;
}

TextTable layers_table(const std::vector<Question>& questions, const tuner::RunResult& result,
                       const std::vector<ChosenBy>& served) {
  std::vector<LayerRow> rows;
  std::unordered_map<std::string, std::size_t> places;  // by a problem's text
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const auto [place, is_new] =
        places.try_emplace(to_text(questions[i].task.problem), rows.size());
    if (is_new) rows.push_back({.first = &questions[i]});
    rows[place->second].add(result.decisions[i], served[i]);
  }
  TextTable table({"<layer", "<problem", "counts", "default us", "tuned us", "gain", "of floor",
                   "bf16 us", "<served by"});
  table.cut("layer", 12).cut("problem", 20).cut("served by", 12);
  table.leave_out({"of floor", "default us", "bf16 us", "served by"});
  for (const LayerRow& row : rows) {
    const bool timed = row.tuned_us > 0;
    table.add_row({row.first->layer.empty() ? "-" : row.first->layer,
                   short_text(row.first->task.problem), std::to_string(row.counts),
                   sum_text(row.default_us), sum_text(row.tuned_us),
                   timed ? fmt::format("{:.3f}", row.default_us / row.tuned_us) : "-",
                   timed ? fmt::format("{:.0f} %", 100 * row.floor_us / row.tuned_us) : "-",
                   row.without_bf16 == 0 ? sum_text(row.bf16_us) : "-", text_of(row.served)});
  }
  return table;
}

}  // namespace octile::tools
