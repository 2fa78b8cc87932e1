// Inference with weights that a checkpoint has in FP8.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_BLOCK_FP8_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_BLOCK_FP8_H_

#include <optional>

#include "tensors.h"

namespace octile::binding {

// Returns x weight^T + bias of x [tokens, k], which is quantised in 1x128 blocks. weight is
// float8_e4m3fn [n, k] in blocks of 128 x 128 with fp32 scales [ceil(n/128), ceil(k/128)]. With
// offsets it is [experts, n, k], its scales likewise, and they are as experts_forward (linear.h)
// has them.
Tensor block_fp8_linear(Tensor x, Tensor weight, Tensor scales, std::optional<Tensor> bias,
                        std::optional<Tensor> offsets);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_BLOCK_FP8_H_
