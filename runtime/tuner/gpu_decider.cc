#include "runtime/tuner/gpu_decider.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/engine/cache_entry.h"

namespace octile::tuner {

void GpuDecider::expect(const TuningTask& task) {
  expected_.emplace_back(task, explore(task, shop_.gpu.spec(), options_.shortlist));
  for (const Ranked& ranked : expected_.back().second.shortlist)
    shop_.builds.start(task.problem, ranked.config);
}

Exploration GpuDecider::exploration_of(const TuningTask& task) {
  const auto known =
      std::ranges::find(expected_, task, &std::pair<TuningTask, Exploration>::first);
  if (known == expected_.end()) return explore(task, shop_.gpu.spec(), options_.shortlist);
  Exploration exploration = std::move(known->second);
  expected_.erase(known);
  return exploration;
}

Status GpuDecider::open_bench(const TuningTask& task, std::vector<Ranked> candidates) {
  const auto keep = [this](auto made) -> Status {
    if (!made) return tl::unexpected<Error>(made.error());
    bench_ = std::move(*made);
    return {};
  };
  bench_.reset();  // its memory, before the next one's
  if (const auto* gemm = std::get_if<GemmProblem>(&task.problem))
    return keep(
        GemmBench::create(shop_, *gemm, task.tokens, std::move(candidates), options_.seed));
  return keep(QuantizeBench::create(shop_, std::get<QuantizeProblem>(task.problem),
                                    task.tokens, std::move(candidates), options_.seed));
}

Result<Decision> GpuDecider::decide(const TuningTask& task, const Budget& budget) {
  const Exploration exploration = exploration_of(task);
  const std::uint64_t seed = options_.seed;
  const bool compares =
      options_.baselines != nullptr && std::holds_alternative<GemmProblem>(task.problem);
  const Budget searching =
      compares ? budget.part(budget.left() * (1 - options_.baseline_share)) : budget;
  if (Status ok = open_bench(task, exploration.candidates()); !ok)
    return tl::unexpected<Error>(ok.error());
  const auto found = search(*bench_, searching, options_.race);
  if (!found)
    return fail(found.error().code, fmt::format("{}, operands of seed {}: {}", to_text(task),
                                                seed, found.error().message));
  winner_ = found->winner;
  Decision decision = decision_of(task, shop_.gpu.spec(), exploration, *found, seed);
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
  const auto* gemm = std::get_if<GemmProblem>(&task.problem);
  if (options_.baselines && gemm != nullptr) {
    std::vector<int> beside{winner_};
    if (winner_ != 0 && bench_->has_kernel(0)) beside.push_back(0);
    auto others = options_.baselines(*gemm, task.tokens, *gemm_bench(), beside);
    if (!others) return tl::unexpected<Error>(others.error());
    decision.record.baselines_us = std::move(*others);
  }
  decision.record.baselines_us.emplace_back("floor", floor_us(task, shop_.gpu.spec()));
  return {};
}

}  // namespace octile::tuner
