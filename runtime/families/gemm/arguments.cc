#include "runtime/families/gemm/arguments.h"

#include <fmt/format.h>

#include <string_view>

#include "generator/core/layout.h"
#include "runtime/families/gemm/batch_arguments.h"
#include "runtime/launch/argument_checks.h"

namespace octile {
namespace {

// A matrix that is read or written through TMA.
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

Status check_matrix(const Matrix& matrix) {
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

// The bias and the sentry belong to the call if the plan has them, and only then.
Status check_output_options(const GemmProblem& p, const GemmArguments& args) {
  if (p.bias) {
    if (Status ok = check_pointer("bias", args.bias, std::int64_t{2} * size_of(*p.bias)); !ok)
      return ok;
  } else if (Status ok = check_absent("bias", args.bias, "has no bias"); !ok) {
    return ok;
  }
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
Status check_scales_of_d(const GemmProblem& p, const GemmShape& shape, GemmArguments& args) {
  octile_gemm_d_scales& of_d = args.d_scales;
  if (!is_fp8(p.d.dtype)) return check_absent("d_scales.scale", of_d.scale, "has no FP8 D");
  if (Status ok = check_feature("d_scales", of_d.struct_size, "has FP8 D"); !ok) return ok;
  if (Status ok = check_pointer("d_scales.scale", of_d.scale, scale_alignment(p.d)); !ok) return ok;
  return check_scale_ld("d_scales.scale_ld", of_d.scale_ld, p.d, shape.m, shape.n);
}

}  // namespace

octile_gemm_args GemmArguments::call() const {
  octile_gemm_args args = *this;  // NOLINT(cppcoreguidelines-slicing): features follow by pointer
  args.groups = feature_pointer(groups);
  args.batch = feature_pointer(batch);
  args.d_scales = feature_pointer(d_scales);
  args.monitor = feature_pointer(monitor);
  return args;
}

GemmMatrices matrices_of(const GemmProblem& p, std::int64_t tokens) {
  const GemmShape shape = shape_of(p, tokens);
  if (!is_grouped(p)) {
    const std::int64_t gemms = whole_gemms(p);
    return {gemms * shape.m, gemms * shape.n, whole_results(p) * shape.m, shape.k};
  }
  if (groups_k(p))
    return {shape.m, shape.n, p.groups * shape.m, contiguous_columns(tokens, p.groups)};
  const std::int64_t rows = p.grouping == Grouping::kMasked ? p.groups * shape.m : shape.m;
  return {rows, p.groups * shape.n, rows, shape.k};
}

const std::int32_t* group_rows(const GemmProblem& problem, const GemmArguments& args) {
  return problem.grouping == Grouping::kMasked ? args.groups.counts : args.groups.offsets;
}

Status check_arguments(const GemmProblem& p, GemmArguments& args) {
  const GemmShape shape = shape_of(p, args.tokens);
  if (Status ok = check_flags(args.flags); !ok) return ok;
  if (args.sm_limit < 0) [[unlikely]]
    return refuse(fmt::format("sm_limit is {}; allowed: 0 (all SMs) or more", args.sm_limit));
  if (is_nothing(p, args)) return {};
  if (Status ok = check_output_options(p, args); !ok) return ok;
  if (Status ok = check_groups(p, args); !ok) return ok;
  if (Status ok = check_batch_is_known(p, args); !ok) return ok;
  const GemmMatrices all = is_batched(p) ? GemmMatrices{shape.m, shape.n, shape.m, shape.k}
                                         : matrices_of(p, args.tokens);
  const std::string_view m = has_tokens_in_k(p) ? "m" : token_axis(p).name;
  const Rows of_a{m, all.a_rows}, of_b{"n", all.b_rows}, of_d{m, all.d_rows};
  if (Status ok = check_matrix({"d", args.d, "ldd", args.ldd, of_d, shape.n, p.d.dtype}); !ok)
    return ok;
  if (Status ok = check_scales_of_d(p, shape, args); !ok) return ok;
  if (is_batched(p)) {
    if (Status ok = check_batch_of_d(p, shape, args); !ok) return ok;
  }
  if (shape.k == 0) return {};
  if (Status ok = check_matrix({"a", args.a, "lda", args.lda, of_a, all.k, p.a.dtype}); !ok)
    return ok;
  if (Status ok = check_matrix({"b", args.b, "ldb", args.ldb, of_b, all.k, p.b.dtype}); !ok)
    return ok;
  if (Status ok = check_pointer("a_scale", args.a_scale, scales_alignment(p.a)); !ok) return ok;
  if (Status ok = check_pointer("b_scale", args.b_scale, scales_alignment(p.b)); !ok) return ok;
  if (Status ok = check_scale_ld("a_scale_ld", args.a_scale_ld, p.a, shape.m, all.k); !ok)
    return ok;
  if (Status ok = check_scale_ld("b_scale_ld", args.b_scale_ld, p.b, shape.n, all.k); !ok)
    return ok;
  return is_batched(p) ? check_batch_of_operands(p, shape, args) : Status{};
}

bool is_nothing(const GemmProblem& problem, const GemmArguments& args) {
  const GemmShape shape = shape_of(problem, args.tokens);
  return shape.m == 0 || shape.n == 0;
}

reference::GemmArgs reference_args(const GemmProblem& problem, const GemmArguments& args) {
  const GemmShape shape = shape_of(problem, args.tokens);
  reference::GemmArgs host;
  host.m = shape.m;
  host.k = shape.k;
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
  host.bias = args.bias;
  host.sentry = args.monitor.sentry;
  host.group_rows = group_rows(problem, args);
  host.d_scale = args.d_scales.scale;
  host.d_scale_ld = args.d_scales.scale_ld;
  host.batch = {args.batch.a_stride, args.batch.a_scale_stride, args.batch.b_stride,
                args.batch.b_scale_stride, args.batch.d_stride};
  return host;
}

Status run_on_host(const GemmProblem& problem, const GemmArguments& args) {
  return reference::gemm(problem, reference_args(problem, args));
}

}  // namespace octile
