// Linear layers of experts in FP8: contiguous groups of tokens, each with a weight of its own.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_EXPERTS_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_EXPERTS_H_

#include <optional>
#include <tuple>

#include "tensors.h"

namespace octile::binding {

// x [tokens, k] holds the tokens of all groups one behind the other, weight is [experts, n, k], and
// offsets int32 [experts + 1], on the same device, as octile_gemm_args.group_offsets says. Returns
// y [tokens, n] of x's type, and what backward needs of x if keep_x, as linear_forward does. Rows
// in no group are not written. scaling: state with a scale of each operand for each expert
// (scaling.h). sentry: as in linear.h.
std::tuple<Tensor, Tensor, Tensor> experts_forward(Tensor x, Tensor weight, Tensor offsets,
                                                   std::int64_t recipe, bool keep_x,
                                                   bool input_gradient,
                                                   std::optional<Tensor> scaling,
                                                   std::optional<Tensor> sentry);

// Returns dX [tokens, k] of dy's type and dW [experts, n, k] of the weight's type; those not asked
// for are empty.
std::tuple<Tensor, Tensor> experts_backward(Tensor dy, Tensor weight, Tensor offsets,
                                            Tensor x_codes, Tensor x_scales, std::int64_t recipe,
                                            bool input_gradient, bool weight_gradient,
                                            std::optional<Tensor> scaling,
                                            std::optional<Tensor> sentry);

// The same, with dW added to main_grad, bf16 or fp32 [experts, n, k]. Returns dX.
Tensor experts_backward_into(Tensor dy, Tensor weight, Tensor offsets, Tensor x_codes,
                             Tensor x_scales, Tensor main_grad, std::int64_t recipe,
                             bool input_gradient, std::optional<Tensor> scaling,
                             std::optional<Tensor> sentry);

// Prepares the kernels of such layers for lo to hi tokens a call, as prepare_linear does.
void prepare_experts(Tensor x, Tensor weight, std::optional<Tensor> main_grad, std::int64_t recipe,
                     std::int64_t experts, std::int64_t n, std::int64_t k, std::int64_t lo,
                     std::int64_t hi, bool training, bool sentry);

// Inference with weights that are FP8 already, in blocks of 128 x 128 with fp32 scales
// [ceil(n/128), ceil(k/128)]: x [tokens, k] is quantised in 1x128 blocks. With offsets the weight
// is [experts, n, k], its scales likewise.
Tensor block_fp8_linear(Tensor x, Tensor weight, Tensor scales, std::optional<Tensor> bias,
                        std::optional<Tensor> offsets);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_EXPERTS_H_
