#include "weights.h"

#include <atomic>
#include <mutex>
#include <unordered_map>

namespace octile::binding {
namespace {

// What the copies of a kept weight were made from. `memory` keeps the weight's memory alive, so
// that no other tensor can have the address.
struct Kept {
  std::int64_t token = 0;
  std::optional<Tensor> memory;
  std::int64_t version = 0, epoch = 0, elements = 0, k = 0;
  RecipeCode recipe = 0;
  octile_dtype type{};
  Place place;
  std::uint64_t capture = 0;  // in which the copies were made
  WeightCodes codes;
};

std::atomic<std::int64_t> epoch{0}, quantizations{0};

struct Registry {
  std::mutex mutex;
  std::int64_t last_token = 0;
  std::unordered_map<const void*, Kept> by_address;
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

// The copies of `experts` weights lie one behind the other, each as one of a single weight.
Quantized allocate_copies(octile_plan* plan, const Place& place, RecipeCode recipe, bool transposed,
                          std::int64_t experts, std::int64_t n) {
  Quantized one = allocate(plan, place, n, 0, transposed, codes_of(recipe, Role::kWeight),
                           scale_type(recipe), ScaleShape::kFlat);
  if (experts == 1) return one;
  std::int32_t scales = 0;
  aoti_torch_get_dtype(one.scales.get(), &scales);
  return {.codes = empty(place, {experts * one.codes.size(0), one.codes.size(1)},
                         torch_type(codes_of(recipe, Role::kWeight))),
          .scales = empty(place, {experts * one.scales.size(0)}, scales)};
}

// Where expert `index` of `experts` has its part of a copy.
Target part_of(const std::optional<Quantized>& copy, std::int64_t index, std::int64_t experts) {
  if (!copy) return {};
  Target target = target_of(*copy);
  const auto step = [&](const Tensor& tensor) {
    return index * (tensor.numel() / experts) * static_cast<std::int64_t>(tensor.element_size());
  };
  target.codes = static_cast<char*>(target.codes) + step(copy->codes);
  target.scales = static_cast<char*>(target.scales) + step(copy->scales);
  return target;
}

WeightCodes make(const Tensor& weight, const Place& place, RecipeCode recipe, bool rowwise,
                 bool transposed, const Scaling& scaling) {
  const std::int64_t experts = weight.dim() == 3 ? weight.size(0) : 1;
  const std::int64_t n = weight.size(weight.dim() - 2), k = weight.size(weight.dim() - 1);
  octile_plan* plan = quantizer(recipe, Role::kWeight, wanted(rowwise, transposed),
                                element_type(weight, "weight"), k, false, false, place);
  WeightCodes codes;
  if (rowwise) codes.rowwise = allocate_copies(plan, place, recipe, false, experts, n);
  if (transposed) codes.transposed = allocate_copies(plan, place, recipe, true, experts, n);
  const auto* x = static_cast<const char*>(weight.data_ptr());
  for (std::int64_t i = 0; i < experts; ++i) {
    quantize(plan, place,
             {.rows = n,
              .x = x + i * n * k * static_cast<std::int64_t>(weight.element_size()),
              .encode_scale = scaling.encode,
              .amax = scaling.amax},
             {.rowwise = part_of(codes.rowwise, i, experts),
              .transposed = part_of(codes.transposed, i, experts)});
  }
  ++quantizations;
  return codes;
}

bool is_current(const Kept& kept, const Tensor& weight, const Place& place, RecipeCode recipe) {
  return kept.memory && kept.memory->data_ptr() == weight.data_ptr() && kept.place == place &&
         kept.capture == capture_of(place) && kept.recipe == recipe && kept.epoch == epoch.load() &&
         kept.elements == weight.numel() && kept.k == weight.size(weight.dim() - 1) &&
         kept.type == element_type(weight, "weight") && kept.version == version_of(weight);
}

// Makes the copies that are asked for and missing.
void refresh(Kept& kept, const Tensor& weight, const Place& place, RecipeCode recipe, bool rowwise,
             bool transposed, const Scaling& scaling) {
  if (!is_current(kept, weight, place, recipe)) {
    kept.codes = {};
    kept.memory = alias(weight);
    kept.version = version_of(weight);
    kept.epoch = epoch.load();
    kept.elements = weight.numel();
    kept.k = weight.size(weight.dim() - 1);
    kept.recipe = recipe;
    kept.type = element_type(weight, "weight");
    kept.place = place;
    kept.capture = capture_of(place);
  }
  const bool make_rowwise = rowwise && !kept.codes.rowwise;
  const bool make_transposed = transposed && !kept.codes.transposed;
  if (!make_rowwise && !make_transposed) return;
  WeightCodes made = make(weight, place, recipe, make_rowwise, make_transposed, scaling);
  if (made.rowwise) kept.codes.rowwise = std::move(made.rowwise);
  if (made.transposed) kept.codes.transposed = std::move(made.transposed);
}

}  // namespace

WeightCodes weight_codes(const Tensor& weight, const Place& place, RecipeCode recipe, bool rowwise,
                         bool transposed, const Scaling& scaling) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_address.find(weight.data_ptr());
  if (found == all.by_address.end()) {
    // Nobody would find the other copy again.
    return make(weight, place, recipe, rowwise, transposed && !rowwise, scaling);
  }
  refresh(found->second, weight, place, recipe, rowwise, transposed, scaling);
  return found->second.codes;
}

std::int64_t keep_weight(Tensor weight) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  Kept& kept = all.by_address[weight.data_ptr()];
  kept = {};
  return kept.token = ++all.last_token;
}

void forget_weight(std::int64_t token) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.by_address, [&](const auto& entry) { return entry.second.token == token; });
}

void weights_changed() { ++epoch; }
std::int64_t weight_quantizations() { return quantizations.load(); }

}  // namespace octile::binding
