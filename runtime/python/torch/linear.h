// Linear layers in FP8, Y = X W^T + bias: an operator for each direction, which is one call of the
// library (octile/layers.h). Those of experts are in experts.h.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_LINEAR_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_LINEAR_H_

#include <cstdint>
#include <optional>
#include <tuple>

#include "tensors.h"

namespace octile::binding {

// x [..., k] and weight [n, k] are bf16, fp16 or fp32, n and k multiples of 16; bias is bf16 or
// fp32 [n]. Returns y [..., n] of x's type, and X^T in FP8 with its scales if keep_x, else two
// empty tensors. scaling and sentry are the layer's state as scaling.h and sentry.h say, in all
// three operators. A call with keep_x or input_gradient records the maximum of x. input_gradient
// says that a backward pass will want W^T too, so that both copies of W come from one read. codes
// and scales: what quantize_input() returned first for this x, which is then not read; it has made
// the copy that keep_x asks for, and the two tensors are empty.
//
// With w_scales, here and in the others, the weight is E4M3 codes of the same shape, as
// held_weight.h says, and w_gradient the octile_dtype of dW. The recipe is then not "delayed", and
// scaling is not given.
std::tuple<Tensor, Tensor, Tensor> linear_forward(
    Tensor x, Tensor weight, std::optional<Tensor> bias, std::int64_t recipe, bool keep_x,
    bool input_gradient, std::optional<Tensor> scaling, std::optional<Tensor> sentry,
    std::optional<Tensor> codes, std::optional<Tensor> scales, std::optional<Tensor> w_scales);

// Returns y alone, of a call that has no backward pass.
Tensor linear_output(Tensor x, Tensor weight, std::optional<Tensor> bias, std::int64_t recipe,
                     std::optional<Tensor> scaling, std::optional<Tensor> sentry,
                     std::optional<Tensor> codes, std::optional<Tensor> scales,
                     std::optional<Tensor> w_scales);

// dy [..., n]; x_codes and x_scales are those that linear_forward kept, and unused without
// weight_gradient. Returns dX [..., k] of dy's type, dW [n, k] of the weight's type and db fp32
// [n]; those not asked for are empty.
std::tuple<Tensor, Tensor, Tensor> linear_backward(
    Tensor dy, Tensor weight, Tensor x_codes, Tensor x_scales, std::int64_t recipe,
    bool input_gradient, bool weight_gradient, bool bias_gradient, std::optional<Tensor> scaling,
    std::optional<Tensor> sentry, std::optional<Tensor> w_scales, std::int64_t w_gradient);

// The same, with dW added to main_grad, bf16 or fp32 [n, k]. Returns dX and db.
std::tuple<Tensor, Tensor> linear_backward_into(
    Tensor dy, Tensor weight, Tensor x_codes, Tensor x_scales, Tensor main_grad,
    std::int64_t recipe, bool input_gradient, bool bias_gradient, std::optional<Tensor> scaling,
    std::optional<Tensor> sentry, std::optional<Tensor> w_scales, std::int64_t w_gradient);

// Prepares the kernels of an n x k layer for lo to hi tokens a call. The tensors stand for the
// types and the device of x, weight, bias and main_grad; the last two may be absent. training: also
// those of backward. sentry: for calls with a sentry. history: of the scaling state, 0 without one.
// held: also for a weight of codes. A weight of E4M3 stands for codes alone, without training.
void prepare_linear(Tensor x, Tensor weight, std::optional<Tensor> bias,
                    std::optional<Tensor> main_grad, std::int64_t recipe, std::int64_t n,
                    std::int64_t k, std::int64_t lo, std::int64_t hi, bool training, bool sentry,
                    std::int64_t history, bool held);

// The same of experts (experts.h).
void prepare_experts(Tensor x, Tensor weight, std::optional<Tensor> main_grad, std::int64_t recipe,
                     std::int64_t experts, std::int64_t n, std::int64_t k, std::int64_t lo,
                     std::int64_t hi, bool training, bool sentry, std::int64_t history, bool held);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_LINEAR_H_
