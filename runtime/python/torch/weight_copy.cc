#include "weight_copy.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "plans.h"

namespace octile::binding {
namespace {

constexpr std::int64_t kAlign = 128;  // a line of L2

std::int64_t scales_begin(const octile_quantized_layout& layout) {
  return (layout.data_bytes + kAlign - 1) / kAlign * kAlign;
}

octile_quantized_layout layout_of(octile_layer* layer, bool transposed) {
  octile_quantized_layout layout{};
  layout.struct_size = sizeof layout;
  check(octile_layer_copy_layout(layer, OCTILE_LAYER_W, transposed ? 1 : 0, 0, &layout));
  return layout;
}

}  // namespace

WeightCopy::WeightCopy(octile_layer* layer, const Place& place, bool transposed)
    : WeightCopy(layout_of(layer, transposed), place) {}

WeightCopy::WeightCopy(const octile_quantized_layout& layout, const Place& place)
    : StreamMemory(place, scales_begin(layout) + layout.scale_bytes),
      parts_{data(), static_cast<char*>(data()) + scales_begin(layout)} {}

Fingerprints::Fingerprints(const Place& place, std::int64_t experts)
    : StreamMemory(place, experts * static_cast<std::int64_t>(sizeof(octile_fingerprint))),
      place_(place),
      experts_(experts) {
  fill_zero();
  if (!place.host) made_at(place, std::make_shared<const StreamPoint>(place));
}

bool Fingerprints::host_has_changed() const {
  const std::span all(first(), static_cast<std::size_t>(experts_));
  return std::ranges::any_of(all, [](const octile_fingerprint& one) { return one.unchanged == 0; });
}

std::int64_t Fingerprints::changes() const {
  std::vector<octile_fingerprint> all(static_cast<std::size_t>(experts_));
  const OnDevice device(place_);
  read_memory(place_, all.data(), data(), all.size() * sizeof(octile_fingerprint));
  std::uint32_t most = 0;
  for (const octile_fingerprint& one : all) most = std::max(most, one.changes);
  return most;
}

}  // namespace octile::binding
