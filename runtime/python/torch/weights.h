// FP8 copies of weights. A weight that is kept (keep_weight) is quantised once for all calls
// between two changes of its contents; every other weight is quantised by each call.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_WEIGHTS_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_WEIGHTS_H_

#include <cstdint>
#include <optional>

#include "plans.h"
#include "recipes.h"
#include "scaling.h"
#include "tensors.h"

namespace octile::binding {

struct WeightCodes {
  std::optional<Quantized> rowwise;     // of W [n, k]: the forward pass
  std::optional<Quantized> transposed;  // of W^T [k, n]: input gradients
};

// Returns W in FP8, with those copies at least that are asked for. W is contiguous [n, k], or
// [experts, n, k]: then the copies of all experts lie one behind the other.
//
// Copies of a kept weight are used again if nothing suggests that W has changed: its address, the
// version that PyTorch counts at every write in place, and weights_changed(). They stay on the
// stream that made them; a call on another stream makes its own. A capture into a CUDA graph makes
// its own too, so that every replay quantises W once. `scaling` is used whenever W is quantised.
WeightCodes weight_codes(const Tensor& weight, const Place& place, RecipeCode recipe, bool rowwise,
                         bool transposed, const Scaling& scaling = {});

// Keeps the copies of this weight, until forget_weight() of the token returned.
std::int64_t keep_weight(Tensor weight);
void forget_weight(std::int64_t token);
// All copies are out of date, also those whose weight was written where PyTorch does not count it.
void weights_changed();
// Returns how many times a weight was quantised in this process.
std::int64_t weight_quantizations();

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_WEIGHTS_H_
