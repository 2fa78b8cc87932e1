// MLPs whose activation the quantiser of the next layer computes: act(gate) * up, or act(gate)
// alone, and their gradients, of which neither is ever in memory in another type than FP8.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_GATED_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_GATED_H_

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "tensors.h"

namespace octile::binding {

// gate and up are [..., i] of one type, bf16, fp16 or fp32; the last dimension is contiguous.
// activation: "relu", "relu2", "silu" or "gelu_tanh". up: absent if nothing is multiplied.

// Returns what quantize_input (functional.h) does of the product.
std::tuple<Tensor, Tensor, Tensor, Tensor> quantize_activation(Tensor gate,
                                                               std::optional<Tensor> up,
                                                               std::string activation,
                                                               std::int64_t recipe, bool rowwise,
                                                               bool transposed);

// The backward pass of the layers that gate and up come from, of dh [..., i], the gradient of the
// product. Without up_weight they come from one layer, whose weight is [i, k], or with up [2 i, k];
// with it from two of [i, k], where i is a multiple of 128, and dX is the sum of both. x_codes and
// x_scales are X^T as quantize_input returns it, unused without a weight gradient. Returns dX
// [..., k] of dh's type, the gradients of weight and up_weight, and fp32 [i], or with up [2 i], the
// sums of the columns of dgate and dup. Those not asked for are empty. sentry and up_sentry: of the
// layers.
std::tuple<Tensor, Tensor, Tensor, Tensor> activation_backward(
    Tensor dh, Tensor gate, std::optional<Tensor> up, Tensor weight,
    std::optional<Tensor> up_weight, Tensor x_codes, Tensor x_scales, std::string activation,
    std::int64_t recipe, bool input_gradient, bool weight_gradient, bool up_weight_gradient,
    bool bias_gradient, std::optional<Tensor> sentry, std::optional<Tensor> up_sentry);

// The same, where the gradient of a weight whose main_grad is given is added to that.
std::tuple<Tensor, Tensor, Tensor, Tensor> activation_backward_into(
    Tensor dh, Tensor gate, std::optional<Tensor> up, Tensor weight,
    std::optional<Tensor> up_weight, Tensor x_codes, Tensor x_scales,
    std::optional<Tensor> main_grad, std::optional<Tensor> up_main_grad, std::string activation,
    std::int64_t recipe, bool input_gradient, bool weight_gradient, bool up_weight_gradient,
    bool bias_gradient, std::optional<Tensor> sentry, std::optional<Tensor> up_sentry);

// Prepares the quantisers of such MLPs for lo to hi tokens a call: i columns of x's type. gated:
// with up. apart: gate and up come from two layers [i, k]. The layers' own kernels are those of
// prepare_linear, but for the second's that adds to dX, which this prepares. bias: with the sums.
void prepare_activation(Tensor x, Tensor weight, std::optional<Tensor> main_grad,
                        std::string activation, std::int64_t recipe, std::int64_t i, std::int64_t k,
                        std::int64_t lo, std::int64_t hi, bool gated, bool apart, bool bias,
                        bool training, bool sentry);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_GATED_H_
