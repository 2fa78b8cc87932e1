#include "weights.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace octile::binding {
namespace {

// What the copies of a kept weight were made from. `memory` keeps the weight's memory alive, so that no other tensor
// can have the address.
struct Kept {
  std::int64_t token = 0;
  std::optional<Tensor> memory;
  std::int64_t version = 0, epoch = 0, elements = 0;
  RecipeCode recipe = 0;
  octile_dtype type{};
  Place place;
  WeightCodes codes;
};

std::atomic<std::int64_t> epoch{0}, quantizations{0};

struct Registry {
  std::mutex mutex;
  std::int64_t last_token = 0;
  std::unordered_map<const void*, std::shared_ptr<Kept>> by_address;
};
// Never destroyed: at exit tensors may outlive what frees them.
Registry& registry() {
  static auto* made = new Registry;
  return *made;
}

Output wanted(bool rowwise, bool transposed) {
  if (rowwise && transposed) return Output::kBoth;
  return rowwise ? Output::kRowwise : Output::kTransposed;
}

WeightCodes make(const Tensor& weight, const Place& place, RecipeCode recipe, bool rowwise,
                 bool transposed) {
  const std::int64_t n = weight.size(0), k = weight.size(1);
  octile_plan* plan = quantizer(recipe, Role::kWeight, wanted(rowwise, transposed),
                                element_type(weight, "weight"), k, false, false, place);
  const auto copy = [&](bool flip) {
    return allocate(plan, place, n, 0, flip, codes_of(recipe, Role::kWeight), scale_type(recipe),
                    ScaleShape::kFlat);
  };
  WeightCodes codes;
  if (rowwise) codes.rowwise = copy(false);
  if (transposed) codes.transposed = copy(true);
  quantize(plan, place, {.rows = n, .x = weight.data_ptr()},
           {.rowwise = rowwise ? &*codes.rowwise : nullptr,
            .transposed = transposed ? &*codes.transposed : nullptr});
  ++quantizations;
  return codes;
}

bool is_current(const Kept& kept, const Tensor& weight, const Place& place, RecipeCode recipe) {
  return kept.memory && kept.memory->data_ptr() == weight.data_ptr() && kept.place == place &&
         kept.recipe == recipe && kept.epoch == epoch.load() && kept.elements == weight.numel() &&
         kept.type == element_type(weight, "weight") && kept.version == version_of(weight);
}

// Makes the copies that are asked for and missing.
void refresh(Kept& kept, const Tensor& weight, const Place& place, RecipeCode recipe, bool rowwise,
             bool transposed) {
  if (!is_current(kept, weight, place, recipe)) {
    kept.codes = {};
    kept.memory = alias(weight);
    kept.version = version_of(weight);
    kept.epoch = epoch.load();
    kept.elements = weight.numel();
    kept.recipe = recipe;
    kept.type = element_type(weight, "weight");
    kept.place = place;
  }
  const bool make_rowwise = rowwise && !kept.codes.rowwise;
  const bool make_transposed = transposed && !kept.codes.transposed;
  if (!make_rowwise && !make_transposed) return;
  WeightCodes made = make(weight, place, recipe, make_rowwise, make_transposed);
  if (made.rowwise) kept.codes.rowwise = std::move(made.rowwise);
  if (made.transposed) kept.codes.transposed = std::move(made.transposed);
}

}  // namespace

WeightCodes weight_codes(const Tensor& weight, const Place& place, RecipeCode recipe, bool rowwise,
                         bool transposed) {
  if (!is_capturing(place)) {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    const auto found = all.by_address.find(weight.data_ptr());
    if (found != all.by_address.end()) {
      refresh(*found->second, weight, place, recipe, rowwise, transposed);
      return found->second->codes;
    }
  }
  // Nobody would find the other copy again.
  return make(weight, place, recipe, rowwise, transposed && !rowwise);
}

std::int64_t keep_weight(Tensor weight) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  auto kept = std::make_shared<Kept>();
  kept->token = ++all.last_token;
  all.by_address[weight.data_ptr()] = kept;
  return kept->token;
}

void forget_weight(std::int64_t token) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.by_address, [&](const auto& entry) { return entry.second->token == token; });
}

void weights_changed() { ++epoch; }
std::int64_t weight_quantizations() { return quantizations.load(); }

}  // namespace octile::binding
