#include "tools/inspect/measured.h"

#include <algorithm>

namespace octile::tools {
namespace {

// Returns the recipe with the other form of scales, or null.
const Recipe* twin_of(const Recipe& recipe) {
  constexpr std::string_view kF32 = ":f32";
  std::string name(recipe.name);
  if (name.ends_with(kF32)) {
    name.resize(name.size() - kF32.size());
  } else {
    name += kF32;
  }
  return find_recipe(name);
}

}  // namespace

std::size_t RecipeTypes::index_of(const TensorType& type) {
  const auto found = std::ranges::find(types_, type);
  if (found != types_.end()) return static_cast<std::size_t>(found - types_.begin());
  types_.push_back(type);
  return types_.size() - 1;
}

Result<RecipeTypes> RecipeTypes::of(const std::vector<std::string>& names) {
  RecipeTypes all;
  for (const std::string& name : names) {
    const auto recipe = recipe_named(name);
    if (!recipe) return tl::unexpected<Error>(recipe.error());
    const auto is_it = [&](const Row& row) { return row.recipe == *recipe; };
    if (std::ranges::any_of(all.rows_, is_it)) continue;
    Row row{.recipe = *recipe, .type = all.index_of((*recipe)->weight)};
    const bool is_f32 = (*recipe)->weight.scale == ScaleFormat::kF32;
    (is_f32 ? row.f32 : row.pow2) = row.type;
    if (const Recipe* twin = twin_of(**recipe)) {
      (is_f32 ? row.pow2 : row.f32) = all.index_of(twin->weight);
    }
    all.rows_.push_back(row);
  }
  return all;
}

Result<Measured> measure(const Subject& subject, std::span<const TensorType> types, double sample) {
  Measured all;
  all.losses.resize(types.size());
  InfiniteValues infinite;
  for (const StoredMatrices& part : subject.parts) {
    for (std::int64_t i = 0; i < part.count; ++i) {
      const FileMatrix matrix(part, i, &infinite);
      auto one = reference::inspect(matrix, types, {.sample = sample});
      if (!one) return tl::unexpected<Error>(one.error());
      all.values += one->values;
      if (one->values.nans + one->values.infinities > 0) {
        all.nonfinite.push_back({part.number + i, part.stored->file->name()});
      }
      for (std::size_t type = 0; type < types.size(); ++type) {
        one->losses[type].set_matrix(part.number + i);
        if (part.is_transposed) one->losses[type].transpose_places();
        all.losses[type] += one->losses[type];
      }
    }
  }
  all.has_beyond_fp32 = infinite.are_beyond_fp32;
  all.has_infinities = all.values.infinities > 0 && (!all.has_beyond_fp32 || infinite.are_stored);
  return all;
}

}  // namespace octile::tools
