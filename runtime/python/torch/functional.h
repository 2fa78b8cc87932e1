// The library's own operations on tensors, which octile/torch/functional.py calls. Operators are
// called by anyone, so each checks its operands against the library's layouts, and builds the
// problem's text of names and integers that it has read.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_FUNCTIONAL_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_FUNCTIONAL_H_

#include <optional>
#include <string>
#include <tuple>

#include "plans.h"
#include "recipes.h"
#include "tensors.h"

namespace octile::binding {

// A type is a text such as "e4m3:1x128:pow2", of three parts. Rows of codes may be padded. Scales
// are contiguous, in the layout of their type. All throw std::invalid_argument for other arguments.

// x [rows, cols] of bf16, fp16 or fp32, rows contiguous. Returns codes and scales, of the
// transposed copy if `transposed`.
std::tuple<Tensor, Tensor> quantize_one(Tensor x, std::string type, bool transposed);
// Both outputs from one read: codes and scales, then those of the transposed copy.
std::tuple<Tensor, Tensor, Tensor, Tensor> quantize_both(Tensor x, std::string type);
// x: contiguous [groups, m, k] of bf16, fp16 or fp32, of which the first counts[g] rows of group g
// exist; counts: int32 [groups], on the device. Returns codes [groups, m, k] and scales [groups,
// scale rows, ld], those of each group as of a tensor [m, k]. Codes and scales of other rows are
// not written.
std::tuple<Tensor, Tensor> quantize_masked(Tensor x, Tensor counts, std::string type);
// x [..., k], as the recipe quantises a layer's input, for all layers that are given it: codes
// [tokens, k] and flat scales, and those of X^T as linear_forward (linear.h) returns them. Those
// not asked for are empty. recipe: not "delayed".
std::tuple<Tensor, Tensor, Tensor, Tensor> quantize_input(Tensor x, std::int64_t recipe,
                                                          bool rowwise, bool transposed);
// The first two of these.
Quantized quantize_rows(const Tensor& x, RecipeCode recipe);
// Returns the transposed codes and scales of a quantised [rows, cols].
std::tuple<Tensor, Tensor> transpose(Tensor codes, Tensor scales, std::string type,
                                     std::int64_t cols);
// Returns codes * scales [rows, cols] of `result`, an octile_dtype.
Tensor dequantize(Tensor codes, Tensor scales, std::string type, std::int64_t cols,
                  std::int64_t result);
// Writes d [m, n] = A B^T + bias, or adds to it. A is [m, k] and B [n, k]. tokens: "m" or "k", the
// size that calls state. promote: "32" to "512", or "none". fp32 scales may also be rows at any
// stride that octile_gemm_args allows, which are read in place: [ceil(k/128), rows] of 1x128,
// [ceil(rows/128), ceil(k/128)] of 128x128 and [1, rows] of rows.
void gemm_out(Tensor a, Tensor a_scale, std::string a_type, Tensor b, Tensor b_scale,
              std::string b_type, std::optional<Tensor> bias, Tensor d, std::int64_t k,
              std::string tokens, bool accumulate, std::string promote);
// Writes D = A B^T of groups, with promote "128". b: [groups, n, k]. A is [m, k], the rows of all
// groups one behind the other, and D [m, n]; or A is [groups, m, k], of which the first rows of
// each group exist, and D [groups, m, n]. group_rows: int32, offsets [groups + 1] or counts
// [groups], on the device. expected: rows that such a group has on average; 0: m. It chooses the
// kernel. B, and A [groups, m, k], have fp32 scales for each group in rows as gemm_out reads them
// in place, and the groups' scales lie one behind the other.
void grouped_gemm_out(Tensor a, Tensor a_scale, std::string a_type, Tensor b, Tensor b_scale,
                      std::string b_type, Tensor group_rows, Tensor d, std::int64_t expected);
// Prepares the kernels of gemm_out with tokens "m" and promote "128" for lo to hi tokens, or, if
// groups is not 0, those of grouped_gemm_out. quantized, with masked groups alone: also those of
// quantize_masked, for an x of d's type with lo to hi rows a group. d and bias stand for their
// types and the device.
void prepare_gemm(Tensor d, std::optional<Tensor> bias, std::string a_type, std::string b_type,
                  std::int64_t n, std::int64_t k, std::int64_t lo, std::int64_t hi,
                  std::int64_t groups, bool masked, bool quantized);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_FUNCTIONAL_H_
