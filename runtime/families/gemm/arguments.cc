#include "runtime/families/gemm/arguments.h"

#include <fmt/format.h>

#include <string_view>

#include "generator/core/layout.h"
#include "runtime/engine/argument_checks.h"
#include "runtime/families/gemm/batch_arguments.h"

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
  } else if (args.bias != nullptr) [[unlikely]] {
    return refuse("bias is given; allowed: null, because the plan's problem has no bias");
  }
  if (has_sentry(p))
    return check_pointer("sentry", args.sentry, p.sentry == Sentry::kSquares ? 8 : 4);
  if (args.sentry == nullptr) [[likely]]
    return {};
  return refuse("sentry is given; allowed: null, because the plan's problem has no sentry");
}

Status check_absent(std::string_view name, const void* pointer, std::string_view groups) {
  if (pointer == nullptr) [[likely]]
    return {};
  return refuse(
      fmt::format("{} is given; allowed: null, because the plan has no {} groups", name, groups));
}

Status check_groups(const GemmProblem& p, const GemmArguments& args) {
  if (args.expected_tokens < 0 ||
      (args.expected_tokens > 0 &&
       (p.grouping != Grouping::kMasked || args.expected_tokens > args.tokens))) [[unlikely]]
    return refuse(
        fmt::format("expected_tokens is {}; allowed: 0, or with masked groups up to "
                    "tokens ({})",
                    args.expected_tokens, args.tokens));
  const bool contiguous = p.grouping == Grouping::kContiguous;
  if (Status ok = contiguous ? check_pointer("group_offsets", args.group_offsets, 4)
                             : check_absent("group_offsets", args.group_offsets, "contiguous");
      !ok)
    return ok;
  return p.grouping == Grouping::kMasked
             ? check_pointer("group_counts", args.group_counts, 4)
             : check_absent("group_counts", args.group_counts, "masked");
}

// The scales of D belong to the call if D is FP8.
Status check_scales_of_d(const GemmProblem& p, const GemmShape& shape, GemmArguments& args) {
  if (is_fp8(p.d.dtype)) {
    if (Status ok = check_pointer("d_scale", args.d_scale, scale_alignment(p.d)); !ok) return ok;
    return check_scale_ld("d_scale_ld", args.d_scale_ld, p.d, shape.m, shape.n);
  }
  if (args.d_scale == nullptr) [[likely]]
    return {};
  return refuse("d_scale is given; allowed: null, because the plan's problem has no FP8 D");
}

}  // namespace

GemmMatrices matrices_of(const GemmProblem& p, std::int64_t tokens) {
  const GemmShape shape = shape_of(p, tokens);
  if (!is_grouped(p)) {
    const std::int64_t gemms = whole_gemms(p);
    return {gemms * shape.m, gemms * shape.n, gemms * shape.m, shape.k};
  }
  if (groups_k(p))
    return {shape.m, shape.n, p.groups * shape.m, contiguous_columns(tokens, p.groups)};
  const std::int64_t rows = p.grouping == Grouping::kMasked ? p.groups * shape.m : shape.m;
  return {rows, p.groups * shape.n, rows, shape.k};
}

const std::int32_t* group_rows(const GemmProblem& problem, const GemmArguments& args) {
  return problem.grouping == Grouping::kMasked ? args.group_counts : args.group_offsets;
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
  host.sentry = args.sentry;
  host.group_rows = group_rows(problem, args);
  host.d_scale = args.d_scale;
  host.d_scale_ld = args.d_scale_ld;
  host.batch = {args.a_batch_stride, args.a_scale_batch_stride, args.b_batch_stride,
                args.b_scale_batch_stride, args.d_batch_stride};
  return host;
}

Status run_on_host(const GemmProblem& problem, const GemmArguments& args) {
  return reference::gemm(problem, reference_args(problem, args));
}

}  // namespace octile
