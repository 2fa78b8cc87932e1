// Weights that a caller holds in FP8, and no call quantises: the row-wise codes and scales of W, as
// a layer's own quantiser writes them, of recipes whose transposed copy of W is made of the same
// codes.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_HELD_WEIGHT_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_HELD_WEIGHT_H_

#include <cstdint>
#include <optional>

#include "layer_handles.h"
#include "recipes.h"
#include "shape.h"
#include "tensors.h"

namespace octile::binding {

// W, as operators are given it: of a float type, or codes with their scales.
struct GivenWeight {
  GivenWeight(const Tensor& weight) : tensor(weight) {}  // NOLINT(google-explicit-constructor)
  // w_gradient: the octile_dtype of dW, which codes do not say. Throws std::invalid_argument if it
  // is none of codes that are given.
  GivenWeight(const Tensor& weight, const std::optional<Tensor>& w_scales, std::int64_t w_gradient);

  // Returns the type that the layer trains W in.
  octile_dtype type() const { return scales ? gradient : float_type(tensor, "weight"); }

  const Tensor& tensor;
  std::optional<Tensor> scales;
  octile_dtype gradient{};
};

// W as one call of a layer reads it, as an operand that is CODES.
class HeldWeight {
 public:
  // codes: E4M3 [n, k], or [experts, n, k]. scales: those of the layer's W, contiguous and of any
  // shape. Rows of 128 x 128 scales are padded as the layer's are, or not at all, as checkpoints
  // have them. Throws std::invalid_argument for others.
  HeldWeight(const Tensor& codes, const Tensor& scales, Layer& layer, RecipeCode recipe,
             const Place& place);

  const octile_layer_operand* operand() const { return &operand_; }

 private:
  Tensor codes_, scales_;
  octile_layer_operand operand_{};
};

// Throws std::invalid_argument for a recipe whose W^T has other codes than W, or whose scales are a
// layer's.
void check_holdable(RecipeCode recipe);

// Quantises weight [n, k] or [experts, n, k] of bf16, fp16 or fp32 into codes and scales, which are
// as HeldWeight takes them.
void quantize_weight(Tensor weight, std::int64_t recipe, Tensor codes, Tensor scales);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_HELD_WEIGHT_H_
