// The passes of a layer, as the operators of several files call them.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_PASSES_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_PASSES_H_

#include <cstdint>
#include <optional>
#include <tuple>

#include "held_weight.h"
#include "octile/layers.h"
#include "recipes.h"
#include "scaling.h"
#include "sentry.h"
#include "shape.h"
#include "tensors.h"

namespace octile::binding {

// The arguments that the passes of a layer share.
struct Common {
  RecipeCode recipe = 0;
  Shape shape;
  Scaling scaling;
  std::uint32_t* sentry = nullptr;
};

// Checks all of it. The recipe is that of the call, as scaling.h says.
Common common_of(RecipeCode recipe, const Shape& shape, const Tensor& weight,
                 const std::optional<Tensor>& scaling, const std::optional<Tensor>& sentry);

// X in FP8, or X^T, from forward to backward. Scales are flat: while PyTorch traces, a matrix of
// ceil(tokens / 128) rows would be another case for 128 tokens and fewer.
struct CopyOfX {
  Tensor codes, scales;
};

// The gradients that a backward pass is asked for.
struct Wanted {
  bool dx = false, dw = false, db = false;
  const Tensor* main_grad = nullptr;  // to which dW is added
  // dY in FP8, in place of the tensor, which then only says the type and the leading sizes of dX.
  const octile_layer_operand* dy = nullptr;
};

// Those not asked for are empty, as is dW if it is added to main_grad.
struct Gradients {
  Tensor dx, dw, db;
};

// X whose row-wise copy another operator has made, of codes and scales that a call was given.
std::optional<CopyOfX> shared_copy(const std::optional<Tensor>& codes,
                                   const std::optional<Tensor>& scales);

// Y, and X^T in FP8 with its scales if it is kept.
struct Product {
  Tensor y;
  std::optional<CopyOfX> kept = std::nullopt;

  // Returns them as an operator does: two empty tensors stand for a copy that is not kept.
  std::tuple<Tensor, Tensor, Tensor> results() const;
};

// Keeps no copy of an X that is shared: who made the one has made the other. That X itself says the
// type and the sizes.
Product forward(const Tensor& x_given, const GivenWeight& given, std::optional<Tensor> bias,
                const Common& common, bool keep_x, bool input_gradient,
                const std::optional<CopyOfX>& shared);

// kept: what the forward pass kept of X; unused without dW. All that is given has been checked but
// for the weight's type and `kept`.
Gradients backward(const Tensor& dy_given, const GivenWeight& given, CopyOfX kept,
                   const Common& common, const Wanted& wanted);

// Throws std::invalid_argument for a main_grad to which the weight's gradient cannot be added.
void check_main_grad(const Tensor& main_grad, const Tensor& weight, const Place& place);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_PASSES_H_
