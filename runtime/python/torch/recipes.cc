#include "recipes.h"

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

namespace octile::binding {
namespace {

struct RecipeRow {
  octile_dtype activation{}, weight{}, gradient{};
  const char *activation_scales = "", *weight_scales = "", *gradient_scales = "";
  const char *promote_forward = "", *promote_backward = "";
  ScaleType scale_type{};
  bool delayed = false;
};

// The rows of generator/core/recipe.cc. octile/torch/recipes.py has their names and types; tests
// compare it with this table and with the command.
constexpr std::array<RecipeRow, 6> kRecipes{{
    {OCTILE_E4M3, OCTILE_E4M3, OCTILE_E4M3, "1x128", "128x128", "1x128", "128", "128",
     ScaleType::kFp32},
    {OCTILE_E4M3, OCTILE_E4M3, OCTILE_E5M2, "1x128", "128x128", "1x128", "128", "128",
     ScaleType::kFp32},
    {OCTILE_E4M3, OCTILE_E4M3, OCTILE_E5M2, "tensor", "tensor", "tensor", "none", "128",
     ScaleType::kFp32},
    {OCTILE_E4M3, OCTILE_E4M3, OCTILE_E4M3, "row", "row", "row", "none", "128", ScaleType::kFp32},
    {OCTILE_E4M3, OCTILE_E4M3, OCTILE_E4M3, "1x32", "1x32", "1x32", "32", "32", ScaleType::kE8m0},
    {OCTILE_E4M3, OCTILE_E4M3, OCTILE_E5M2, "tensor", "tensor", "tensor", "none", "128",
     ScaleType::kFp32, true},
}};

const RecipeRow& row_of(RecipeCode recipe) {
  return kRecipes[static_cast<std::size_t>(recipe % kFp32Scales)];
}

const char* name_of(octile_dtype type) {
  static constexpr const char* kNames[] = {"", "e4m3", "e5m2", "bf16", "fp16", "fp32"};
  return kNames[type];
}

// The type of an operand in a problem text. GEMMs multiply by fp32 scales, powers of two or not, so
// their texts name no scale format, and tuned configurations serve both.
std::string type_text(RecipeCode recipe, Role role) {
  const RecipeRow& row = row_of(recipe);
  const char* scales = role == Role::kActivation ? row.activation_scales
                       : role == Role::kWeight   ? row.weight_scales
                                                 : row.gradient_scales;
  return std::string(name_of(codes_of(recipe, role))) + ':' + scales;
}

enum class Problem : std::uint8_t { kQuantize, kForward, kInputGradient, kWeightGradient };

// Packs what tells two texts apart into a number, four bits each; only the first may need more.
template <typename... Fields>
std::uint64_t kind_of(std::int64_t first, Fields... fields) {
  auto kind = static_cast<std::uint64_t>(first);
  ((kind = kind << 4U | static_cast<std::uint64_t>(fields)), ...);
  return kind;
}

template <typename Text>
octile_plan* cached(const PlanKey& key, const Place& place, Text text) {
  if (octile_plan* plan = known_plan(key)) return plan;
  octile_plan* plan = plan_of(text(), place);
  remember_plan(key, plan);
  return plan;
}

PlanKey key_of(std::uint64_t kind, std::int64_t rows, std::int64_t cols, const Place& place) {
  return {.kind = kind, .rows = rows, .cols = cols, .device = place.host ? -1 : place.device_index};
}

std::string group_text(std::int64_t groups) {
  return groups == 0 ? "" : " group=contiguous groups=" + std::to_string(groups);
}

const char* sentry_text(bool sentry) { return sentry ? " sentry=1" : ""; }

}  // namespace

void check_recipe(RecipeCode recipe) {
  if (recipe < 0 || recipe >= 2 * kFp32Scales ||
      recipe % kFp32Scales >= static_cast<RecipeCode>(kRecipes.size())) {
    throw std::invalid_argument("octile: recipe is " + std::to_string(recipe) +
                                "; allowed are the codes of octile.torch.Recipe");
  }
}

octile_dtype codes_of(RecipeCode recipe, Role role) {
  const RecipeRow& row = row_of(recipe);
  if (role == Role::kActivation) return row.activation;
  return role == Role::kWeight ? row.weight : row.gradient;
}

ScaleType scale_type(RecipeCode recipe) { return row_of(recipe).scale_type; }

bool has_tensor_scales(RecipeCode recipe) {
  return std::string_view(row_of(recipe).activation_scales) == "tensor";
}
bool is_delayed(RecipeCode recipe) { return row_of(recipe).delayed; }

octile_plan* quantizer(RecipeCode recipe, Role role, Output output, octile_dtype x,
                       std::int64_t cols, bool column_sums, bool groups, const Place& place) {
  const std::uint64_t kind = kind_of(recipe / kFp32Scales, recipe % kFp32Scales, role, output, x,
                                     column_sums, groups, Problem::kQuantize);
  return cached(key_of(kind, 0, cols, place), place, [&] {
    const bool pow2 = recipe < kFp32Scales && scale_type(recipe) == ScaleType::kFp32;
    static constexpr const char* kOutputs[] = {"row", "col", "both"};
    return "quantize rows=? cols=" + std::to_string(cols) + " x=" + name_of(x) +
           " q=" + type_text(recipe, role) + (pow2 ? ":pow2" : "") +
           " out=" + kOutputs[static_cast<int>(output)] + (column_sums ? " dbias=1" : "") +
           (is_delayed(recipe) ? " policy=delayed" : "") + (groups ? " group=contiguous" : "");
  });
}

octile_plan* forward_gemm(RecipeCode recipe, std::int64_t n, std::int64_t k, octile_dtype y,
                          octile_dtype bias, std::int64_t groups, const Place& place, bool sentry) {
  const std::uint64_t kind =
      kind_of(groups, recipe % kFp32Scales, y, bias, sentry, Problem::kForward);
  return cached(key_of(kind, n, k, place), place, [&] {
    return "gemm m=? n=" + std::to_string(n) + " k=" + std::to_string(k) +
           " a=" + type_text(recipe, Role::kActivation) + " b=" + type_text(recipe, Role::kWeight) +
           " d=" + name_of(y) + " acc=0 promote=" + row_of(recipe).promote_forward +
           (bias == 0 ? "" : std::string(" bias=") + name_of(bias)) + sentry_text(sentry) +
           group_text(groups);
  });
}

octile_plan* input_gradient_gemm(RecipeCode recipe, std::int64_t n, std::int64_t k, octile_dtype dx,
                                 std::int64_t groups, const Place& place, bool sentry) {
  const std::uint64_t kind =
      kind_of(groups, recipe % kFp32Scales, dx, 0, sentry, Problem::kInputGradient);
  return cached(key_of(kind, n, k, place), place, [&] {
    return "gemm m=? n=" + std::to_string(k) + " k=" + std::to_string(n) +
           " a=" + type_text(recipe, Role::kGradient) + " b=" + type_text(recipe, Role::kWeight) +
           " d=" + name_of(dx) + " acc=0 promote=" + row_of(recipe).promote_backward +
           sentry_text(sentry) + group_text(groups);
  });
}

octile_plan* weight_gradient_gemm(RecipeCode recipe, std::int64_t n, std::int64_t k,
                                  octile_dtype dw, bool accumulate, std::int64_t groups,
                                  const Place& place, bool sentry) {
  const std::uint64_t kind =
      kind_of(groups, recipe % kFp32Scales, dw, accumulate, sentry, Problem::kWeightGradient);
  return cached(key_of(kind, n, k, place), place, [&] {
    return "gemm m=" + std::to_string(n) + " n=" + std::to_string(k) +
           " k=? a=" + type_text(recipe, Role::kGradient) +
           " b=" + type_text(recipe, Role::kActivation) + " d=" + name_of(dw) +
           " acc=" + (accumulate ? "1" : "0") + " promote=" + row_of(recipe).promote_backward +
           sentry_text(sentry) + group_text(groups);
  });
}

}  // namespace octile::binding
