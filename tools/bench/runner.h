// The timed work of a benchmark, for a problem of any family.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "runtime/families/families.h"
#include "runtime/prove/kernel_bench.h"
#include "tools/bench/measurement.h"

namespace octile::tools {

template <typename P>
using Runner = std::function<Status(const ArgumentsOf<P>& args, CUstream stream)>;

// Returns the winner of a search if the context has one, else the choice of a plan. Notes in the
// record which kernel it is.
template <typename P>
Result<Runner<P>> make_runner(const BenchContext& context, const P& problem, std::int64_t tokens,
                              Record& record) {
  if (context.search != nullptr) {
    const auto winner = search_first(context, problem, tokens, record);
    if (!winner) return tl::unexpected<Error>(winner.error());
    const auto& kernel = tuner::bench_as<P>(*context.search->bench()).kernel(*winner);
    return Runner<P>([&kernel](const ArgumentsOf<P>& args, CUstream stream) {
      return kernel.run(args, stream);
    });
  }
  auto prepared = prepare_plan(context, problem, tokens, tokens);
  if (!prepared) return tl::unexpected<Error>(prepared.error());
  note_kernel(prepared->kernel, record);
  auto plan = std::make_shared<const PlanHandle>(std::move(prepared->plan));
  return Runner<P>([plan](const ArgumentsOf<P>& args, CUstream stream) {
    return plan->run(args.call(), stream);
  });
}

}  // namespace octile::tools
