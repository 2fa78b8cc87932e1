// State of delayed scaling: the scales that a layer's operands are quantised by, and the maxima
// that later scales are made from.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_SCALING_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_SCALING_H_

#include <cstdint>
#include <optional>

#include "recipes.h"
#include "tensors.h"

namespace octile::binding {

// What a quantiser of one operand reads and writes; both are null without state. Experts have
// one element each.
struct Scaling {
  const float* encode = nullptr;  // [1], read if the recipe is delayed
  float* amax = nullptr;          // [1], raised to the largest finite |x|; null: not recorded

  // Returns the part of one expert.
  Scaling of_expert(std::int64_t index) const {
    return {.encode = encode == nullptr ? nullptr : encode + index,
            .amax = amax == nullptr ? nullptr : amax + index};
  }
};

// The state of a layer is one fp32 tensor of (3 + 3 * length) * experts elements, which Python
// owns; a plain layer counts as one expert:
//   encode scales of X, W, dY [3][experts] | maxima of X and W [length][2][experts] | maxima of dY
//   [length][experts]
// Row 0 of the maxima is the current step's. Operators write them although their schemas do not say
// so: no graph reads them, and raising a maximum twice is raising it once.
//
// Returns the part of `role`, or nothing for the maximum unless `record`. Throws
// std::invalid_argument if `state` is no such tensor on `place`, if the recipe is delayed and
// `state` is absent, or if the recipe has other than one scale per tensor and `state` is there.
Scaling scaling_of(const std::optional<Tensor>& state, RecipeCode recipe, Role role, bool record,
                   const Place& place, std::int64_t experts = 1);

// Returns whether a call has recorded a maximum of X or dY since this was last asked. A call that
// was captured into a CUDA graph counts as one of every step, until an update is captured too, by
// which replays end their own steps.
bool maxima_recorded(Tensor state);

// Forgets what was recorded in the state at this address, whose memory is about to be another's.
void forget_maxima(std::int64_t address);

// Ends a step: makes new encode scales from the maxima and moves the maxima on by one row, on the
// current stream. choice: an octile_amax_choice other than the average. Does nothing and returns
// false if maxima_recorded() says so, unless `always`.
bool update_scales(Tensor state, std::int64_t experts, std::int64_t recipe, std::int64_t choice,
                   std::int64_t margin, bool always);

// Prepares the kernels of update_scales on `place`.
void prepare_scale_update(RecipeCode recipe, const Place& place);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_SCALING_H_
