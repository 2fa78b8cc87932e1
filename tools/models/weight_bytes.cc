#include "tools/models/weight_bytes.h"

#include <cmath>

#include "generator/core/recipe.h"

namespace octile::tools {
namespace {

double ceil_div(std::int64_t a, std::int64_t b) {
  return std::ceil(static_cast<double>(a) / static_cast<double>(b));
}

}  // namespace

double elements_of(const Weight& weight) {
  return static_cast<double>(weight.n.value) * static_cast<double>(weight.k.value);
}

double scale_bytes_of(const Weight& weight) {
  const Recipe* recipe = find_recipe(weight.recipe);
  if (recipe == nullptr) return 0;
  const auto n = static_cast<double>(weight.n.value);
  switch (recipe->weight.granularity) {
    case Granularity::kPerTensor:
      return 4;
    case Granularity::kPerRow:
      return 4 * n;
    case Granularity::k128x128:
      return 4 * ceil_div(weight.n.value, 128) * ceil_div(weight.k.value, 128);
    case Granularity::k1x128:
      return 4 * n * ceil_div(weight.k.value, 128);
    case Granularity::k1x32:
      return n * ceil_div(weight.k.value, 32);
    case Granularity::k32x32:
      return ceil_div(weight.n.value, 32) * ceil_div(weight.k.value, 32);
    case Granularity::kNone:
      break;
  }
  return 0;
}

}  // namespace octile::tools
