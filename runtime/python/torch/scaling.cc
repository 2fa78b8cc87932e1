#include "scaling.h"

#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "fork.h"
#include "plans.h"
#include "streams.h"

namespace octile::binding {
namespace {

constexpr std::int64_t kOperands = 3;  // X, W and dY; X and W share a format
constexpr std::int64_t kShared = 2;

// A state in parts.
struct State {
  float* encode;
  float* shared_history;    // [length][2][experts]
  float* gradient_history;  // [length][experts]
  std::int64_t length;
};

State parts_of(const Tensor& state, std::int64_t experts) {
  const std::int64_t elements = state.numel();
  if (experts < 1 || experts > elements) {
    refuse("experts is " + std::to_string(experts) + "; allowed are 1 to the " +
           std::to_string(elements) + " elements of scaling");
  }
  const std::int64_t scales = kOperands * experts;
  if (type_of(state) != torch_type(OCTILE_FP32) || !state.is_contiguous() ||
      elements % scales != 0 || elements < 2 * scales) {
    refuse("scaling has " + std::to_string(elements) +
           " elements; allowed are contiguous float32 [" +
           (experts == 1 ? "3 + 3 * history]"
                         : "(3 + 3 * history) * " + std::to_string(experts) + "]"));
  }
  const std::int64_t length = elements / scales - 1;
  auto* values = static_cast<float*>(state.data_ptr());
  return {.encode = values,
          .shared_history = values + scales,
          .gradient_history = values + scales + kShared * experts * length,
          .length = length};
}

// Which states have maxima that no scale was made from yet, by address.
struct Records {
  struct Entry {
    bool recorded = false;
    // Into a graph, whose replays record without being seen; unless a graph also ends their steps.
    bool captured = false;
  };
  std::unordered_map<const void*, Entry> by_address;
};
// Guarded by ProcessWide::kMaxima, and never destroyed.
Records& records = *new Records;

void note_record(const Tensor& state, const Place& place) {
  const bool captured = capture_of(place) != 0;
  const std::scoped_lock lock(process_mutex(ProcessWide::kMaxima));
  Records::Entry& entry = records.by_address[state.data_ptr()];
  entry.recorded = true;
  entry.captured = entry.captured || captured;
}

// Notes that a graph ends the steps that graphs record.
void note_captured_update(const Tensor& state) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kMaxima));
  records.by_address[state.data_ptr()].captured = false;
}

}  // namespace

bool maxima_recorded(Tensor state) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kMaxima));
  const auto found = records.by_address.find(state.data_ptr());
  if (found == records.by_address.end()) return false;
  const bool due = found->second.recorded || found->second.captured;
  found->second.recorded = false;
  return due;
}

void forget_maxima(std::int64_t address) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kMaxima));
  records.by_address.erase(reinterpret_cast<const void*>(address));
}

namespace {

// The kernel that updates scales depends on the format alone, so the smallest plan will do.
octile_plan* plan_of_update(RecipeCode recipe, Role role, const Place& place) {
  return quantizer(recipe, role, Output::kRowwise, OCTILE_BF16, kMultiple, false, false, place);
}

}  // namespace

Scaling scaling_of(const std::optional<Tensor>& state, RecipeCode recipe, Role role, bool record,
                   const Place& place, std::int64_t experts) {
  if (!state) {
    if (is_delayed(recipe)) refuse("scaling is absent; with the recipe 'delayed' it is needed");
    return {};
  }
  if (!has_tensor_scales(recipe)) {
    refuse("scaling is given; allowed with the recipes 'delayed' and 'tensorwise'");
  }
  check_same_place(*state, place, "scaling");
  const State parts = parts_of(*state, experts);
  // Weights are quantised when they are needed, by passes that train or not: no step is due for
  // them.
  if (record && role != Role::kWeight) note_record(*state, place);
  float* const row = role == Role::kGradient
                         ? parts.gradient_history
                         : parts.shared_history + (role == Role::kWeight ? experts : 0);
  return {.encode = is_delayed(recipe) ? parts.encode + experts * static_cast<int>(role) : nullptr,
          .amax = record ? row : nullptr};
}

bool update_scales(Tensor state, std::int64_t experts, std::int64_t recipe, std::int64_t choice,
                   std::int64_t margin, bool always) {
  check_recipe(recipe);
  if (!is_delayed(recipe)) refuse("recipe has no scales to update; allowed is 'delayed'");
  const Place place = place_of(state);
  const OnDevice device(place);
  const State parts = parts_of(state, experts);
  if (!maxima_recorded(state) && !always) return false;
  octile_scale_update_args args{};
  args.length = parts.length;
  if (choice != OCTILE_AMAX_LARGEST && choice != OCTILE_AMAX_LATEST) {
    refuse("choice is " + std::to_string(choice) +
           "; allowed are 0, the largest, and 1, the latest");
  }
  if (margin < -126 || margin > 126) {
    refuse("margin is " + std::to_string(margin) + "; allowed are -126 to 126");
  }
  args.choice = static_cast<octile_amax_choice>(choice);
  args.margin = static_cast<std::int32_t>(margin);
  args.history = parts.shared_history;
  args.encode_scale = parts.encode;
  args.tensors = kShared * experts;
  run_scale_update(plan_of_update(recipe, Role::kActivation, place), place, args);
  args.history = parts.gradient_history;
  args.encode_scale = parts.encode + kShared * experts;
  args.tensors = (kOperands - kShared) * experts;
  run_scale_update(plan_of_update(recipe, Role::kGradient, place), place, args);
  if (capture_of(place) != 0) note_captured_update(state);
  return true;
}

void prepare_scale_update(RecipeCode recipe, const Place& place) {
  for (const Role role : {Role::kActivation, Role::kGradient}) {
    prepare(plan_of_update(recipe, role, place), 1, 1);
  }
}

}  // namespace octile::binding
