#include "tools/models/config/model.h"

namespace octile::tools {
namespace {

std::int64_t sum_of(const Model& model, std::int64_t Weight::* layers) {
  std::int64_t sum = 0;
  for (const Weight& weight : model.weights) {
    sum = saturating_sum(sum, saturating_product(weight.*layers, weight.parameters()));
  }
  return sum;
}

}  // namespace

const char* name_of(Cut cut) {
  switch (cut) {
    case Cut::kNone:
      return "-";
    case Cut::kN:
      return "n";
    case Cut::kK:
      return "k";
    case Cut::kUnknown:
      return "?";
  }
  return "";
}

std::int64_t Weight::parameters() const {
  const std::int64_t matrix = is_vector() ? n.value : saturating_product(n.value, k.value);
  const std::int64_t one = saturating_sum(matrix, bias ? n.value : 0);
  return saturating_product(one, groups == 0 ? 1 : groups);
}

std::int64_t parameters_of(const Model& model) { return sum_of(model, &Weight::layers); }
std::int64_t mtp_parameters_of(const Model& model) { return sum_of(model, &Weight::mtp); }

}  // namespace octile::tools
