// Delayed scaling on the host: from the maxima of earlier steps to the encode scales of the next.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/problem.h"

namespace octile::reference {

// Values are those of octile_amax_choice in the public header.
enum class AmaxChoice : int {
  kLargest = 0,  // of the whole history
  kLatest = 1,   // of this step
  kAverage = 2,  // exponential: history[1] = history[1] * (1 - share) + this step's * share
};

struct ScaleUpdateArgs {
  float* history = nullptr;  // [length][tensors]; row 0 is what this step's quantising has raised
  float* encode_scale = nullptr;   // [tensors]
  std::int64_t tensors = 0;
  std::int64_t length = 0;
  AmaxChoice choice = AmaxChoice::kLargest;
  int margin = 0;           // the scale leaves room for 2^margin times the amax
  float average_share = 0;  // of this step, with kAverage
};

// For each tensor, as docs/numerics.md says under "Delayed scaling": chooses an amax from the
// history (what is not finite counts as 0), derives the encode scale, which stays where the amax is
// 0, and moves the history on by one step. The format, its power-of-two rule and the epsilon are
// the problem's.
void update_scales(const QuantizeProblem& problem, const ScaleUpdateArgs& args);

}  // namespace octile::reference
