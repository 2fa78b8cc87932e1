// The library's table of recipes.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_RECIPES_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_RECIPES_H_

#include <cstdint>
#include <string_view>

#include "octile/octile.h"

namespace octile::binding {

// A recipe as operators receive it: its index in octile_recipe_at().
using RecipeCode = std::int64_t;

// Throw std::invalid_argument for a number that is not a recipe, and for such a name.
void check_recipe(RecipeCode recipe);
RecipeCode recipe_named(std::string_view name);

// The rest is of a number that check_recipe() lets pass.
const char* recipe_name(RecipeCode recipe);
const octile_tensor_type& type_of_x(RecipeCode recipe);
const octile_tensor_type& type_of_dy(RecipeCode recipe);
const octile_tensor_type& type_of_w(RecipeCode recipe);
// Returns whether operands have one scale each, and whether it comes from earlier steps
// (scaling.h).
bool has_tensor_scales(RecipeCode recipe);
bool is_delayed(RecipeCode recipe);
// Returns the recipe that scales by the tensors' own maxima, of one that is delayed; others as they
// are.
RecipeCode without_delay(RecipeCode recipe);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_RECIPES_H_
