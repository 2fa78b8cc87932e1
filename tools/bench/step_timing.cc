#include "tools/bench/step_timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "tools/common/text_table.h"

namespace octile::tools {
namespace {

constexpr int kStepsInARow = 8;  // of the call-by-call timing

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
  contenders.push_back({"step", [&calls](int, CUstream stream) { return calls.step(stream); }});
  contenders.push_back(
      {"bf16 step", [&calls](int, CUstream stream) { return run_all(calls.bf16, stream); }});
  add_parts("", calls.ours);
  add_parts("bf16 ", calls.bf16);
}

// Times steps that are enqueued call by call. A round is several steps in a row.
Result<Timing> time_call_by_call(const BenchContext& context, const StepCalls& calls) {
  const GpuSession& gpu = context.gpu;
  const auto start = Event::create(gpu.driver());
  if (!start) return tl::unexpected<Error>(start.error());
  const auto stop = Event::create(gpu.driver());
  if (!stop) return tl::unexpected<Error>(stop.error());
  Timing timing{"step, call by call", {}, 0, 0, 0};
  for (int round = 0; round < context.rounds; ++round) {
    Status ok = start->record(gpu.stream());
    for (int i = 0; ok && i < kStepsInARow; ++i) ok = calls.step(gpu.stream());
    if (ok) ok = stop->record(gpu.stream());
    if (ok) ok = stop->synchronize();
    if (!ok) return tl::unexpected<Error>(ok.error());
    const auto us = stop->elapsed_us_since(*start);
    if (!us) return tl::unexpected<Error>(us.error());
    timing.rounds_us.push_back(*us / kStepsInARow);
  }
  summarize(timing);
  return timing;
}

// Takes the next `count` timings as parts of one step.
std::vector<StepPart> take_parts(std::vector<Timing>::iterator& next, std::size_t count) {
  std::vector<StepPart> parts;
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    parts.push_back({std::move(*next++), 0});
    sum += parts.back().timing.median_us;
  }
  for (StepPart& part : parts) part.share = part.timing.median_us / sum;
  return parts;
}

Json to_json(const std::vector<StepPart>& parts) {
  Json all = Json::array();
  for (const StepPart& part : parts) {
    Json one = octile::to_json(part.timing);
    one["share"] = part.share;
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace

bool StepReport::ok() const {
  return std::ranges::all_of(checks, [](const GemmCheck& check) { return check.ok; });
}

Result<std::vector<StepReport>> time_steps(const BenchContext& context,
                                           const std::vector<StepCalls>& steps) {
  std::vector<Contender> contenders;
  for (const StepCalls& calls : steps) add_contenders(calls, contenders);
  TimingOptions options;
  options.rounds = context.rounds;
  auto timings = measure(context.gpu, contenders, options);
  if (!timings) return tl::unexpected<Error>(timings.error());
  std::vector<StepReport> reports;
  auto next = timings->begin();
  for (const StepCalls& calls : steps) {
    StepReport& report = reports.emplace_back();
    report.step = std::move(*next++);
    report.bf16_step = std::move(*next++);
    report.parts = take_parts(next, calls.ours.size());
    report.bf16_parts = take_parts(next, calls.bf16.size());
    report.speedup = median_ratio(report.bf16_step, report.step);
    auto eager = time_call_by_call(context, calls);
    if (!eager) return tl::unexpected<Error>(eager.error());
    report.call_by_call = std::move(*eager);
  }
  return reports;
}

Json to_json(const StepReport& r) {
  Json checks = Json::array();
  for (const GemmCheck& check : r.checks) checks.push_back(check.worst.to_text());
  return {{"ok", r.ok()},
          {"checks", checks},
          {"step", octile::to_json(r.step)},
          {"call_by_call", octile::to_json(r.call_by_call)},
          {"bf16", octile::to_json(r.bf16_step)},
          {"speedup", r.speedup},
          {"parts", to_json(r.parts)},
          {"bf16_parts", to_json(r.bf16_parts)}};
}

std::string step_text(const StepReport& r) {
  TextTable table({"<part", "us", "share"});
  const auto add = [&](const Timing& timing, const std::string& share) {
    table.add_row({timing.name, fmt::format("{:.1f}", timing.median_us), share});
  };
  const auto add_parts = [&](const std::vector<StepPart>& parts) {
    for (const StepPart& part : parts) add(part.timing, fmt::format("{:.1f} %", 100 * part.share));
  };
  add_parts(r.parts);
  add(r.step, "-");
  add(r.call_by_call, "-");
  add_parts(r.bf16_parts);
  add(r.bf16_step, "-");
  return fmt::format("{}  {:.3f}x bf16 as a graph, {:.3f}x of the graph's time call by call\n",
                     table.render(), r.speedup, r.call_by_call.median_us / r.step.median_us);
}

}  // namespace octile::tools
