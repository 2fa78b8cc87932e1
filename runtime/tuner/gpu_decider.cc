#include "runtime/tuner/gpu_decider.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/engine/cache_entry.h"
#include "runtime/prove/families.h"

namespace octile::tuner {

void GpuDecider::expect(const TuningTask& task) {
  expected_.emplace_back(task, explore(task, context_.gpu.spec(), options_.shortlist));
  for (const Ranked& ranked : expected_.back().second.shortlist)
    context_.builds.start(task.problem, ranked.config);
}

Exploration GpuDecider::exploration_of(const TuningTask& task) {
  const auto known = std::ranges::find(expected_, task, &std::pair<TuningTask, Exploration>::first);
  if (known == expected_.end()) return explore(task, context_.gpu.spec(), options_.shortlist);
  Exploration exploration = std::move(known->second);
  expected_.erase(known);
  return exploration;
}

bool GpuDecider::has_baselines(const TuningTask& task) const {
  return options_.has_baselines && options_.has_baselines(task.problem);
}

Result<Decision> GpuDecider::decide(const TuningTask& task, const Budget& budget) {
  const Exploration exploration = exploration_of(task);
  const std::uint64_t seed = options_.seed;
  const Budget searching =
      has_baselines(task) ? budget.part(budget.left() * (1 - options_.baseline_share)) : budget;
  bench_.reset();  // frees its memory before the next bench takes some
  auto bench = make_bench(context_, task.problem, task.tokens, exploration.candidates(), seed);
  if (!bench) return tl::unexpected<Error>(bench.error());
  bench_ = std::move(*bench);
  const auto found = search(*bench_, searching, options_.race);
  if (!found)
    return fail(found.error().code, fmt::format("{}, operands of seed {}: {}", to_text(task), seed,
                                                found.error().message));
  winner_ = found->winner;
  Decision decision = decision_of(task, context_.gpu.spec(), exploration, *found, seed);
  if (!decision.decided()) return decision;
  const KernelBuild& kernel = *bench_->built(winner_).kernel;
  decision.record.toolchain = kernel.toolchain;
  decision.record.source_digest = kernel.source_digest;
  decision.record.protocol +=
      fmt::format(", graphs over {} sets of operands", bench_->slot_count());
  decision.record.date = utc_now();
  if (Status ok = add_baselines(task, decision); !ok) return tl::unexpected<Error>(ok.error());
  return decision;
}

Status GpuDecider::add_baselines(const TuningTask& task, Decision& decision) {
  if (has_baselines(task)) {
    std::vector<int> beside{winner_};
    if (winner_ != 0 && bench_->has_kernel(0)) beside.push_back(0);
    auto others = options_.time_baselines(task, *bench_, beside);
    if (!others) return tl::unexpected<Error>(others.error());
    decision.record.baselines_us = std::move(*others);
  }
  decision.record.baselines_us.emplace_back("floor", floor_us(task, context_.gpu.spec()));
  return {};
}

}  // namespace octile::tuner
