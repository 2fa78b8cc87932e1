#include "runtime/tuner/decision.h"

#include <fmt/format.h>

#include <utility>

#include "generator/families.h"
#include "runtime/engine/choice.h"
#include "runtime/engine/engine.h"

namespace octile::tuner {
namespace {

std::string config_text(const Exploration& exploration, int candidate) {
  const auto at = static_cast<std::size_t>(candidate), listed = exploration.shortlist.size();
  return to_text(
      (at < listed ? exploration.shortlist[at] : exploration.variants.at(at - listed)).config);
}

void fill_times(const Exploration& exploration, const SearchResult& search,
                cache::TuningRecord& record) {
  for (const Standing& standing : search.race.standings) {
    const cache::TimedConfig timed{config_text(exploration, standing.candidate), standing.median_us,
                                   standing.interval_us.lo, standing.interval_us.hi};
    if (standing.candidate == 0) record.default_config = timed;
    if (standing.candidate == search.winner) {
      record.winner = timed;
    } else if (!record.runner_up) {
      record.runner_up = timed;
    }
  }
  record.gain = search.race.gain;
  record.noise = search.race.noise;
}

}  // namespace

std::string to_text(const WrongCandidate& wrong) {
  return fmt::format("{} at {} tokens, operands of seed {}: {} is wrong: {}", wrong.problem,
                     wrong.tokens, wrong.seed, wrong.config, wrong.why);
}

cache::TuningRecord record_key(const TuningTask& task, const DeviceSpec& device) {
  cache::TuningRecord record;
  record.problem = tuning_text(task.problem);
  record.bucket = bucket_upper(bucket_of(task.tokens));
  record.tokens = task.tokens;
  record.device = device.name;
  record.sm_count = device.sm_count;
  return record;
}

Decision decision_of(const TuningTask& task, const DeviceSpec& device,
                     const Exploration& exploration, const SearchResult& search,
                     std::uint64_t seed) {
  Decision decision;
  decision.task = task;
  decision.outcome = search.outcome;
  decision.searching = search.seconds;
  cache::TuningRecord& record = decision.record;
  record = record_key(task, device);
  record.family = family_name(task.problem);
  record.device_name = device.full_name;
  fill_times(exploration, search, record);
  for (const Dropped& dropped : search.dropped) {
    if (dropped.stage == Stage::kCompile) ++decision.not_compiled;
    if (dropped.stage == Stage::kSpills) ++decision.spilled;
    if (dropped.stage != Stage::kVerify) continue;
    decision.wrong.push_back({record.problem, task.tokens,
                              config_text(exploration, dropped.candidate), seed, dropped.why});
  }
  record.counts.enumerated = static_cast<std::int64_t>(exploration.enumerated);
  record.counts.admitted = static_cast<std::int64_t>(exploration.admitted);
  record.counts.compiled = search.compiled;
  record.counts.failed_verify = static_cast<std::int64_t>(decision.wrong.size());
  record.counts.timed = search.timed;
  const DeviceTelemetry& conditions = search.race.conditions;
  record.conditions = {conditions.sm_clock_mhz, conditions.memory_clock_mhz, conditions.power_watts,
                       search.race.throttled_repeated};
  record.protocol = fmt::format(
      "race 1: {} laps, {} blocks of A B D D B A{}", search.race.laps, search.race.blocks,
      search.race.throttled_kept > 0
          ? fmt::format(", {} of them throttled", search.race.throttled_kept)
          : "");
  return decision;
}

}  // namespace octile::tuner
