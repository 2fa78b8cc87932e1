// The GEMMs of a linear layer under a recipe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "generator/core/error.h"
#include "generator/core/recipe.h"
#include "generator/gemm/problem.h"

namespace octile {

// The passes of a linear layer whose weight is [n,k] and whose input has m tokens:
//   fprop  Y[m,n]  = X[m,k]  * W[n,k]^T             a GEMM of m x n x k
//   dgrad  dX[m,k] = dY[m,n] * (W^T)[k,n]^T         a GEMM of m x k x n
//   wgrad  dW[n,k] += (dY^T)[n,m] * (X^T)[k,m]^T    a GEMM of n x k x m
// Y and dX are rounded once to bf16; dW is summed over microbatches in fp32. m may be kDynamic.
enum class Pass : int { kFprop, kDgrad, kWgrad };
std::string_view name_of(Pass);
std::string pass_names();  // "fprop, dgrad, wgrad"
// Returns nothing for a name that is none of pass_names().
std::optional<Pass> find_pass(std::string_view name);

// Returns the type of a GEMM's operand. A GEMM multiplies by fp32 scales, whether or not they are
// powers of two, so one problem serves both; but for weight gradients with 1x128 scales, which
// gemm_problem leaves as the recipe has them.
TensorType operand_type(TensorType type);

// If there are experts, the tokens are in contiguous groups, one for each, and there is a weight
// for each.
GemmProblem gemm_problem(const Recipe&, Pass, std::int64_t m, std::int64_t n, std::int64_t k,
                         std::int64_t experts = 0);

// Reads the short form of the command line, "--gemm 4096x7168x2048 --recipe blockwise": the fprop
// of the recipe. m may be open ('?' or '_'). Errors: kInvalidArgument.
Result<GemmProblem> parse_gemm_shape(std::string_view mxnxk, std::string_view recipe);

}  // namespace octile
