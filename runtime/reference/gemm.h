// The GEMM on the host: the reference executor and the FP64 oracle.
#pragma once

#include <cstdint>

#include "generator/error.h"
#include "generator/problem.h"

namespace octile::reference {

struct GemmArgs {
  std::int64_t m = 0;
  const void* a = nullptr;
  std::int64_t lda = 0;  // elements; 0: packed, for ldb and ldd too
  const void* a_scale = nullptr;
  std::int64_t a_scale_ld = 0;  // 0: roundup(m,4)
  const void* b = nullptr;
  std::int64_t ldb = 0;
  const void* b_scale = nullptr;
  std::int64_t b_scale_ld = 0;  // 0: roundup(ceil(k/128),4)
  void* d = nullptr;
  std::int64_t ldd = 0;
};

// D (+)= A * B^T: partial sums over `promote` elements of K (fp32, fixed order), then acc =
// fma(partial, sa * sb, acc) in K order, D rounded once. The same bits for any thread count.
// threads 0: one per core.
Status gemm(const GemmProblem&, const GemmArgs&, int threads = 0);

// R and S = sum |a*b*scales| in FP64 for the elements rows x cols of D (row-major, [rows][cols]):
// what the tolerance of the contract is stated in; an old D is no part of them. row0/col0 choose a
// window, so that large products can be sampled.
struct Fp64Window {
  std::int64_t row0 = 0, rows = 0, col0 = 0, cols = 0;
};
Status gemm_fp64(const GemmProblem&, const GemmArgs&, const Fp64Window&, double* r, double* s,
                 int threads = 0);

}  // namespace octile::reference
