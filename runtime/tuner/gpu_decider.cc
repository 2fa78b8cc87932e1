#include "runtime/tuner/gpu_decider.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "runtime/engine/cache_entry.h"
#include "runtime/prove/families.h"

namespace octile::tuner {
namespace {

// Returns the variants that a search will probably time: those of the default, which it always
// times, and of known winners.
std::vector<KernelConfig> likely_variants(const Exploration& exploration,
                                          const std::vector<KernelConfig>& winners) {
  std::vector<KernelConfig> likely;
  for (const Ranked& variant : exploration.variants) {
    const int of = variant.variant_of.value_or(0);
    const KernelConfig& base = exploration.shortlist[static_cast<std::size_t>(of)].config;
    if (of == 0 || std::ranges::find(winners, base) != winners.end())
      likely.push_back(variant.config);
  }
  return likely;
}

// Returns the number of a configuration among the candidates, or nothing.
std::optional<int> place_of(const std::optional<KernelConfig>& config,
                            const Exploration& exploration) {
  if (!config) return std::nullopt;
  const std::vector<Ranked> all = exploration.candidates();
  const auto found = std::ranges::find(all, *config, &Ranked::config);
  if (found == all.end()) return std::nullopt;
  return static_cast<int>(found - all.begin());
}

// Gives a turn back at the end of its life.
struct GivesBack {
  cache::Turn& turn;
  ~GivesBack() { turn.give_back(); }
};

std::optional<double> finite(std::optional<double> number) {
  return number && std::isfinite(*number) ? number : std::nullopt;
}

}  // namespace

GpuDecider::GpuDecider(TunerContext& context, GpuDeciderOptions options)
    : context_(context),
      options_(std::move(options)),
      known_(context.library.engine.records()),
      operands_(context, options_.seed) {}

void GpuDecider::expect(const TuningTask& task) {
  const DeviceSpec& device = context_.gpu.spec();
  const auto& [known_task, space] = expected_.emplace_back(task, take_space(task));
  const std::vector<KernelConfig> winners = known_.winners(task, device);
  const Exploration exploration = explore(task, device, space, options_.shortlist, winners);
  for (const Ranked& ranked : exploration.shortlist)
    context_.builds.start(task.problem, ranked.config, Need::kNext);
  for (const KernelConfig& variant : likely_variants(exploration, winners))
    context_.builds.start(task.problem, variant, Need::kNext);
  if (options_.times_operands) operands_.expect(task, known_);
}

// The model's candidates beside winners are the same whichever winners there will be.
void GpuDecider::foresee(const TuningTask& task) {
  ShortlistOptions options = options_.shortlist;
  options.liked = options.liked_beside_winners;
  options.different = options.different_beside_winners;
  context_.builds.start_later(
      task.problem, [task, options, device = context_.gpu.spec(), foreseen = foreseen_] {
        SearchSpace space = space_of(task, device);
        std::vector<KernelConfig> configs;
        const Exploration exploration = explore(task, device, space, options, {});
        for (const Ranked& ranked : exploration.shortlist) configs.push_back(ranked.config);
        std::ranges::copy(likely_variants(exploration, {}), std::back_inserter(configs));
        const std::scoped_lock lock(foreseen->mutex);
        foreseen->spaces.try_emplace(to_text(task), std::move(space));
        return configs;
      });
}

void GpuDecider::learn(const cache::TuningRecord& record) {
  known_.add(record);
  operands_.learn(record);
}

// Returns the task's space, from where it was explored ahead or anew.
SearchSpace GpuDecider::take_space(const TuningTask& task) {
  const auto known = std::ranges::find(expected_, task, &std::pair<TuningTask, SearchSpace>::first);
  if (known != expected_.end()) {
    SearchSpace space = std::move(known->second);
    expected_.erase(known);
    return space;
  }
  {
    const std::scoped_lock lock(foreseen_->mutex);
    if (auto ahead = foreseen_->spaces.extract(to_text(task))) return std::move(ahead.mapped());
  }
  return space_of(task, context_.gpu.spec());
}

Result<Decision> GpuDecider::decide(const TuningTask& task, const Budget& budget) {
  const DeviceSpec& device = context_.gpu.spec();
  const std::uint64_t seed = options_.seed;
  BesideSeconds seconds;
  std::optional<Spell> preparing(std::in_place, budget, seconds.operands);
  const Exploration exploration =
      explore(task, device, take_space(task), options_.shortlist, known_.winners(task, device));
  preparing.reset();
  const GivesBack turn{context_.turn};
  if (!wait_until([this] { return context_.take_device(); }, budget)) {
    Decision none;
    none.task = task;
    return none;
  }
  preparing.emplace(budget, seconds.operands);
  const bool is_alone = !options_.rivals && !options_.times_operands;
  const Budget searching =
      is_alone ? budget : budget.part(budget.left() * (1 - options_.beside_share));
  bench_.reset();  // frees its memory before the next bench takes some
  auto bench = make_bench(context_, task.problem, task.tokens, exploration.candidates(), seed);
  if (!bench) return tl::unexpected<Error>(bench.error());
  bench_ = std::move(*bench);
  preparing.reset();
  RaceOptions racing = options_.race;
  racing.incumbent = place_of(known_.incumbent(task, device), exploration);
  const auto found = search(*bench_, searching, racing);
  if (!found)
    return fail(found.error().code, fmt::format("{}, operands of seed {}: {}", to_text(task), seed,
                                                found.error().message));
  winner_ = found->winner;
  Decision decision = decision_of(task, device, exploration, *found, seed);
  decision.beside = seconds;
  if (!decision.decided()) return decision;
  const KernelBuild& kernel = *bench_->built(winner_).kernel;
  decision.record.toolchain = kernel.toolchain;
  decision.record.source_digest = kernel.source_digest;
  decision.record.protocol +=
      fmt::format(", graphs over {} sets of operands", bench_->slot_count());
  decision.record.date = utc_now();
  // A record holds no infinite number.
  if (options_.error_of) decision.record.error = finite(options_.error_of(task));
  if (Status ok = time_beside(task, budget, decision); !ok)
    return tl::unexpected<Error>(ok.error());
  decision.record.baselines_us.emplace_back("floor", floor_us(task, device));
  return decision;
}

Status GpuDecider::time_beside(const TuningTask& task, const Budget& budget, Decision& decision) {
  constexpr int kRounds = 10;
  BesideSeconds& seconds = decision.beside;
  Rivals rivals;
  if (options_.rivals) {
    const Spell making(budget, seconds.rivals);
    auto found = options_.rivals(task, *bench_);
    if (!found) return tl::unexpected<Error>(found.error());
    rivals = std::move(*found);
  }
  std::vector<OperandTimes::Open> quantizers;
  if (options_.times_operands) {
    const Spell making(budget, seconds.quantizers);
    auto open = operands_.open(task, known_, decision.wrong);
    if (!open) return tl::unexpected<Error>(open.error());
    quantizers = std::move(*open);
  }
  const Spell timing(budget, seconds.times);
  if (!rivals.contenders.empty() || !quantizers.empty()) {
    std::vector<Contender> contenders = rivals.contenders;
    TimingOptions options;
    options.rounds = kRounds;
    for (const OperandTimes::Open& quantizer : quantizers)
      contenders.push_back(quantizer.contender());
    // The device is kept as busy as in the race.
    contenders.push_back(bench_->contender(winner_));
    if (winner_ != 0 && bench_->has_kernel(0)) contenders.push_back(bench_->contender(0));
    const auto timings = measure(context_.gpu, contenders, options);
    if (!timings) return tl::unexpected<Error>(timings.error());
    const std::size_t others = rivals.contenders.size();
    for (std::size_t i = 0; i < others; ++i)
      decision.record.baselines_us.emplace_back((*timings)[i].name, (*timings)[i].median_us);
    for (std::size_t i = 0; i < quantizers.size(); ++i)
      operands_.note(quantizers[i].key, (*timings)[others + i].median_us);
  }
  if (options_.times_operands) decision.record.quantize_us = operands_.of(task);
  return {};
}

}  // namespace octile::tuner
