// State of delayed scaling: the scales that X and dY of a layer are quantised by, and the maxima
// that later scales are made from. W is scaled by its own maximum.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_SCALING_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_SCALING_H_

#include <cstdint>
#include <optional>

#include "recipes.h"
#include "tensors.h"

namespace octile::binding {

// The state of a layer is one fp32 tensor, which Python owns, laid out as octile_layer_scaling_size
// says: (2 + 2 * history) * experts elements, of which the first 2 * experts are scales. A linear
// layer counts as one expert. Operators write the maxima although their schemas do not say so: no
// graph reads them, and raising a maximum twice is raising it once.
struct Scaling {
  float* state = nullptr;    // null without a tensor
  std::int64_t history = 0;  // steps that it remembers
};

// Throws std::invalid_argument if `state` is not such a tensor on `place`, if the recipe is delayed
// and `state` is absent, or if the recipe has other than one scale per tensor and `state` is there.
Scaling scaling_of(const std::optional<Tensor>& state, RecipeCode recipe, std::int64_t experts,
                   const Place& place);

// A call on `place` records maxima of X or dY in the state, if there is one.
void note_record(const Scaling& scaling, const Place& place);

// A state's scales and maxima belong to certain contents of the layer's weight: with
// others X and dY have other ranges. Returns the recipe that a call of `weight` computes by:
// `recipe`, or without its delay if the weight has other contents than the state belongs to. Writes
// that PyTorch counts are seen, another address, and what weights_changed() tells of. Throws
// std::runtime_error if a call that would scale by the state has to do without it while its stream
// captures.
RecipeCode recipe_of_call(RecipeCode recipe, const Scaling& scaling, const Tensor& weight,
                          const Place& place);

// From now on the state belongs to the contents that `weight` has now; without it to those that the
// next call finds, or, if they are not to be seen, to all that scales_are_old() does not tell of.
void scales_belong(Tensor state, std::optional<Tensor> weight, bool seen);
// The weight has other contents than the state belongs to.
void scales_are_old(Tensor state);
// Returns whether it had since this was last asked. Maxima that are recorded now belong to the
// others.
bool scales_were_old(Tensor state);

// Returns whether a call has recorded a maximum of X or dY since this was last asked. A call that
// was captured into a CUDA graph counts as one of every step, until an update is captured too, by
// which replays end their own steps.
bool maxima_recorded(Tensor state);

// Forgets what was recorded in the state at this address, whose memory is about to be another's.
void forget_maxima(std::int64_t address);

// Ends a step of layers: makes new encode scales from the maxima and moves the maxima on by one
// row, on the current stream. states: fp32 [layers][elements of a layer's state], rows at any
// stride. choice: an octile_amax_choice other than the average.
void update_scales(Tensor states, std::int64_t experts, std::int64_t recipe, std::int64_t choice,
                   std::int64_t margin);

// Prepares the kernels of update_scales.
void prepare_scale_update(RecipeCode recipe, std::int64_t experts, std::int64_t history,
                          const Place& place);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_SCALING_H_
