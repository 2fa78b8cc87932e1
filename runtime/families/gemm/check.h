// How far a product is from FP64 on the same operands, sampled.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/problem.h"
#include "runtime/measure/tensor.h"
#include "runtime/reference/metrics.h"

namespace octile {

struct ProductCheck {
  bool ok = true;
  std::int64_t elements = 0;
  reference::ToleranceReport worst;  // the window with the largest |D - R| / S
};

// R and S of one window of D.
struct Sample {
  reference::Fp64Window window;
  std::vector<double> r, s;  // row-major [rows][cols]
};

Result<Sample> sample_window(const GemmProblem& problem, const reference::GemmArgs& operands,
                             const reference::Fp64Window& window);

// Rows and columns of D that are looked at: the first, the last (tails), one between, and
// `scattered` windows more at places drawn by `seed`. Errors as reference::gemm_fp64.
Result<std::vector<Sample>> sample_product(const GemmProblem& problem,
                                           const reference::GemmArgs& operands, int scattered = 0,
                                           std::uint64_t seed = 0);

// One window of D, [window.rows][ldd] from its first element, against its sample.
// The operands are expected to be finite and not all zero in the window: where they are, that too
// is not ok.
void check_sample(const GemmProblem& problem, const Sample& sample, const void* d, std::int64_t ldd,
                  ProductCheck& check);

// d: [a.rows][b.rows] of the problem's type.
Result<ProductCheck> check_product(const GemmProblem& problem, const HostTensor& a,
                                   const HostTensor& b, const void* d);

}  // namespace octile
