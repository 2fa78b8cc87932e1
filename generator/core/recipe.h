// Recipes as data: adding one is adding a row. A recipe says for each tensor role its type, and how
// often the products of a linear layer are promoted.
#pragma once

#include <span>
#include <string_view>

#include "generator/problem.h"
#include "generator/core/types.h"

namespace octile {

struct Recipe {
  std::string_view name;
  TensorType activation, weight, gradient;
  int promote_fprop = 128, promote_backward = 128;  // promotion intervals; backward: dgrad, wgrad
  std::string_view source;                          // paper section or document the row comes from
  std::string_view summary;                         // one line for `octile doctor --matrix`
};

std::span<const Recipe> recipes();
const Recipe* find_recipe(std::string_view name);  // nullptr when unknown
std::string recipe_names();                        // "blockwise, blockwise_hybrid, ..."

// The product of one pass of a linear layer whose weight is [n,k] and whose input has m tokens:
//   fprop  Y[m,n]  = X[m,k]  * W[n,k]^T        a gemm of m x n x k
//   dgrad  dX[m,k] = dY[m,n] * (W^T)[k,n]^T    a gemm of m x k x n
//   wgrad  dW[n,k] += (dY^T)[n,m] * (X^T)[k,m]^T    a gemm of n x k x m
// Y and dX are rounded once to bf16; dW is summed over microbatches in fp32. m may be kDynamic.
enum class Pass : int { kFprop, kDgrad, kWgrad };
GemmProblem gemm_problem(const Recipe&, Pass, std::int64_t m, std::int64_t n, std::int64_t k);

}  // namespace octile
