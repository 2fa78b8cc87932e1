#include "recipes.h"

#include <array>
#include <string>
#include <vector>

#include "types.h"

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

std::string promote_text(std::int32_t promote) {
  return promote == OCTILE_PROMOTE_NONE ? "none" : std::to_string(promote);
}

std::string operand_of(RecipeCode recipe, Role role) {
  return operand_text(tensor_type(recipe, role));
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

const octile_tensor_type& tensor_type(RecipeCode recipe, Role role) {
  const octile_recipe& row = row_of(recipe);
  if (role == Role::kActivation) return row.activation;
  return role == Role::kWeight ? row.weight : row.gradient;
}

bool has_tensor_scales(RecipeCode recipe) {
  return row_of(recipe).activation.granularity == OCTILE_SCALE_PER_TENSOR;
}
bool is_delayed(RecipeCode recipe) { return row_of(recipe).delayed != 0; }

octile_plan* quantizer(RecipeCode recipe, Role role, Output output, octile_dtype x,
                       std::int64_t cols, bool column_sums, bool groups, const Place& place) {
  const std::uint64_t kind =
      kind_of(recipe, role, output, x, column_sums, groups, Problem::kQuantize);
  return cached(key_of(kind, 0, cols, place), place, [&] {
    static constexpr std::array kOutputs{"row", "col", "both"};
    return "quantize rows=? cols=" + std::to_string(cols) + " x=" + name_of(x) +
           " q=" + text_of(tensor_type(recipe, role)) +
           " out=" + kOutputs.at(static_cast<std::size_t>(output)) +
           (column_sums ? " dbias=1" : "") + (is_delayed(recipe) ? " policy=delayed" : "") +
           (groups ? " group=contiguous" : "");
  });
}

octile_plan* forward_gemm(RecipeCode recipe, std::int64_t n, std::int64_t k, octile_dtype y,
                          octile_dtype bias, std::int64_t groups, const Place& place, bool sentry) {
  const std::uint64_t kind = kind_of(groups, recipe, y, bias, sentry, Problem::kForward);
  return cached(key_of(kind, n, k, place), place, [&] {
    return "gemm m=? n=" + std::to_string(n) + " k=" + std::to_string(k) +
           " a=" + operand_of(recipe, Role::kActivation) +
           " b=" + operand_of(recipe, Role::kWeight) + " d=" + name_of(y) +
           " acc=0 promote=" + promote_text(row_of(recipe).promote_forward) +
           (bias == 0 ? "" : std::string(" bias=") + name_of(bias)) + sentry_text(sentry) +
           group_text(groups);
  });
}

octile_plan* input_gradient_gemm(RecipeCode recipe, std::int64_t n, std::int64_t k, octile_dtype dx,
                                 std::int64_t groups, const Place& place, bool sentry) {
  const std::uint64_t kind = kind_of(groups, recipe, dx, 0, sentry, Problem::kInputGradient);
  return cached(key_of(kind, n, k, place), place, [&] {
    return "gemm m=? n=" + std::to_string(k) + " k=" + std::to_string(n) +
           " a=" + operand_of(recipe, Role::kGradient) + " b=" + operand_of(recipe, Role::kWeight) +
           " d=" + name_of(dx) + " acc=0 promote=" + promote_text(row_of(recipe).promote_backward) +
           sentry_text(sentry) + group_text(groups);
  });
}

octile_plan* weight_gradient_gemm(RecipeCode recipe, std::int64_t n, std::int64_t k,
                                  octile_dtype dw, bool accumulate, std::int64_t groups,
                                  const Place& place, bool sentry) {
  const std::uint64_t kind =
      kind_of(groups, recipe, dw, accumulate, sentry, Problem::kWeightGradient);
  return cached(key_of(kind, n, k, place), place, [&] {
    return "gemm m=" + std::to_string(n) + " n=" + std::to_string(k) +
           " k=? a=" + operand_of(recipe, Role::kGradient) +
           " b=" + operand_of(recipe, Role::kActivation) + " d=" + name_of(dw) +
           " acc=" + (accumulate ? "1" : "0") +
           " promote=" + promote_text(row_of(recipe).promote_backward) + sentry_text(sentry) +
           group_text(groups);
  });
}

}  // namespace octile::binding
