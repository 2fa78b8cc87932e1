// Calls of the quantise family through the C API and on the host reference, from arguments that
// hold their features' structs.
#pragma once

#include <cstdint>

#include "generator/quantize/problem.h"
#include "octile/octile.h"
#include "runtime/families/quantize/complete.h"
#include "runtime/reference/quantize/reference.h"

namespace octile::tests {

inline octile_status run_quantize(octile_plan* plan, const QuantizeArguments& args,
                                  void* stream = nullptr) {
  const octile_quantize_args call = args.call();
  return octile_quantize_run(plan, &call, stream);
}

// Returns the arguments of a tensor that is quantised row-wise, without gaps between rows of x.
inline QuantizeArguments rowwise_args(std::int64_t rows, const void* x, void* q, void* scale) {
  QuantizeArguments args;
  args.rows = rows;
  args.x = x;
  args.q = q;
  args.scale = scale;
  return args;
}

// Runs a call on the host reference, as a plan of the host does. threads 0: one per core.
inline Status run_reference(const QuantizeProblem& problem, const QuantizeCall& call,
                            int threads = 0) {
  return call.has_work() ? reference::quantize(problem, call, threads) : Status{};
}
inline Status run_reference(const QuantizeProblem& problem, const QuantizeArguments& args,
                            int threads = 0) {
  const auto call = complete(problem, args);
  return call ? run_reference(problem, *call, threads) : tl::unexpected<Error>(call.error());
}

}  // namespace octile::tests
