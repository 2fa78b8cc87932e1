// The recipes of the library as the three GEMMs of a linear layer use them, and the plans of a
// layer.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_RECIPES_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_RECIPES_H_

#include <cstdint>
#include <string_view>

#include "octile/octile.h"
#include "plans.h"
#include "tensors.h"

namespace octile::binding {

enum class Role : std::uint8_t { kActivation, kWeight, kGradient };
enum class Output : std::uint8_t { kRowwise, kTransposed, kBoth };

// A recipe as operators receive it: its index in octile_recipe_at().
using RecipeCode = std::int64_t;

// Throws std::invalid_argument for a number that is no recipe, or a name that is none.
void check_recipe(RecipeCode recipe);
RecipeCode recipe_named(std::string_view name);
const octile_tensor_type& tensor_type(RecipeCode recipe, Role role);
// Whether operands have one scale each, and whether it comes from earlier steps (scaling.h).
bool has_tensor_scales(RecipeCode recipe);
bool is_delayed(RecipeCode recipe);

// Quantises tensors [rows, cols] of type x; `groups` contiguous groups of rows if above 0.
octile_plan* quantizer(RecipeCode recipe, Role role, Output output, octile_dtype x,
                       std::int64_t cols, bool column_sums, bool groups, const Place& place);

// Y[m, n] = X W^T + bias. bias: OCTILE_BF16, OCTILE_FP32, or 0 for none. groups: experts, 0 for a
// plain layer. sentry: calls give octile_gemm_args.sentry.
octile_plan* forward_gemm(RecipeCode recipe, std::int64_t n, std::int64_t k, octile_dtype y,
                          octile_dtype bias, std::int64_t groups, const Place& place,
                          bool sentry = false);
// dX[m, k] = dY W.
octile_plan* input_gradient_gemm(RecipeCode recipe, std::int64_t n, std::int64_t k, octile_dtype dx,
                                 std::int64_t groups, const Place& place, bool sentry = false);
// dW[n, k] (+)= dY^T X.
octile_plan* weight_gradient_gemm(RecipeCode recipe, std::int64_t n, std::int64_t k,
                                  octile_dtype dw, bool accumulate, std::int64_t groups,
                                  const Place& place, bool sentry = false);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_RECIPES_H_
