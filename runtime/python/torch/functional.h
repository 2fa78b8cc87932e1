// The library's own operations on tensors, by problem texts. They are what
// octile/torch/functional.py calls, which builds the text from the tensors' shapes and checks their
// sizes against the library's layouts.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_FUNCTIONAL_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_FUNCTIONAL_H_

#include <optional>
#include <string>
#include <tuple>

#include "tensors.h"

namespace octile::binding {

// x [rows, cols], rows contiguous; x_scale: of FP8 x. codes is an octile_dtype, scales a ScaleType.
// Returns codes and scales of the output that `transposed` names. Problems of quantize and
// transpose.
std::tuple<Tensor, Tensor> quantize_one(Tensor x, std::optional<Tensor> x_scale,
                                        std::string problem, std::int64_t codes,
                                        std::int64_t scales, bool transposed);
// Both outputs from one read: codes and scales, then those of the transposed copy.
std::tuple<Tensor, Tensor, Tensor, Tensor> quantize_both(Tensor x, std::string problem,
                                                         std::int64_t codes, std::int64_t scales);
// Returns codes * scales [rows, cols] of `type`, an octile_dtype.
Tensor dequantize(Tensor codes, Tensor scales, std::string problem, std::int64_t cols,
                  std::int64_t type);
// Writes d, or adds to it if the problem says acc=1.
void gemm_out(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, std::optional<Tensor> bias,
              Tensor d, std::string problem, std::int64_t tokens);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_FUNCTIONAL_H_
