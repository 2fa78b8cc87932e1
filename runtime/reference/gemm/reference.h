// The GEMM on the host: the reference executor and the FP64 oracle.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/gemm/problem.h"
#include "runtime/reference/gemm/call.h"

namespace octile::reference {

// Returns the rows of D, all groups' or all matrices' together.
std::int64_t rows_of_d(const GemmProblem&, const GemmCall&);

// Computes D (+)= A * B^T of a complete call. Partial sums cover `promote` elements of K in fp32;
// the products of elements are added one by one in ascending k. Then acc = fma(partial, scale_a *
// scale_b, acc) in the order of K; of MX it is acc = fma(partial * scale_a, scale_b, acc). If
// has_scales_of_all_k(), it is acc = acc + partial, and (scale_a * scale_b) * acc behind the last
// partial sum. If has_scales_inside(), each product is multiplied by both scales, of which the
// exponent alone counts, and added in fp32, in ascending k; a scale that is not finite is NaN. The
// bias is added to the finished acc. With `accumulate`, the result is added to the old D; in fp32,
// subnormal terms and sums count as zero of their sign. D is rounded once; its NaN is 0x7fff (bf16,
// fp16) or 0x7fffffff (fp32). If k = 0, D is zero, or keeps its bits with `accumulate`. FP8 D is
// the fp32 result quantised as docs/numerics.md says; the sentry looks at the fp32 result. Squares
// are those of the fp32 results, each rounded to fp32 and added exactly. The result has the same
// bits for any thread count and host. threads 0: one per core. Errors: kUnsupported for types,
// scales or a promotion interval that docs/numerics.md does not define; kOutOfMemory.
Status gemm(const GemmProblem&, const GemmCall&, int threads = 0);

// A part of D. A large GEMM is checked in a few windows.
struct Fp64Window {
  std::int64_t row0 = 0, rows = 0, col0 = 0, cols = 0;
};

// Computes R and S for the elements of a window, row-major [rows][cols]. R is the FP64 GEMM of the
// dequantised operands plus the bias and, if the problem accumulates, plus `initial_d`. S = sum
// |a*b*scales|. The tolerance in docs/numerics.md is stated in both. The call is that of
// complete_for_fp64: D is not read. A row that belongs to no group has zeros. Errors: kUnsupported
// for types of A and B that the host does not read; kInvalidArgument for a window beyond D;
// kOutOfMemory.
Status gemm_fp64(const GemmProblem&, const GemmCall&, const Fp64Window&, double* r, double* s,
                 int threads = 0);

}  // namespace octile::reference
