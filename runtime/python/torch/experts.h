// Linear layers of experts in FP8, by contiguous groups of tokens, each with a weight of its own:
// what linear.h says of one layer, of all experts at once.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_EXPERTS_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_EXPERTS_H_

#include <cstdint>
#include <optional>
#include <tuple>

#include "tensors.h"

namespace octile::binding {

// x [tokens, k] holds the tokens of all groups one behind the other, weight is [experts, n, k], and
// offsets int32 [experts + 1], on the same device, as octile_layer_forward_args.group_offsets says.
// Rows in no group are not written. scaling: state with a scale of each operand for each expert.
// codes and scales: x row-wise in FP8, as the recipe has it; x then says its type and its sizes
// alone, is not read, and need not be in memory of its own. No copy is kept of such an x.
std::tuple<Tensor, Tensor, Tensor> experts_forward(
    Tensor x, Tensor weight, Tensor offsets, std::int64_t recipe, bool keep_x, bool input_gradient,
    std::optional<Tensor> scaling, std::optional<Tensor> sentry, std::optional<Tensor> w_scales,
    std::optional<Tensor> codes, std::optional<Tensor> scales);
// Returns dX [tokens, k] of dy's type and dW [experts, n, k] of the weight's type. x_codes may be x
// itself, of dy's type, with empty x_scales: it is quantised then. dy_codes to
// dy_transposed_scales: dY in FP8, row-wise for dX and transposed for dW; dy is then as x above.
std::tuple<Tensor, Tensor> experts_backward(
    Tensor dy, Tensor weight, Tensor offsets, Tensor x_codes, Tensor x_scales, std::int64_t recipe,
    bool input_gradient, bool weight_gradient, std::optional<Tensor> scaling,
    std::optional<Tensor> sentry, std::optional<Tensor> w_scales, std::int64_t w_gradient,
    std::optional<Tensor> dy_codes, std::optional<Tensor> dy_scales,
    std::optional<Tensor> dy_transposed, std::optional<Tensor> dy_transposed_scales);
// Adds dW to main_grad, bf16 or fp32 [experts, n, k], and returns dX.
Tensor experts_backward_into(Tensor dy, Tensor weight, Tensor offsets, Tensor x_codes,
                             Tensor x_scales, Tensor main_grad, std::int64_t recipe,
                             bool input_gradient, std::optional<Tensor> scaling,
                             std::optional<Tensor> sentry, std::optional<Tensor> w_scales,
                             std::int64_t w_gradient, std::optional<Tensor> dy_codes,
                             std::optional<Tensor> dy_scales, std::optional<Tensor> dy_transposed,
                             std::optional<Tensor> dy_transposed_scales);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_EXPERTS_H_
