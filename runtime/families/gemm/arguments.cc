#include "runtime/families/gemm/arguments.h"

#include <fmt/format.h>

#include <string_view>

#include "runtime/engine/argument_checks.h"

namespace octile {
namespace {

// TMA: base addresses and row strides are multiples of 16 bytes (PTX ISA, cp.async.bulk.tensor).
constexpr std::int64_t kTmaBytes = 16;
// TMA: a row stride is below 2^40 bytes (driver API, cuTensorMapEncodeTiled).
constexpr std::int64_t kMaxStrideBytes = std::int64_t{1} << 40;

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

// 1x128 scales are copied in units of 16 bytes (PTX ISA, cp.async.bulk); those of square blocks are
// loaded one by one.
std::int64_t scales_alignment(const TensorType& type) {
  return type.granularity == Granularity::k1x128 ? kTmaBytes : 4;
}

// Packed rows of an operand are padded to what TMA asks of a stride, as a quantiser writes them.
Status check_matrix(const Matrix& matrix) {
  const int bytes = size_of(matrix.dtype);
  const std::int64_t multiple = kTmaBytes / bytes;
  if (Status ok = check_pointer(matrix.name, matrix.pointer, kTmaBytes); !ok) return ok;
  if (Status ok = check_ld(matrix.ld_name, matrix.ld,
                           {round_up(matrix.cols, multiple), matrix.cols, multiple});
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
  if (p.sentry) return check_pointer("sentry", args.sentry, 4);
  if (args.sentry == nullptr) [[likely]]
    return {};
  return refuse("sentry is given; allowed: null, because the plan's problem has no sentry");
}

}  // namespace

Status check_arguments(const GemmProblem& p, GemmArguments& args) {
  const GemmShape shape = shape_of(p, args.tokens);
  if (Status ok = check_flags(args.flags); !ok) return ok;
  if (args.sm_limit < 0) [[unlikely]]
    return refuse(fmt::format("sm_limit is {}; allowed: 0 (all SMs) or more", args.sm_limit));
  if (is_nothing(p, args)) return {};
  if (Status ok = check_output_options(p, args); !ok) return ok;
  const Rows m{"m", shape.m};
  const Rows n{"n", shape.n};
  if (Status ok = check_matrix({"d", args.d, "ldd", args.ldd, m, shape.n, p.d}); !ok) return ok;
  if (shape.k == 0) return {};
  if (Status ok = check_matrix({"a", args.a, "lda", args.lda, m, shape.k, p.a.dtype}); !ok)
    return ok;
  if (Status ok = check_matrix({"b", args.b, "ldb", args.ldb, n, shape.k, p.b.dtype}); !ok)
    return ok;
  if (Status ok = check_pointer("a_scale", args.a_scale, scales_alignment(p.a)); !ok) return ok;
  if (Status ok = check_pointer("b_scale", args.b_scale, scales_alignment(p.b)); !ok) return ok;
  if (Status ok = check_scale_ld("a_scale_ld", args.a_scale_ld, p.a, shape.m, shape.k); !ok)
    return ok;
  return check_scale_ld("b_scale_ld", args.b_scale_ld, p.b, shape.n, shape.k);
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
  return host;
}

Status run_on_host(const GemmProblem& problem, const GemmArguments& args) {
  return reference::gemm(problem, reference_args(problem, args));
}

}  // namespace octile
