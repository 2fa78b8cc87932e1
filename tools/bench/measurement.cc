#include "tools/bench/measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/engine/describe.h"
#include "runtime/families/families.h"
#include "tools/tune/tasks.h"

namespace octile::tools {

Result<Record> bench(const BenchContext& context, const Problem& problem, std::int64_t tokens) {
  return visit_family(problem, [&](const auto& one) { return bench(context, one, tokens); });
}

std::string bench_label(const Record& record) {
  const auto problem = parse_problem(record.what);
  if (!problem) return record.what;
  return visit_family(*problem, [](const auto& one) { return bench_label(one); });
}

Result<std::optional<Record>> host_overhead(const BenchContext& context, const Problem& problem) {
  return visit_family(problem, [&](const auto& one) { return host_overhead(context, one); });
}

Result<PreparedPlan> prepare_plan(const BenchContext& context, const Problem& problem,
                                  std::int64_t lo, std::int64_t hi) {
  auto plan = PlanHandle::create(context.library, context.gpu.device(), problem);
  if (!plan) return tl::unexpected<Error>(plan.error());
  if (Status ok = plan->prepare(lo, hi); !ok) return tl::unexpected<Error>(ok.error());
  const auto description = plan->describe();
  if (!description) return tl::unexpected<Error>(description.error());
  return PreparedPlan{std::move(*plan), description->at("kernels").at(0)};
}

Record record_of(const BenchContext& context, const Problem& problem, std::int64_t tokens) {
  Record record = new_record(context.tool, context.gpu);
  record.what = to_text(with_tokens(problem, tokens));
  record.unit = "us";
  record.details.set("tokens", tokens);
  return record;
}

void note_kernel(const Json& kernel, Record& record) {
  record.details.set("kernel", kernel.at("name"));
  record.details.set("config", kernel.at("config"));
}

Result<int> search_first(const BenchContext& context, const Problem& problem, std::int64_t tokens,
                         Record& record) {
  const tuner::Budget budget(tuner::steady_clock(), context.search_seconds);
  const auto decision = context.search->decide(task_at(problem, tokens), budget);
  if (!decision) return tl::unexpected<Error>(decision.error());
  const int winner = context.search->winner();
  const tuner::GpuBench& bench = *context.search->bench();
  if (decision->outcome == tuner::Outcome::kNoneRight || !bench.has_kernel(winner)) {
    return fail(ErrorCode::kInternal,
                fmt::format("the search for {} has no kernel to offer: {}", to_text(decision->task),
                            tuner::name_of(decision->outcome)));
  }
  note_kernel(describe(*bench.built(winner).kernel), record);
  record.details.set("search", tuner::name_of(decision->outcome));
  return winner;
}

Status compare(const BenchContext& context, const std::vector<Contender>& contenders,
               const std::string& version, Record& record) {
  TimingOptions options;
  options.rounds = context.rounds;
  const auto timings = measure(context.gpu, contenders, options);
  if (!timings) return tl::unexpected<Error>(timings.error());
  record.protocol = replay_protocol(context.rounds, context.slots == 0);
  record.values = measured(timings->front().rounds_us);
  if (contenders.size() < 2) return {};
  record.peers = {peer_of(
      *std::min_element(timings->begin() + 1, timings->end(),
                        [](const Timing& a, const Timing& b) { return a.median_us < b.median_us; }),
      version)};
  return {};
}

std::string version_text(const CublasLt& library) {
  const std::size_t version = library.version();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

double detail_of(const Record& record, const char* detail) {
  return record.details.at(detail).number().value_or(0);
}

double tera_per_second(const Record& record, const char* detail) {
  return detail_of(record, detail) / record.values.median * 1e-6;
}

}  // namespace octile::tools
