// Results of RMS and layer norms, quantised in backward from the tensors that the norm keeps: its
// input and its statistics of each row.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_NORMED_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_NORMED_H_

#include <cstdint>
#include <optional>
#include <tuple>

#include "tensors.h"

namespace octile::binding {

// Returns the codes and flat scales of y^T that quantize_input (functional.h) returns of y: x *
// rstd * weight, multiplied in fp32 in this order, or with mean and bias fma((x - mean) * rstd,
// weight, bias); rounded to bf16 with via_bf16, or not at all. x: [..., k] of bf16 or fp32. rstd
// and mean: fp32, one for each row of x, contiguous. weight and bias: [k], of x's type. recipe: not
// "delayed".
std::tuple<Tensor, Tensor> quantize_normed(Tensor x, Tensor rstd, Tensor weight,
                                           std::int64_t recipe, bool via_bf16,
                                           std::optional<Tensor> mean, std::optional<Tensor> bias);

// Prepares its quantiser for lo to hi tokens a call, of k columns of x's type. layer: with mean and
// bias.
void prepare_normed(Tensor x, std::int64_t recipe, std::int64_t k, bool via_bf16, std::int64_t lo,
                    std::int64_t hi, bool layer);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_NORMED_H_
