// Recipes as data: adding one is adding a row. A recipe gives the type of each tensor role and the
// promotion intervals of a linear layer's GEMMs.
//
// fp32 scales are powers of two: an FP8 tensor that is quantised again, such as its transposed
// copy, then keeps its values. NAME:f32 is the recipe NAME without this restriction.
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
  bool delayed = false;                             // scales come from the maxima of earlier steps
  std::string_view source;                          // paper section or document the row comes from
};

std::span<const Recipe> recipes();
const Recipe* find_recipe(std::string_view name);  // nullptr if there is none
// Errors: kInvalidArgument with the names that are allowed.
Result<const Recipe*> recipe_named(std::string_view name);
// Returns "blockwise, blockwise_hybrid, ...", and in words that each also has a form NAME:f32.
std::string recipe_names();

}  // namespace octile
