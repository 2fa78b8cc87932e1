// The sizes of one call of a layer.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_SHAPE_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_SHAPE_H_

#include <cstdint>

#include "tensors.h"

namespace octile::binding {

struct Shape {
  Place place;
  std::int64_t tokens = 0, n = 0, k = 0;
  std::int64_t experts = 0;               // 0: a linear layer
  const std::int32_t* offsets = nullptr;  // of experts
};

// The tensor of a call beside the weight: x [..., k], or dy [..., n].
enum class Given : std::uint8_t { kX, kDy };

// Return the sizes of a call with a weight [n, k], or with [experts, n, k]. Throw
// std::invalid_argument for tensors that do not fit together, or n and k that are not multiples of
// 16.
Shape linear_shape(const Tensor& tokens, const Tensor& weight, Given given);
Shape expert_shape(const Tensor& tokens, const Tensor& weight, const Tensor& offsets, Given given);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_SHAPE_H_
