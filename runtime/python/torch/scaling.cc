#include "scaling.h"

#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "fork.h"
#include "kept_weight.h"
#include "layer_handles.h"
#include "streams.h"

namespace octile::binding {
namespace {

constexpr std::int64_t kTensors = 2;  // X and dY

// Returns the steps that a state of this number of elements remembers.
std::int64_t history_of(const Tensor& state, std::int64_t elements, bool is_dense,
                        std::int64_t experts) {
  if (experts < 1 || experts > elements) {
    refuse("experts is " + std::to_string(experts) + "; allowed are 1 to the " +
           std::to_string(elements) + " elements of scaling");
  }
  const std::int64_t scales = kTensors * experts;
  if (type_of(state) != torch_type(OCTILE_FP32) || !is_dense || elements % scales != 0 ||
      elements < 2 * scales) {
    refuse("scaling has " + std::to_string(elements) +
           " elements; allowed are contiguous float32 [" +
           (experts == 1 ? "2 + 2 * history]"
                         : "(2 + 2 * history) * " + std::to_string(experts) + "]"));
  }
  return elements / scales - 1;
}

// The contents of a weight, as far as the host can tell.
struct Contents {
  const void* address = nullptr;
  std::int64_t version = -1, epoch = -1;

  friend bool operator==(const Contents&, const Contents&) = default;
};
Contents contents_of(const Tensor& weight) {
  return {weight.data_ptr(), version_of(weight), epoch_of_all_weights()};
}

// The known states, by address.
struct Records {
  struct Entry {
    bool recorded = false;  // maxima that no scale was made from yet
    // Into a graph, whose replays record without being seen; unless a graph also ends their steps.
    bool captured = false;
    std::optional<Contents> belongs;  // nullopt: to those of the next call
    bool seen = true;
    bool old = false;
  };
  std::unordered_map<const void*, Entry> by_address;
};
// Guarded by ProcessWide::kMaxima, and never destroyed.
Records& records = *new Records;

// Notes that a graph ends the steps that graphs record.
void note_captured_update(const void* state) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kMaxima));
  records.by_address[state].captured = false;
}

}  // namespace

RecipeCode recipe_of_call(RecipeCode recipe, const Scaling& scaling, const Tensor& weight,
                          const Place& place) {
  if (scaling.state == nullptr) return recipe;
  bool old = false;
  {
    const std::scoped_lock lock(process_mutex(ProcessWide::kMaxima));
    Records::Entry& entry = records.by_address[scaling.state];
    if (entry.seen) {
      const Contents now = contents_of(weight);
      if (!entry.belongs) entry.belongs = now;
      entry.old = entry.old || now != *entry.belongs;
    }
    old = entry.old;
  }
  if (!old || !is_delayed(recipe)) return recipe;
  if (capture_of(place) != 0) {
    throw std::runtime_error(
        "octile: a layer of recipe 'delayed' was captured into a CUDA graph after its weight was "
        "written; capture it after the warm-up that follows");
  }
  return without_delay(recipe);
}

void scales_belong(Tensor state, std::optional<Tensor> weight, bool seen) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kMaxima));
  Records::Entry& entry = records.by_address[state.data_ptr()];
  entry.belongs.reset();
  if (weight) entry.belongs = contents_of(*weight);
  entry.seen = seen;
}

void scales_are_old(Tensor state) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kMaxima));
  records.by_address[state.data_ptr()].old = true;
}

bool scales_were_old(Tensor state) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kMaxima));
  return std::exchange(records.by_address[state.data_ptr()].old, false);
}

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

void note_record(const Scaling& scaling, const Place& place) {
  if (scaling.state == nullptr) return;
  const bool captured = capture_of(place) != 0;
  const std::scoped_lock lock(process_mutex(ProcessWide::kMaxima));
  Records::Entry& entry = records.by_address[scaling.state];
  entry.recorded = true;
  entry.captured = entry.captured || captured;
}

Scaling scaling_of(const std::optional<Tensor>& state, RecipeCode recipe, std::int64_t experts,
                   const Place& place) {
  if (!state) {
    if (is_delayed(recipe)) refuse("scaling is absent; with the recipe 'delayed' it is needed");
    return {};
  }
  if (!has_tensor_scales(recipe)) {
    refuse("scaling is given; allowed with the recipes 'delayed' and 'tensorwise'");
  }
  check_same_place(*state, place, "scaling");
  return {.state = static_cast<float*>(state->data_ptr()),
          .history = history_of(*state, state->numel(), state->is_contiguous(),
                                experts == 0 ? 1 : experts)};
}

namespace {

constexpr std::uint32_t kUpdates =
    OCTILE_LAYER_KEEP_X | OCTILE_LAYER_WITHOUT_FORWARD | OCTILE_LAYER_WITHOUT_BACKWARD;

// The update depends on the recipe, the number of scales and the history alone, so the smallest
// layer will do.
Layer& layer_of_update(RecipeCode recipe, std::int64_t experts, std::int64_t history,
                       const Place& place) {
  return Layer::of({.recipe = recipe,
                    .n = kMultiple,
                    .k = kMultiple,
                    .experts = experts == 1 ? 0 : experts,
                    .type = OCTILE_BF16,
                    .history = history,
                    .device = device_of(place)});
}

}  // namespace

void update_scales(Tensor states, std::int64_t experts, std::int64_t recipe, std::int64_t choice,
                   std::int64_t margin) {
  check_recipe(recipe);
  if (!is_delayed(recipe)) refuse("recipe has no scales to update; allowed is 'delayed'");
  if (states.dim() != 2) {
    refuse("states has " + std::to_string(states.dim()) + " dimensions; allowed are 2");
  }
  const Place place = place_of(states);
  const OnDevice device(place);
  const std::int64_t count = states.size(0), elements = states.size(1), stride = states.stride(0);
  const std::int64_t history = history_of(states, elements, states.stride(1) == 1, experts);
  if (choice != OCTILE_AMAX_LARGEST && choice != OCTILE_AMAX_LATEST) {
    refuse("choice is " + std::to_string(choice) +
           "; allowed are 0, the largest, and 1, the latest");
  }
  if (margin < -126 || margin > 126) {
    refuse("margin is " + std::to_string(margin) + "; allowed are -126 to 126");
  }
  if (count == 0) return;
  auto* const first = static_cast<float*>(states.data_ptr());
  octile_layer_update_args args{};
  args.struct_size = sizeof args;
  args.scaling = first;
  args.states = count;
  args.stride = count == 1 ? 0 : stride;
  args.choice = static_cast<octile_amax_choice>(choice);
  args.margin = static_cast<std::int32_t>(margin);
  layer_of_update(recipe, experts, history, place).run(1, kUpdates, [&](octile_layer* handle) {
    return octile_layer_update_scales(handle, &args, place.stream);
  });
  if (capture_of(place) == 0) return;
  for (std::int64_t i = 0; i < count; ++i) note_captured_update(first + i * stride);
}

void prepare_scale_update(RecipeCode recipe, std::int64_t experts, std::int64_t history,
                          const Place& place) {
  layer_of_update(recipe, experts, history, place).prepare(1, 1, kUpdates);
}

}  // namespace octile::binding
