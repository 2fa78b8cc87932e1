// The state of delayed scaling: fp32 in the caller's memory, laid out as octile_layer_scaling_size
// says.
#pragma once

#include <cstdint>

#include "runtime/layers/description.h"

namespace octile::layers {

class Scaling {
 public:
  // state may be null: then no part exists.
  Scaling(const Description& description, float* state)
      : state_(state), tensors_(description.tensors()), history_(description.history) {}

  static std::int64_t elements(const Description& description) {
    const std::int64_t rows = description.history == 0 ? 0 : 1 + description.history;
    return kDelayed * rows * description.tensors();
  }

  // Encode scales of X or dY, one for each expert.
  float* encode(Role role) const { return at(index_of(role) * tensors_); }
  // The current step's maxima of X or dY.
  float* maxima(Role role) const { return at((kDelayed + index_of(role) * history_) * tensors_); }

 private:
  static constexpr std::int64_t kDelayed = 2;  // tensors that are scaled by earlier steps

  static std::int64_t index_of(Role role) { return role == Role::kDy ? 1 : 0; }
  float* at(std::int64_t element) const { return state_ == nullptr ? nullptr : state_ + element; }

  float* state_;
  std::int64_t tensors_, history_;
};

}  // namespace octile::layers
