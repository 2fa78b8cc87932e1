// Operands of a layer, quantised by themselves: for layers whose tensors lie on several ranks, so
// that copies are sent before a product reads them, and the scale of a tensor comes from the maxima
// of all ranks.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_OPERANDS_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_OPERANDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "tensors.h"

namespace octile::binding {

// role: 0 X, 1 W, 2 dY: whose type of the recipe is taken, in both operators. x is [..., k] of
// bf16, fp16 or fp32. recipe: not "delayed".

// Returns codes [tokens, k] and flat scales, those of the transposed copy as linear_forward
// (linear.h) keeps it, and fp32 sums [k] of the columns. Those not asked for are empty. encode:
// fp32 [1], of recipes with a scale for each tensor: x is multiplied by it, and the scale is its
// reciprocal; without it the scale comes from x.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> quantize_operand(Tensor x, std::int64_t recipe,
                                                                    std::int64_t role, bool rowwise,
                                                                    bool transposed, bool sums,
                                                                    std::optional<Tensor> encode);

// Returns fp32 [1]: the largest finite magnitude of x. recipe: one with a scale for each tensor.
Tensor operand_amax(Tensor x, std::int64_t recipe, std::int64_t role);

// Writes d [m, n] = A B^T, summed over the tokens k. a and b are codes [m, k] and [n, k], rows at
// multiples of 16 bytes, of which at least one lies in panels, contiguous [panels, rows, k /
// panels], as ranks have sent it. k / panels is a multiple of 128. Scales are those of [rows, k].
// Types: as of gemm_out (functional.h). promote: 128.
void sum_panels_out(Tensor a, Tensor a_scale, std::string a_type, Tensor b, Tensor b_scale,
                    std::string b_type, Tensor d);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_OPERANDS_H_
