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
// activation: "relu", "relu2", "silu", "gelu" or "gelu_tanh". up: absent if nothing is multiplied.

// Returns what quantize_input (functional.h) does of the product. offsets: int32 [groups + 1], the
// rows of groups in a matrix of rows, whose transposed copies lie as those of experts' tokens do.
// factors: fp32 [tokens], by which the product is multiplied before its cast. The last result is
// the one scale of the product, fp32 [1], by which it was multiplied; with groups and with recipes
// of other scales it is empty. encode: that result of another call of the same tensors, whose scale
// this call takes without looking for the maximum again.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> quantize_activation(
    Tensor gate, std::optional<Tensor> up, std::string activation, std::int64_t recipe,
    bool rowwise, bool transposed, std::optional<Tensor> offsets, std::optional<Tensor> factors,
    std::optional<Tensor> encode);

// Returns y of an MLP, without gradients, with the bits of quantize_input, linear_output,
// quantize_activation and linear_output. up absent: gate's outputs are those of both, gate before
// up, if they are twice down's inputs, and else nothing is multiplied. Weights [n, k], biases,
// sentries and scales of weights are as of linear_output (linear.h). recipe: not "delayed".
Tensor mlp_output(Tensor x, Tensor gate, std::optional<Tensor> up, Tensor down,
                  std::optional<Tensor> gate_bias, std::optional<Tensor> up_bias,
                  std::optional<Tensor> down_bias, std::string activation, std::int64_t recipe,
                  std::optional<Tensor> gate_sentry, std::optional<Tensor> up_sentry,
                  std::optional<Tensor> down_sentry, std::optional<Tensor> gate_scales,
                  std::optional<Tensor> up_scales, std::optional<Tensor> down_scales);

// Quantises the gradients of gate and up, of dh [..., i], that of the product: [tokens, i], or with
// up [tokens, 2 i], gate's before up's. Returns codes and flat scales row-wise and transposed as
// quantize_input does, but of dY's type, and fp32 sums of the columns, of no groups. Those not
// asked for are empty. offsets, factors: as above; the gradients are multiplied.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> quantize_gradients(
    Tensor dh, Tensor gate, std::optional<Tensor> up, std::string activation, std::int64_t recipe,
    bool rowwise, bool transposed, bool sums, std::optional<Tensor> offsets,
    std::optional<Tensor> factors);

// The backward pass of a layer with weight [n, k] whose dY is n columns of the result of
// quantize_gradients, from `first` on, a multiple of 128, of `columns`. codes and scales are read
// for dX, the transposed ones, x_codes and x_scales (X^T as quantize_input returns it) for dW.
// like: a tensor that has dX's leading sizes and type; its last size does not matter. Returns dX
// [..., k] and dW; what is not asked for is empty. w_scales and w_gradient: as of linear_backward
// (linear.h).
std::tuple<Tensor, Tensor> quantized_backward(
    Tensor codes, Tensor scales, Tensor transposed, Tensor transposed_scales, Tensor like,
    std::int64_t columns, std::int64_t first, Tensor weight, Tensor x_codes, Tensor x_scales,
    std::int64_t recipe, bool input_gradient, bool weight_gradient, std::optional<Tensor> sentry,
    std::optional<Tensor> w_scales, std::int64_t w_gradient);

// dW alone, which is added to main_grad.
void quantized_backward_into(Tensor transposed, Tensor transposed_scales, Tensor like,
                             std::int64_t columns, std::int64_t first, Tensor weight,
                             Tensor x_codes, Tensor x_scales, Tensor main_grad, std::int64_t recipe,
                             std::optional<Tensor> sentry, std::optional<Tensor> w_scales,
                             std::int64_t w_gradient);

// Prepares the quantisers of such MLPs for lo to hi tokens a call: i columns of x's type. gated:
// with up. bias: with the sums. grouped: of groups, with factors or without. The layers' own
// kernels are those of prepare_linear and prepare_experts.
void prepare_activation(Tensor x, std::string activation, std::int64_t recipe, std::int64_t i,
                        std::int64_t lo, std::int64_t hi, bool gated, bool bias, bool training,
                        bool grouped, bool weighted);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_GATED_H_
