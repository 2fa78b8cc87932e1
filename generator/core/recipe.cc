#include "generator/core/recipe.h"

#include <fmt/format.h>

#include <array>

namespace octile {
namespace {

constexpr TensorType typed(DType dtype, Granularity granularity,
                           ScaleFormat scale = ScaleFormat::kF32Pow2) {
  return {dtype, granularity, scale};
}

constexpr DType kE4M3 = DType::kE4M3;
constexpr DType kE5M2 = DType::kE5M2;

constexpr std::array<Recipe, 6> kNamed{{
    {.name = "blockwise",
     .activation = typed(kE4M3, Granularity::k1x128),
     .weight = typed(kE4M3, Granularity::k128x128),
     .gradient = typed(kE4M3, Granularity::k1x128),
     .promote_fprop = 128,
     .promote_backward = 128,
     .source = "DeepSeek-V3 technical report, arXiv 2412.19437, section 3.3"},
    {.name = "blockwise_hybrid",
     .activation = typed(kE4M3, Granularity::k1x128),
     .weight = typed(kE4M3, Granularity::k128x128),
     .gradient = typed(kE5M2, Granularity::k1x128),
     .promote_fprop = 128,
     .promote_backward = 128,
     .source = "blockwise, with the E5M2 gradients of FP8 Formats for Deep Learning, arXiv "
               "2209.05433"},
    {.name = "tensorwise",
     .activation = typed(kE4M3, Granularity::kPerTensor),
     .weight = typed(kE4M3, Granularity::kPerTensor),
     .gradient = typed(kE5M2, Granularity::kPerTensor),
     .promote_fprop = kPromoteNone,
     .promote_backward = 128,
     .source = "TransformerEngine common/recipe: Float8CurrentScaling (HYBRID, power-of-two "
               "scales; split "
               "accumulator in dgrad and wgrad only)"},
    {.name = "delayed",
     .activation = typed(kE4M3, Granularity::kPerTensor),
     .weight = typed(kE4M3, Granularity::kPerTensor),
     .gradient = typed(kE5M2, Granularity::kPerTensor),
     .promote_fprop = kPromoteNone,
     .promote_backward = 128,
     .delayed = true,
     .source =
         "TransformerEngine common/recipe: DelayedScaling (HYBRID, amax history of 1024 steps, "
         "power-of-two scales; split accumulator in dgrad and wgrad only)"},
    {.name = "rowwise",
     .activation = typed(kE4M3, Granularity::kPerRow),
     .weight = typed(kE4M3, Granularity::kPerRow),
     .gradient = typed(kE4M3, Granularity::kPerRow),
     .promote_fprop = kPromoteNone,
     .promote_backward = 128,
     .source = "torchao float8/config.py: recipe rowwise (E4M3, power-of-two scales; fast "
               "accumulation in fprop only)"},
    {.name = "mxfp8",
     .activation = typed(kE4M3, Granularity::k1x32, ScaleFormat::kE8M0),
     .weight = typed(kE4M3, Granularity::k1x32, ScaleFormat::kE8M0),
     .gradient = typed(kE4M3, Granularity::k1x32, ScaleFormat::kE8M0),
     .promote_fprop = 32,
     .promote_backward = 32,
     .source = "OCP Microscaling Formats (MX) v1.0; E4M3 for all roles after Recipes for "
               "Pre-training LLMs with MXFP8, arXiv 2506.08027"},
}};

// Returns the recipe with fp32 scales that are not powers of two.
constexpr Recipe with_f32(std::string_view name, Recipe recipe) {
  recipe.name = name;
  for (TensorType* type : {&recipe.activation, &recipe.weight, &recipe.gradient}) {
    type->scale = ScaleFormat::kF32;
  }
  return recipe;
}

// Callers count on the order: new rows come last.
constexpr std::array kRecipes{
    kNamed[0],
    kNamed[1],
    kNamed[2],
    kNamed[3],
    kNamed[4],
    kNamed[5],
    with_f32("blockwise:f32", kNamed[0]),
    with_f32("blockwise_hybrid:f32", kNamed[1]),
    with_f32("tensorwise:f32", kNamed[2]),
    with_f32("delayed:f32", kNamed[3]),
    with_f32("rowwise:f32", kNamed[4]),
};

}  // namespace

std::span<const Recipe> recipes() { return kRecipes; }

const Recipe* find_recipe(std::string_view name) {
  for (const Recipe& r : kRecipes) {
    if (r.name == name) return &r;
  }
  return nullptr;
}

std::string recipe_names() {
  std::string names;
  for (const Recipe& r : kNamed) names.append(names.empty() ? "" : ", ").append(r.name);
  return names + ", and NAME:f32 for scales that are not powers of two";
}

Result<const Recipe*> recipe_named(std::string_view name) {
  if (const Recipe* recipe = find_recipe(name)) return recipe;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("recipe is '{}'; allowed are {}", name, recipe_names()));
}

}  // namespace octile
