#include "runtime/reference/gemm/reference_tiles.h"

#include <fmt/format.h>

namespace octile::reference {

Result<Operands> open_operands(const GemmProblem& problem, const GemmCall& args) {
  const std::int64_t k = problem.k == kDynamic ? args.shape.k : problem.k;
  if (args.shape.m < 0 || problem.n < 0 || k < 0) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("m is {}, n is {}, k is {}; each must be >= 0", args.shape.m, problem.n, k));
  }
  if (problem.m != kDynamic && problem.m != args.shape.m) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("m is {}; the problem fixes {}", args.shape.m, problem.m));
  }
  auto a = GemmOperand::open("a", problem.a, args.shape.m, k, args.a, args.lda, args.a_scale,
                             args.a_scale_ld);
  if (!a) return tl::unexpected(a.error());
  auto b = GemmOperand::open("b", problem.b, problem.n, k, args.b, args.ldb, args.b_scale,
                             args.b_scale_ld);
  if (!b) return tl::unexpected(b.error());
  return Operands{*a, *b, k};
}

Status out_of_memory() {
  return fail(ErrorCode::kOutOfMemory, "no host memory for the reference product's tiles");
}

}  // namespace octile::reference
