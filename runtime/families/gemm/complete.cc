#include "runtime/families/gemm/complete.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "generator/core/layout.h"
#include "runtime/families/gemm/complete_batch.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/reference/gemm/reference.h"

namespace octile {
namespace {

// A matrix that is read or written through TMA. Its leading dimension is the call's.
struct Matrix {
  std::string_view name;
  const void* pointer;
  std::string_view ld_name;
  std::int64_t& ld;
  Rows rows;
  std::int64_t cols;
  DType dtype;
};

// 1x128 scales are copied in units of 16 bytes (PTX ISA, cp.async.bulk), and those of rows are
// loaded in pairs. Others are loaded one by one, those of MX in words of four.
std::int64_t scales_alignment(const TensorType& type) {
  switch (type.granularity) {
    case Granularity::k1x128:
      return kTmaBytes;
    case Granularity::kPerRow:
      return 8;
    case Granularity::kNone:
    case Granularity::kPerTensor:
    case Granularity::k128x128:
    case Granularity::k1x32:
    case Granularity::k32x32:
      break;
  }
  return 4;
}

Status complete_matrix(const Matrix& matrix) {
  const int bytes = size_of(matrix.dtype);
  const std::int64_t multiple = kTmaBytes / bytes;
  if (Status ok = check_pointer(matrix.name, matrix.pointer, kTmaBytes); !ok) return ok;
  if (Status ok = check_ld(matrix.ld_name, matrix.ld,
                           {default_ld(matrix.dtype, matrix.cols), matrix.cols, multiple});
      !ok)
    return ok;
  if (matrix.ld > kMaxStrideBytes / bytes - 1) [[unlikely]]
    return refuse(
        fmt::format("{} is {}; allowed: rows of less than 2^40 bytes", matrix.ld_name, matrix.ld));
  return check_size(matrix.rows, matrix.ld_name, matrix.ld, bytes);
}

Status check_flags(std::uint32_t flags) {
  if ((flags & ~static_cast<std::uint32_t>(OCTILE_RUN_B_READY)) == 0) [[likely]]
    return {};
  return refuse(fmt::format("flags is {:#x}; allowed: 0 or OCTILE_RUN_B_READY (0x1)", flags));
}

Status check_bias(const GemmProblem& p, const GemmArguments& args) {
  return p.bias ? check_pointer("bias", args.bias, std::int64_t{2} * size_of(*p.bias))
                : check_absent("bias", args.bias, "has no bias");
}

// The bias and the sentry belong to the call if the plan has them, and only then.
Status check_output_options(const GemmProblem& p, const GemmArguments& args) {
  if (Status ok = check_bias(p, args); !ok) return ok;
  const octile_gemm_monitor& monitor = args.monitor;
  if (!has_sentry(p)) return check_absent("monitor.sentry", monitor.sentry, "has no sentry");
  if (Status ok = check_feature("monitor", monitor.struct_size, "has a sentry"); !ok) return ok;
  return check_pointer("monitor.sentry", monitor.sentry, p.sentry == Sentry::kSquares ? 8 : 4);
}

Status check_groups(const GemmProblem& p, const GemmArguments& args) {
  const octile_gemm_groups& groups = args.groups;
  const bool contiguous = p.grouping == Grouping::kContiguous;
  const bool masked = p.grouping == Grouping::kMasked;
  if (contiguous || masked) {
    if (Status ok = check_feature("groups", groups.struct_size, "has groups"); !ok) return ok;
  }
  const std::int64_t expected = groups.expected_tokens;
  if (expected < 0 || (expected > 0 && (!masked || expected > args.tokens))) [[unlikely]]
    return refuse(
        fmt::format("groups.expected_tokens is {}; allowed: 0, or with masked groups up to "
                    "tokens ({})",
                    expected, args.tokens));
  Status ok = contiguous
                  ? check_pointer("groups.offsets", groups.offsets, 4)
                  : check_absent("groups.offsets", groups.offsets, "has no contiguous groups");
  if (!ok) return ok;
  return masked ? check_pointer("groups.counts", groups.counts, 4)
                : check_absent("groups.counts", groups.counts, "has no masked groups");
}

// The scales of D belong to the call if D is FP8.
Status complete_scales_of_d(const GemmProblem& p, const GemmArguments& args, GemmCall& call) {
  const octile_gemm_d_scales& of_d = args.d_scales;
  if (!is_fp8(p.d.dtype)) return check_absent("d_scales.scale", of_d.scale, "has no FP8 D");
  if (Status ok = check_feature("d_scales", of_d.struct_size, "has FP8 D"); !ok) return ok;
  if (Status ok = check_pointer("d_scales.scale", of_d.scale, scale_alignment(p.d)); !ok) return ok;
  return check_scale_ld("d_scales.scale_ld", call.d_scale_ld, p.d, call.shape.m, call.shape.n);
}

// Returns true if a call with k = 0, whose sum is empty, launches the kernel: a bias makes D more
// than zero, and the scales of FP8 D are 1.
bool launches_empty_sums(const GemmProblem& p) { return p.bias || is_fp8(p.d.dtype); }

GemmCall::Work work_of(const GemmProblem& p, const GemmShape& shape) {
  if (shape.m == 0 || shape.n == 0) return GemmCall::Work::kNothing;
  return shape.k == 0 && !launches_empty_sums(p) ? GemmCall::Work::kEmptySum
                                                 : GemmCall::Work::kProduct;
}

// Returns the call with leading dimensions and strides as the caller gave them.
GemmCall as_given(const GemmProblem& p, const GemmArguments& args) {
  GemmCall call;
  call.shape = shape_of(p, args.tokens);
  call.work = work_of(p, call.shape);
  call.tensors = matrices_of(p, args.tokens);
  const auto [m, n, k] = call.shape;
  call.maps = is_batched(p) ? GemmMatrices{m, n, m, k} : call.tensors;
  call.strides = {args.batch.a_stride, args.batch.a_scale_stride, args.batch.b_stride,
                  args.batch.b_scale_stride, args.batch.d_stride};
  call.a = args.a;
  call.lda = args.lda;
  call.a_scale = args.a_scale;
  call.a_scale_ld = args.a_scale_ld;
  call.b = args.b;
  call.ldb = args.ldb;
  call.b_scale = args.b_scale;
  call.b_scale_ld = args.b_scale_ld;
  call.d = args.d;
  call.ldd = args.ldd;
  call.bias = args.bias;
  call.sentry = args.monitor.sentry;
  call.d_scale = args.d_scales.scale;
  call.d_scale_ld = args.d_scales.scale_ld;
  call.group_rows = p.grouping == Grouping::kMasked ? args.groups.counts : args.groups.offsets;
  call.tokens = args.tokens;
  call.kernel_tokens = args.groups.expected_tokens > 0 ? args.groups.expected_tokens : args.tokens;
  call.sm_limit = args.sm_limit;
  call.b_ready = (args.flags & OCTILE_RUN_B_READY) != 0;
  return call;
}

Status complete_d(const GemmProblem& p, const GemmArguments& args, std::string_view m,
                  GemmCall& call) {
  const Rows rows{m, call.maps.d_rows};
  if (Status ok = complete_matrix({"d", call.d, "ldd", call.ldd, rows, call.shape.n, p.d.dtype});
      !ok)
    return ok;
  if (Status ok = complete_scales_of_d(p, args, call); !ok) return ok;
  return is_batched(p) ? complete_batch_of_d(p, call) : Status{};
}

Status complete_operands(const GemmProblem& p, std::string_view m, GemmCall& call) {
  const GemmMatrices& all = call.maps;
  const Rows of_a{m, all.a_rows}, of_b{"n", all.b_rows};
  if (Status ok = complete_matrix({"a", call.a, "lda", call.lda, of_a, all.k, p.a.dtype}); !ok)
    return ok;
  if (Status ok = complete_matrix({"b", call.b, "ldb", call.ldb, of_b, all.k, p.b.dtype}); !ok)
    return ok;
  if (Status ok = check_pointer("a_scale", call.a_scale, scales_alignment(p.a)); !ok) return ok;
  if (Status ok = check_pointer("b_scale", call.b_scale, scales_alignment(p.b)); !ok) return ok;
  if (Status ok = check_scale_ld("a_scale_ld", call.a_scale_ld, p.a, call.shape.m, all.k); !ok)
    return ok;
  if (Status ok = check_scale_ld("b_scale_ld", call.b_scale_ld, p.b, call.shape.n, all.k); !ok)
    return ok;
  return is_batched(p) ? complete_batch_of_operands(p, call) : Status{};
}

// Returns the rows' name in a refusal.
std::string_view name_of_m(const GemmProblem& p, const TokenAxis& axis) {
  return has_tokens_in_k(p) ? "m" : axis.name;
}

// Checks the arguments and fills in the call's leading dimensions and strides.
Status complete_all(const GemmProblem& p, const TokenAxis& axis, const GemmArguments& args,
                    GemmCall& call) {
  if (Status ok = check_flags(args.flags); !ok) return ok;
  if (args.sm_limit < 0) [[unlikely]]
    return refuse(fmt::format("sm_limit is {}; allowed: 0 (all SMs) or more", args.sm_limit));
  if (!call.has_work()) return {};
  if (Status ok = check_output_options(p, args); !ok) return ok;
  if (Status ok = check_groups(p, args); !ok) return ok;
  if (Status ok = check_batch_is_known(p, args); !ok) return ok;
  const std::string_view m = name_of_m(p, axis);
  if (Status ok = complete_d(p, args, m, call); !ok) return ok;
  return call.shape.k == 0 ? Status{} : complete_operands(p, m, call);
}

// Checks what the FP64 oracle reads, and fills in its leading dimensions and strides.
Status complete_operands_alone(const GemmProblem& p, const TokenAxis& axis,
                               const GemmArguments& args, GemmCall& call) {
  if (!call.has_work()) return {};
  if (Status ok = check_bias(p, args); !ok) return ok;
  if (Status ok = check_groups(p, args); !ok) return ok;
  return call.shape.k == 0 ? Status{} : complete_operands(p, name_of_m(p, axis), call);
}

template <typename Complete>
Result<GemmCall> complete_with(const Complete& complete_call, const GemmProblem& p,
                               const GemmArguments& args) {
  const TokenAxis axis = token_axis(p);
  if (Status ok = check_tokens(axis, axis.name, args.tokens); !ok)
    return tl::unexpected<Error>(ok.error());
  GemmCall call = as_given(p, args);
  if (Status ok = complete_call(p, axis, args, call); !ok) return tl::unexpected<Error>(ok.error());
  call.strides.b = std::max<std::int64_t>(call.strides.b, 0);  // OCTILE_BATCH_SHARED is -1
  call.strides.b_scale = std::max<std::int64_t>(call.strides.b_scale, 0);
  return call;
}

}  // namespace

Result<GemmCall> complete(const GemmProblem& p, const GemmArguments& args) {
  return complete_with(complete_all, p, args);
}

Result<GemmCall> complete_for_fp64(const GemmProblem& p, const GemmArguments& args,
                                   float initial_d) {
  auto call = complete_with(complete_operands_alone, p, args);
  if (call) call->initial_d = initial_d;
  return call;
}

Status run_on_host(const GemmProblem& problem, const GemmCall& call) {
  return reference::gemm(problem, call);
}

}  // namespace octile
