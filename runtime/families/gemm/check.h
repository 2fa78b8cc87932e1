// Compares samples of a GEMM's result with FP64 on the same operands.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/gemm/problem.h"
#include "runtime/measure/tensor.h"
#include "runtime/reference/metrics.h"

namespace octile {

struct ProductCheck {
  bool ok = true;
  std::int64_t elements = 0;
  // The failing window that was checked first; if none fails, the window with the largest |D - R| /
  // S.
  reference::ToleranceReport worst;
};

// R and S of one window of D.
struct Sample {
  reference::Fp64Window window;
  std::vector<double> r, s;  // row-major [rows][cols]
};

Result<Sample> sample_window(const GemmProblem& problem, const reference::GemmArgs& operands,
                             const reference::Fp64Window& window);

// Returns the windows of D to check: at the first rows and columns, at the last (the tails) and at
// one place between. `scattered` further windows lie at places drawn by `seed`. Errors: those of
// reference::gemm_fp64.
Result<std::vector<Sample>> sample_product(const GemmProblem& problem,
                                           const reference::GemmArgs& operands, int scattered = 0,
                                           std::uint64_t seed = 0);

// Adds the check of one window of D to `check`. `d` points at the window's first element, with rows
// `ldd` apart. The operands should be finite and not all zero in the window; otherwise the check
// fails too.
void check_sample(const GemmProblem& problem, const Sample& sample, const void* d, std::int64_t ldd,
                  ProductCheck& check);

// Checks samples of d, [a.rows][b.rows] of the problem's type, and returns the result.
Result<ProductCheck> check_product(const GemmProblem& problem, const HostTensor& a,
                                   const HostTensor& b, const void* d);

}  // namespace octile
