// Recipes as data: adding one is adding a row. A recipe gives the type of each tensor role and the
// promotion intervals of a linear layer's GEMMs.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "generator/core/error.h"
#include "generator/core/types.h"

namespace octile {

struct Recipe {
  std::string_view name;
  TensorType activation, weight, gradient;
  int promote_fprop = 128, promote_backward = 128;  // promotion intervals; backward: dgrad, wgrad
  std::string_view source;                          // paper section or document the row comes from
};

std::span<const Recipe> recipes();
const Recipe* find_recipe(std::string_view name);  // nullptr if there is none
// Errors: kInvalidArgument with the names that are allowed.
Result<const Recipe*> recipe_named(std::string_view name);
std::string recipe_names();  // "blockwise, blockwise_hybrid, ..."

}  // namespace octile
