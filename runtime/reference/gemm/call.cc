#include "runtime/reference/gemm/call.h"

#include "generator/core/layout.h"

namespace octile {

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

BatchStrides packed_strides(const GemmProblem& p, const GemmCall& call) {
  const auto [m, n, k] = call.shape;
  return {.a = m * call.lda,
          .a_scale = packed_scale_rows(p.a, m, k) * call.a_scale_ld,
          .b = n * call.ldb,
          .b_scale = packed_scale_rows(p.b, n, k) * call.b_scale_ld};
}

}  // namespace octile
