#include "recipes.h"

#include <string>
#include <vector>

#include "tensors.h"

namespace octile::binding {
namespace {

// The library's table, read when the extension is loaded.
std::vector<octile_recipe> read_recipes() {
  std::vector<octile_recipe> recipes;
  octile_recipe recipe{};
  recipe.struct_size = sizeof recipe;
  for (std::int32_t index = 0; octile_recipe_at(index, &recipe) == OCTILE_OK; ++index) {
    recipes.push_back(recipe);
  }
  return recipes;
}
const std::vector<octile_recipe>& recipes = *new std::vector<octile_recipe>(read_recipes());

const octile_recipe& row_of(RecipeCode recipe) {
  return recipes.at(static_cast<std::size_t>(recipe));
}

}  // namespace

void check_recipe(RecipeCode recipe) {
  if (recipe < 0 || recipe >= static_cast<RecipeCode>(recipes.size())) {
    refuse("recipe is " + std::to_string(recipe) +
           "; allowed are the codes of octile.torch.Recipe, 0 to " +
           std::to_string(recipes.size() - 1));
  }
}

RecipeCode recipe_named(std::string_view name) {
  for (std::size_t i = 0; i < recipes.size(); ++i) {
    if (name == recipes[i].name) return static_cast<RecipeCode>(i);
  }
  refuse("the library has no recipe '" + std::string(name) + "'");
}

const char* recipe_name(RecipeCode recipe) { return row_of(recipe).name; }

const octile_tensor_type& type_of_x(RecipeCode recipe) { return row_of(recipe).activation; }
const octile_tensor_type& type_of_dy(RecipeCode recipe) { return row_of(recipe).gradient; }
const octile_tensor_type& type_of_w(RecipeCode recipe) { return row_of(recipe).weight; }

bool has_tensor_scales(RecipeCode recipe) {
  return row_of(recipe).activation.granularity == OCTILE_SCALE_PER_TENSOR;
}
bool is_delayed(RecipeCode recipe) { return row_of(recipe).delayed != 0; }

RecipeCode without_delay(RecipeCode recipe) {
  static const RecipeCode pow2 = recipe_named("tensorwise"), f32 = recipe_named("tensorwise:f32");
  if (!is_delayed(recipe)) return recipe;
  return type_of_x(recipe).scale_format == type_of_x(pow2).scale_format ? pow2 : f32;
}

}  // namespace octile::binding
