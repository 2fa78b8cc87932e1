#include "runtime/tuner/gemm_decider.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/engine/cache_entry.h"

namespace octile::tuner {

void GemmDecider::expect(const Question& question) {
  expected_.emplace_back(question, explore(question, shop_.gpu.spec(), options_.shortlist));
  for (const Ranked& ranked : expected_.back().second.shortlist)
    shop_.builds.start(question.problem, ranked.config);
}

Exploration GemmDecider::exploration_of(const Question& question) {
  const auto known =
      std::ranges::find(expected_, question, &std::pair<Question, Exploration>::first);
  if (known == expected_.end()) return explore(question, shop_.gpu.spec(), options_.shortlist);
  Exploration exploration = std::move(known->second);
  expected_.erase(known);
  return exploration;
}

Result<Decision> GemmDecider::decide(const Question& question, const Budget& budget) {
  const Exploration exploration = exploration_of(question);
  const std::uint64_t seed = options_.seed;
  const bool compares = options_.baselines != nullptr;
  const Budget searching =
      compares ? budget.part(budget.left() * (1 - options_.baseline_share)) : budget;
  bench_.reset();  // its memory, before the next one's
  auto bench =
      GemmBench::create(shop_, question.problem, question.tokens, exploration.shortlist, seed);
  if (!bench) return tl::unexpected<Error>(bench.error());
  bench_ = std::move(*bench);
  const auto found = search(*bench_, searching, options_.race);
  if (!found)
    return fail(found.error().code, fmt::format("{}, operands of seed {}: {}", to_text(question),
                                                seed, found.error().message));
  winner_ = found->winner;
  Decision decision = decision_of(question, shop_.gpu.spec(), exploration, *found, seed);
  if (!decision.decided()) return decision;
  const KernelBuild& kernel = bench_->kernel(winner_).build();
  decision.record.toolchain = kernel.toolchain;
  decision.record.source_digest = kernel.source_digest;
  decision.record.protocol +=
      fmt::format(", graphs over {} sets of operands", bench_->slots().size());
  decision.record.date = utc_now();
  if (Status ok = add_baselines(question, decision); !ok) return tl::unexpected<Error>(ok.error());
  return decision;
}

Status GemmDecider::add_baselines(const Question& question, Decision& decision) {
  if (options_.baselines) {
    std::vector<int> beside{winner_};
    if (winner_ != 0 && bench_->has_kernel(0)) beside.push_back(0);
    auto others = options_.baselines(question, *bench_, beside);
    if (!others) return tl::unexpected<Error>(others.error());
    decision.record.baselines_us = std::move(*others);
  }
  decision.record.baselines_us.emplace_back("floor", floor_us(question, shop_.gpu.spec()));
  return {};
}

}  // namespace octile::tuner
