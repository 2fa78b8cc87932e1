#include "runtime/reference/gemm/reference_tiles.h"

namespace octile::reference {

Operands operands_of(const GemmProblem& problem, const GemmCall& args) {
  return {GemmOperand(problem.a, args.a, args.lda, args.a_scale, args.a_scale_ld),
          GemmOperand(problem.b, args.b, args.ldb, args.b_scale, args.b_scale_ld), args.shape.k};
}

Status check_operand_types(const GemmProblem& problem) {
  Status ok = check_operand_type("a", problem.a);
  return ok ? check_operand_type("b", problem.b) : ok;
}

Status out_of_memory() {
  return fail(ErrorCode::kOutOfMemory, "no host memory for the reference product's tiles");
}

}  // namespace octile::reference
