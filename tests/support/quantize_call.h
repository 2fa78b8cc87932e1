// Calls of the quantise family through the C API, from arguments that hold their features' structs.
#pragma once

#include <cstdint>

#include "generator/quantize/problem.h"
#include "octile/octile.h"
#include "runtime/families/quantize/arguments.h"
#include "runtime/reference/quantize/call.h"

namespace octile::tests {

inline octile_status run_quantize(octile_plan* plan, const QuantizeArguments& args,
                                  void* stream = nullptr) {
  const octile_quantize_args call = args.call();
  return octile_quantize_run(plan, &call, stream);
}

// Returns the caller's arguments that the call stands for: the inverse of complete().
inline QuantizeArguments arguments_of(const QuantizeProblem& problem, const QuantizeCall& host) {
  QuantizeArguments args;
  args.rows = host.rows;
  args.x = host.x;
  args.ldx = host.ldx;
  args.q = host.q;
  args.ldq = host.ldq;
  args.scale = host.scale;
  args.scale_ld = host.scale_ld;
  args.q_transposed = host.q_transposed;
  args.scale_transposed = host.scale_transposed;
  args.skip = host.skip;
  args.delayed.encode_scale = host.encode_scale;
  args.monitor.amax = host.amax;
  args.monitor.encode_scale = host.recorded_scale;
  args.monitor.nonfinite = host.nonfinite;
  args.source_scales.x_scale = host.x_scale;
  args.source_scales.x_scale_ld = host.x_scale_ld;
  args.fused.x1 = host.more[0];
  args.fused.x2 = host.more[1];
  args.fused.x3 = host.more[2];
  args.fused.ldx1 = host.more_ld[0];
  args.fused.ldx2 = host.more_ld[1];
  args.fused.ldx3 = host.more_ld[2];
  args.fused.rstd = host.rstd;
  args.fused.row_factor = host.row_factor;
  args.fused.bias_gradient = host.bias_gradient;
  args.fused.tap = host.tap;
  if (problem.operation == QuantizeOperation::kGather) {
    args.gather.index = host.row_index;
    args.gather.x_rows = host.row_count;
    return args;
  }
  const bool masked = problem.grouping == Grouping::kMasked;
  (masked ? args.groups.counts : args.groups.offsets) = host.row_index;
  args.groups.group_count = host.row_count;
  return args;
}

}  // namespace octile::tests
