#include "tools/bench/measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/engine/describe.h"
#include "runtime/families/families.h"
#include "tools/tune/report.h"
#include "tools/tune/tasks.h"

namespace octile::tools {

Result<BenchResult> bench(const BenchContext& context, const Problem& problem,
                          std::int64_t tokens) {
  return visit_family(problem, [&](const auto& one) { return bench(context, one, tokens); });
}

std::string bench_label(const Problem& problem, std::int64_t tokens) {
  return visit_family(problem, [&](const auto& one) { return bench_label(one, tokens); });
}

Result<std::optional<HostOverhead>> host_overhead(const BenchContext& context,
                                                  const Problem& problem) {
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

Result<int> search_first(const BenchContext& context, const Problem& problem, BenchResult& result) {
  const tuner::Budget budget(tuner::steady_clock(), context.search_seconds);
  const auto decision = context.search->decide(task_at(problem, result.tokens), budget);
  if (!decision) return tl::unexpected<Error>(decision.error());
  const int winner = context.search->winner();
  const tuner::GpuBench& bench = *context.search->bench();
  if (decision->outcome == tuner::Outcome::kNoneRight || !bench.has_kernel(winner)) {
    return fail(ErrorCode::kInternal,
                fmt::format("the search for {} has no kernel to offer: {}", to_text(decision->task),
                            tuner::name_of(decision->outcome)));
  }
  result.kernel = describe(*bench.built(winner).kernel);
  result.search = to_json(*decision);
  return winner;
}

Status compare(const BenchContext& context, const std::vector<Contender>& contenders,
               std::size_t slots, BenchResult& result) {
  TimingOptions options;
  options.rounds = context.rounds;
  options.slots = static_cast<int>(slots);
  auto timings = measure(context.gpu, contenders, options);
  if (!timings) return tl::unexpected<Error>(timings.error());
  result.ours = std::move(timings->front());
  if (contenders.size() < 2) return {};
  result.baseline = std::move(*std::min_element(
      timings->begin() + 1, timings->end(),
      [](const Timing& a, const Timing& b) { return a.median_us < b.median_us; }));
  result.ratio = median_ratio(*result.baseline, result.ours);
  return {};
}

Json to_json(const BenchResult& result) {
  Json object{{"problem", to_text(result.problem)},
              {"tokens", result.tokens},
              {"kernel", result.kernel.at("name")},
              {"config", result.kernel.at("config")},
              {"ok", result.ok},
              {"check", result.check},
              {"octile", to_json(result.ours)},
              {"tbps", result.tbps}};
  if (!result.search.is_null()) object["search"] = result.search;
  if (result.tflops) object["tflops"] = *result.tflops;
  if (result.scale_share) object["scale_share"] = *result.scale_share;
  if (result.baseline) {
    object["baseline"] = to_json(*result.baseline);
    object["ratio"] = result.ratio;
  }
  return object;
}

}  // namespace octile::tools
