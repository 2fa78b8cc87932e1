// The weights of a model that are multiplied in FP8, and their recipes.
#pragma once

#include <string>
#include <vector>

#include "generator/core/error.h"
#include "tools/models/config/model.h"

namespace octile::tools {

struct RecipeOptions {
  std::string recipe = "auto";                       // or the name of a recipe
  std::string preset = {};                           // empty: deepseek-v3
  std::vector<std::string> convert = {}, keep = {};  // patterns of roles
};

std::vector<std::string> preset_names();

// Gives each weight its recipe, or the reason why it stays out. `auto` is the checkpoint's recipe,
// and blockwise for one in BF16. Errors: kInvalidArgument, naming the option.
Status assign_recipes(Model& model, const RecipeOptions& options);

}  // namespace octile::tools
