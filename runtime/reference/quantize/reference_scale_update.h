// Delayed scaling on the host: computes the next step's encode scales from the maxima of earlier
// steps.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/quantize/problem.h"

namespace octile::reference {

// The values equal those of octile_amax_choice in the public header.
enum class AmaxChoice : int {
  kLargest = 0,  // the largest of the whole history
  kLatest = 1,   // this step's amax
  kAverage = 2,  // exponential: history[1] = history[1] * (1 - share) + this step's * share
};

struct ScaleUpdateArgs {
  float* history = nullptr;       // [length][tensors]; this step's quantising has raised row 0
  float* encode_scale = nullptr;  // [tensors]
  std::int64_t tensors = 0;
  std::int64_t length = 0;
  AmaxChoice choice = AmaxChoice::kLargest;
  int margin = 0;           // the scale leaves headroom of 2^margin times the amax
  float average_share = 0;  // weight of this step with kAverage
};

// Updates each tensor's scale and history as docs/numerics.md says under "Delayed scaling". Chooses
// an amax from the history, in which values that are not finite count as 0. Derives the encode
// scale, which stays unchanged if the amax is 0. Then moves the history on by one step. The problem
// determines the format, its power-of-two rule and the epsilon.
void update_scales(const QuantizeProblem& problem, const ScaleUpdateArgs& args);

}  // namespace octile::reference
