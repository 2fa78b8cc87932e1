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

// Runs a call on the host reference, which compares no contents. threads 0: one per core. scale_ld:
// the stride of the row-wise scales instead of the arguments', because kernels are also tested with
// strides that no caller may give; 0: the arguments'.
inline Status run_reference(QuantizeProblem problem, const QuantizeArguments& args, int threads = 0,
                            std::int64_t scale_ld = 0) {
  problem.skip_unchanged = false;
  QuantizeArguments valid = args;
  if (scale_ld != 0) valid.scale_ld = 0;
  auto call = complete(problem, valid);
  if (!call) return tl::unexpected<Error>(call.error());
  if (scale_ld != 0) call->scale_ld = scale_ld;
  return call->has_work() ? reference::quantize(problem, *call, threads) : Status{};
}

}  // namespace octile::tests
