#include "runtime/engine/reference_arguments.h"

namespace octile {

reference::GemmArgs reference_args(const octile_gemm_args& args) {
  reference::GemmArgs host;
  host.m = args.m;
  host.a = args.a;
  host.lda = args.lda;
  host.a_scale = args.a_scale;
  host.a_scale_ld = args.a_scale_ld;
  host.b = args.b;
  host.ldb = args.ldb;
  host.b_scale = args.b_scale;
  host.b_scale_ld = args.b_scale_ld;
  host.d = args.d;
  host.ldd = args.ldd;
  return host;
}

reference::QuantizeArgs reference_args(const octile_quantize_args& args) {
  reference::QuantizeArgs host;
  host.rows = args.rows;
  host.x = args.x;
  host.ldx = args.ldx;
  host.q = args.q;
  host.ldq = args.ldq;
  host.scale = args.scale;
  host.scale_ld = args.scale_ld;
  host.q_transposed = args.q_transposed;
  host.scale_transposed = args.scale_transposed;
  host.encode_scale = args.encode_scale;
  host.amax = args.amax;
  host.skip = args.skip;
  host.x_scale = args.x_scale;
  host.x_scale_ld = args.x_scale_ld;
  host.more = {args.x1, args.x2, args.x3};
  host.more_ld = {args.ldx1, args.ldx2, args.ldx3};
  host.rstd = args.rstd;
  host.bias_gradient = args.bias_gradient;
  host.tap = args.tap;
  host.offsets = args.offsets;
  host.counts = args.counts;
  host.groups = args.groups;
  host.shard_start = args.shard_start;
  host.shard_length = args.shard_length;
  host.shard_amax = args.shard_amax;
  host.nonfinite = args.nonfinite;
  return host;
}

}  // namespace octile
