#include "runtime/tuner/regret.h"

#include <algorithm>
#include <utility>

#include "runtime/prove/families.h"

namespace octile::tuner {

Regret regret_of(const SearchResult& search, int decision,
                 const std::function<std::string(int)>& name) {
  Regret regret;
  regret.config = name(decision);
  regret.timed = search.timed;
  for (const Dropped& dropped : search.dropped) {
    if (dropped.stage == Stage::kVerify)
      regret.wrong.push_back(name(dropped.candidate) + " is wrong: " + dropped.why);
  }
  const std::vector<Standing>& standings = search.race.standings;
  const auto own = std::ranges::find(standings, decision, &Standing::candidate);
  regret.finished = search.race.finished && own != standings.end();
  if (!regret.finished) return regret;
  const Standing& best = standings.front();
  regret.fastest = name(best.candidate);
  regret.config_us = own->median_us;
  regret.fastest_us = best.median_us;
  regret.over_fastest = own->over_best;
  regret.over_fastest_interval = own->over_best_interval;
  return regret;
}

Exploration listed_for_regret(const TuningTask& task, const DeviceSpec& device,
                              const KernelConfig& decision, const RegretOptions& options) {
  SearchSpace space = space_of(task, device);
  const std::size_t admitted = space.admitted.size();
  if (estimates_time(task.problem) && !space.admitted.empty()) {
    const double best =
        std::ranges::min_element(space.admitted, {}, &Ranked::estimate_us)->estimate_us;
    std::erase_if(space.admitted,
                  [&](const Ranked& one) { return one.estimate_us > options.within * best; });
  }
  const ShortlistOptions all{.liked_beside_winners = options.most, .different_beside_winners = 0};
  Exploration listed = explore(task, device, space, all, {decision});
  listed.admitted = admitted;
  return listed;
}

Result<Regret> measure_regret(TunerContext& context, const TuningTask& task,
                              const KernelConfig& decision, const Budget& budget,
                              const RegretOptions& options) {
  const Exploration listed = listed_for_regret(task, context.gpu.spec(), decision, options);
  const std::vector<Ranked> all = listed.candidates();
  const auto own =
      static_cast<int>(std::ranges::find(all, decision, &Ranked::config) - all.begin());
  auto bench = make_bench(context, task.problem, task.tokens, all, options.seed);
  if (!bench) return tl::unexpected<Error>(bench.error());
  RaceOptions racing;
  racing.incumbent = own;  // so that it takes part
  const auto found = search(**bench, budget, racing);
  if (!found) return tl::unexpected<Error>(found.error());
  Regret regret = regret_of(*found, own, [&](int candidate) { return (*bench)->name(candidate); });
  regret.admitted = listed.admitted;
  regret.listed = listed.shortlist.size();
  return regret;
}

}  // namespace octile::tuner
