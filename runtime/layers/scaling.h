// The state of scales that are made from earlier steps: fp32 in the caller's memory, laid out as
// octile_layer_scaling_size says.
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
    return kRoles * rows * description.tensors();
  }

  // Encode scales of a tensor, one for each expert.
  float* encode(Role role) const { return at(static_cast<std::int64_t>(role) * tensors_); }
  // The current step's maxima of a tensor.
  float* maxima(Role role) const {
    if (role == Role::kDy) return at((kRoles + kShared * history_) * tensors_);
    return at((kRoles + static_cast<std::int64_t>(role)) * tensors_);
  }
  // X and W share an FP8 type, so that one launch updates both. Returns how many scales it updates.
  std::int64_t scales_of_update(Role role) const {
    return (role == Role::kDy ? kRoles - kShared : kShared) * tensors_;
  }

 private:
  static constexpr std::int64_t kShared = 2;

  float* at(std::int64_t element) const { return state_ == nullptr ? nullptr : state_ + element; }

  float* state_;
  std::int64_t tensors_, history_;
};

}  // namespace octile::layers
