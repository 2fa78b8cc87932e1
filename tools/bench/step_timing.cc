#include "tools/bench/step_timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tools/common/text_table.h"

namespace octile::tools {
namespace {

constexpr int kStepsInARow = 8;  // of the call-by-call timing
constexpr const char* kStep = "step";

Status run_all(const std::vector<StepCall>& calls, CUstream stream) {
  Status ok;
  for (const StepCall& call : calls) {
    if (ok) ok = call.enqueue(stream);
  }
  return ok;
}

// Both whole steps, then the parts of each. The contenders must not outlive the calls.
void add_contenders(const StepCalls& calls, std::vector<Contender>& contenders) {
  const auto add_parts = [&](const std::string& prefix, const std::vector<StepCall>& parts) {
    for (const StepCall& part : parts) {
      contenders.push_back(
          {prefix + part.name, [&part](int, CUstream stream) { return part.enqueue(stream); }});
    }
  };
  contenders.push_back({kStep, [&calls](int, CUstream stream) { return calls.step(stream); }});
  contenders.push_back(
      {"bf16 step", [&calls](int, CUstream stream) { return run_all(calls.bf16, stream); }});
  add_parts("", calls.octile);
  add_parts("bf16 ", calls.bf16);
}

// Returns the times of steps that are enqueued call by call. A round is several steps in a row.
Result<Measured> time_call_by_call(const BenchContext& context, const StepCalls& calls) {
  const GpuSession& gpu = context.gpu;
  const auto start = Event::create(gpu.driver());
  if (!start) return tl::unexpected<Error>(start.error());
  const auto stop = Event::create(gpu.driver());
  if (!stop) return tl::unexpected<Error>(stop.error());
  std::vector<double> samples;
  for (int round = 0; round < context.rounds; ++round) {
    Status ok = start->record(gpu.stream());
    for (int i = 0; ok && i < kStepsInARow; ++i) ok = calls.step(gpu.stream());
    if (ok) ok = stop->record(gpu.stream());
    if (ok) ok = stop->synchronize();
    if (!ok) return tl::unexpected<Error>(ok.error());
    const auto us = stop->elapsed_us_since(*start);
    if (!us) return tl::unexpected<Error>(us.error());
    samples.push_back(*us / kStepsInARow);
  }
  return measured(std::move(samples));
}

// Takes the timings of a step, in the order of add_contenders().
std::vector<Record> take_records(const StepCalls& calls, const Record& blank,
                                 std::vector<Timing>::const_iterator& next) {
  const auto record_of_part = [&](const std::string& name, const Timing& timing) {
    Record record = blank;
    record.part = name;
    record.values = measured(timing.rounds_us);
    return record;
  };
  Record step = record_of_part(kStep, *next++);
  step.peers = {peer_of(*next++, "")};
  step.peers.front().name = "bf16";
  std::vector<Record> records;
  for (const StepCall& part : calls.octile) records.push_back(record_of_part(part.name, *next++));
  for (const StepCall& part : calls.bf16) {
    const auto record = std::ranges::find(records, part.name, &Record::part);
    record->peers = {peer_of(*next++, "")};
    record->peers.front().name = "bf16";
  }
  records.push_back(std::move(step));
  return records;
}

// Returns the sum of the medians of the parts, Octile's or the peers'.
double sum_of_parts(const std::vector<Record>& records, bool is_octile) {
  double sum = 0;
  for (const Record& record : records) {
    if (record.part.starts_with(kStep)) continue;
    if (is_octile) sum += record.values.median;
    if (!is_octile && !record.peers.empty()) sum += first_peer_values(record).median;
  }
  return sum;
}

}  // namespace

Result<std::vector<std::vector<Record>>> time_steps(const BenchContext& context,
                                                    const std::vector<StepCalls>& steps,
                                                    const std::vector<Record>& blanks) {
  std::vector<Contender> contenders;
  for (const StepCalls& calls : steps) add_contenders(calls, contenders);
  TimingOptions options;
  options.rounds = context.rounds;
  const auto timings = measure(context.gpu, contenders, options);
  if (!timings) return tl::unexpected<Error>(timings.error());
  std::vector<std::vector<Record>> all;
  auto next = timings->cbegin();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Record blank = blanks[i];
    blank.unit = "us";
    blank.protocol = replay_protocol(context.rounds, false);
    std::vector<Record>& records = all.emplace_back(take_records(steps[i], blank, next));
    auto eager = time_call_by_call(context, steps[i]);
    if (!eager) return tl::unexpected<Error>(eager.error());
    blank.part = fmt::format("{}, call by call", kStep);
    blank.protocol = {"stream", context.rounds, false, "warm",
                      fmt::format("a round is {} steps in a row", kStepsInARow)};
    blank.values = std::move(*eager);
    records.push_back(std::move(blank));
  }
  return all;
}

void note_checks(const std::vector<GemmCheck>& checks, Record& record) {
  for (const GemmCheck& check : checks) {
    record.ok = record.ok && check.ok;
    record.check += (record.check.empty() ? "" : "; ") + check.worst.to_text();
  }
}

const Record& step_of(const std::vector<Record>& records) {
  return *std::ranges::find(records, kStep, &Record::part);
}

std::string step_text(const std::vector<Record>& records) {
  TextTable table({"<part", "us", "share"});
  const auto add = [&](const std::string& name, const Measured& values, double sum) {
    const bool is_part = name.find(kStep) == std::string::npos;
    table.add_row({name, fmt::format("{:.1f}", values.median),
                   is_part ? fmt::format("{:.1f} %", 100 * values.median / sum) : "-"});
  };
  for (const Record& r : records) add(r.part, r.values, sum_of_parts(records, true));
  for (const Record& r : records) {
    if (!r.peers.empty()) add("bf16 " + r.part, first_peer_values(r), sum_of_parts(records, false));
  }
  const Record& step = step_of(records);
  return fmt::format("{}  {:.3f}x bf16 as a graph, {:.3f}x of the graph's time call by call\n",
                     table.render(), ratio_of(step, step.peers.front()).median,
                     records.back().values.median / step.values.median);
}

}  // namespace octile::tools
