#include "tools/tune/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "runtime/engine/engine.h"
#include "runtime/families/families.h"
#include "tools/common/terminal.h"

namespace octile::tools {
namespace {

Json timed_json(const cache::TimedConfig& timed) {
  return {{"config", timed.config},
          {"median_us", timed.median_us},
          {"low_us", timed.low_us},
          {"high_us", timed.high_us}};
}

void add_times(const char* field, const cache::TuningRecord::NamedTimes& times, Json& object) {
  Json all = Json::object();
  for (const auto& [name, us] : times) all.set(name, us);
  if (!all.empty()) object.add(field, std::move(all));
}

Measured measured_of(const cache::TimedConfig& timed) {
  return {{}, timed.median_us, Interval{timed.low_us, timed.high_us}};
}

// A decision's seconds, by their use. The rest went into exploring for the next
// question.
Json seconds_json(const tuner::Decision& decision) {
  const auto& [builds, verify, first_times, race] = decision.searching;
  const auto& [operands, rivals, quantizers, times] = decision.beside;
  return {{"operands", operands},       {"builds", builds}, {"verify", verify},
          {"first_times", first_times}, {"race", race},     {"rivals", rivals},
          {"quantizers", quantizers},   {"beside", times}};
}

std::string us_text(double us) { return us > 0 ? fmt::format("{:.2f}", us) : "-"; }

std::string share_text(const cache::TuningRecord& record) {
  const double floor = baseline_us(record, "floor");
  if (floor <= 0 || record.winner.median_us <= 0) return "-";
  return fmt::format("{:.0f} %", 100 * floor / record.winner.median_us);
}

}  // namespace

double baseline_us(const cache::TuningRecord& record, std::string_view name) {
  const auto found = std::find_if(record.baselines_us.begin(), record.baselines_us.end(),
                                  [&](const auto& baseline) { return baseline.first == name; });
  return found == record.baselines_us.end() ? 0 : found->second;
}

Json to_json(const tuner::Decision& decision) {
  const cache::TuningRecord& record = decision.record;
  Json object{{"problem", to_text(decision.task.problem)},
              {"tokens", decision.task.tokens},
              {"outcome", tuner::name_of(decision.outcome)},
              {"seconds", decision.seconds},
              {"seconds_of", seconds_json(decision)}};
  if (decision.decided()) {
    object.set("winner", timed_json(record.winner));
    if (record.default_config) object.set("default", timed_json(*record.default_config));
    if (record.runner_up) object.set("runner_up", timed_json(*record.runner_up));
    object.set("gain", record.gain);
    object.set("noise", record.noise);
    add_times("baselines_us", record.baselines_us, object);
    add_times("quantize_us", record.quantize_us, object);
    object.set("protocol", record.protocol);
  }
  object.set("candidates", {{"enumerated", record.counts.enumerated},
                            {"admitted", record.counts.admitted},
                            {"compiled", record.counts.compiled},
                            {"not_compiled", decision.not_compiled},
                            {"spilled", decision.spilled},
                            {"failed_verify", record.counts.failed_verify},
                            {"timed", record.counts.timed}});
  object.set("conditions", {{"sm_clock_mhz", record.conditions.sm_clock_mhz},
                            {"memory_clock_mhz", record.conditions.memory_clock_mhz},
                            {"power_watts", record.conditions.power_watts},
                            {"throttled_rounds", record.conditions.throttled_rounds}});
  Json wrong = Json::array();
  for (const tuner::WrongCandidate& candidate : decision.wrong)
    wrong.push_back({{"problem", candidate.problem},
                     {"tokens", candidate.tokens},
                     {"config", candidate.config},
                     {"seed", candidate.seed},
                     {"why", candidate.why}});
  return object.add("wrong", std::move(wrong));
}

std::string spilled_text(const std::vector<tuner::Decision>& decisions) {
  int candidates = 0, questions = 0;
  for (const tuner::Decision& decision : decisions) {
    candidates += decision.spilled;
    questions += decision.spilled > 0 ? 1 : 0;
  }
  if (candidates == 0) return "";
  return fmt::format("{} candidate{} of {} question{} spilled registers and {} left out",
                     candidates, candidates == 1 ? "" : "s", questions, questions == 1 ? "" : "s",
                     candidates == 1 ? "was" : "were");
}

void add_error(const tuner::TuningTask& task, std::optional<double> error, Json& object) {
  const auto* gemm = problem_as<GemmProblem>(task.problem);
  if (gemm == nullptr || !error) return;
  object.set("promote", promote_text(gemm->promote));
  object.set("error", *error);
}

Record record_of(const tuner::Decision& decision, Record record, std::optional<double> error) {
  const cache::TuningRecord& decided = decision.record;
  record.what = to_text(with_tokens(decision.task.problem, decision.task.tokens));
  record.protocol = {"graph", 0, true, "cold", decided.protocol};
  record.unit = "us";
  record.values = measured_of(decided.winner);
  if (decided.default_config)
    record.peers.push_back({"default", "", measured_of(*decided.default_config), {}});
  for (const auto& [name, us] : decided.baselines_us)
    record.peers.push_back({name, "", Measured{{}, us, {}}, {}});
  record.check = "every candidate was checked before it was timed, and the winner in full";
  record.details = {{"tokens", decision.task.tokens},
                    {"config", decided.winner.config},
                    {"outcome", tuner::name_of(decision.outcome)},
                    {"gain", decided.gain},
                    {"noise", decided.noise}};
  add_error(decision.task, error, record.details);
  return record;
}

Json to_json(const tuner::TuningTask& task, const tuner::Exploration& exploration) {
  Json removed = Json::object();
  for (const Removal& rule : exploration.removed) removed.set(rule.name, rule.count);
  Json list = Json::array();
  for (const tuner::Ranked& ranked : exploration.shortlist)
    list.push_back({{"config", to_text(ranked.config)}, {"estimate_us", ranked.estimate_us}});
  return {{"problem", to_text(task.problem)},       {"tokens", task.tokens},
          {"enumerated", exploration.enumerated},   {"removed", removed},
          {"admitted", exploration.admitted},       {"shortlist", list},
          {"variants", exploration.variants.size()}};
}

TextTable explanation_summary(const std::vector<ExplainedTask>& tasks) {
  TextTable table({"<problem", "tokens", "configurations", "admitted", "shortlist", "model us",
                   "<most are removed by"});
  table.cut("problem", 32).leave_out({"most are removed by", "configurations", "admitted"});
  for (const auto& [task, exploration] : tasks) {
    const auto most = std::ranges::max_element(exploration.removed, {}, &Removal::count);
    table.add_row(
        {short_text(task.problem), std::to_string(task.tokens),
         std::to_string(exploration.enumerated), std::to_string(exploration.admitted),
         std::to_string(exploration.shortlist.size()),
         exploration.shortlist.empty() ? "-" : us_text(exploration.shortlist.front().estimate_us),
         most == exploration.removed.end() ? "-" : std::string(most->name)});
  }
  return table;
}

std::string explanation_text(const tuner::TuningTask& task, const tuner::Exploration& exploration,
                             std::size_t width) {
  constexpr std::size_t kCountColumns = 9;
  std::string text =
      fmt::format("{}\n{} configurations, {} admitted\n\nremoved by the constraint\n",
                  tuner::to_text(task), exploration.enumerated, exploration.admitted);
  for (const Removal& rule : exploration.removed) {
    const std::string line = fmt::format("{:>7}  {}: {}", rule.count, rule.name, rule.reason);
    text += (width == 0 ? line : wrapped(line, width, kCountColumns)) + "\n";
  }
  text += "\nshortlist, the default first\n";
  TextTable list({"model us", "<configuration"});
  list.cut("configuration", 40);
  for (const tuner::Ranked& ranked : exploration.shortlist)
    list.add_row({fmt::format("{:.2f}", ranked.estimate_us), to_text(ranked.config)});
  text += list.render(width);
  if (!exploration.variants.empty())
    text +=
        fmt::format("{} variants that differ in their raster; those of the fastest two are timed\n",
                    exploration.variants.size());
  return text;
}

TextTable decisions_table(const std::vector<tuner::Decision>& decisions,
                          const std::vector<ChosenBy>& served) {
  TextTable table({"<problem", "tokens", "default us", "tuned us", "gain", "of floor",
                   "cublaslt us", "bf16 us", "<outcome", "<served by"});
  table.cut("problem", 24)
      .leave_out({"served by", "bf16 us", "cublaslt us", "of floor", "default us"});
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    const tuner::Decision& decision = decisions[i];
    const cache::TuningRecord& record = decision.record;
    const bool decided = decision.decided();
    const double default_us = record.default_config ? record.default_config->median_us : 0;
    table.add_row({short_text(decision.task.problem), std::to_string(decision.task.tokens),
                   us_text(default_us), us_text(record.winner.median_us),
                   decided ? fmt::format("{:.3f}", record.gain) : "-", share_text(record),
                   us_text(baseline_us(record, "cublaslt")), us_text(baseline_us(record, "bf16")),
                   std::string(tuner::name_of(decision.outcome)),
                   std::string(octile::name_of(served[i]))});
  }
  return table;
}

}  // namespace octile::tools
