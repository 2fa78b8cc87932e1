#include "weight_copy.h"

#include <cstdint>
#include <utility>

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
    : owner_(place),
      bytes_(empty(place, {scales_begin(layout) + layout.scale_bytes}, torch_uint8())),
      parts_{bytes_.data_ptr(), static_cast<char*>(bytes_.data_ptr()) + scales_begin(layout)} {}

WeightCopy::~WeightCopy() {
  if (uses_.empty()) return;
  try {
    const OnDevice device(owner_);
    for (const auto& [stream, use] : uses_) use.before(owner_);
  } catch (...) {  // A driver that refuses to wait has failed, and nothing that it runs counts.
  }
}

bool WeightCopy::is_whole() { return std::unique_lock(mutex_, std::try_to_lock).owns_lock(); }

void WeightCopy::made_at(const Place& place, std::shared_ptr<const StreamPoint> point) {
  const std::lock_guard lock(mutex_);
  made_ = std::move(point);
  made_stream_ = place.stream;
}

void WeightCopy::before_write(const Place& place) {
  const std::lock_guard lock(mutex_);
  if (made_ && made_stream_ != place.stream) made_->before(place);
  for (const auto& [stream, use] : uses_) {
    if (stream != place.stream) use.before(place);
  }
}

void WeightCopy::before(const Place& place) {
  const std::lock_guard lock(mutex_);
  if (made_ && made_stream_ != place.stream) made_->before(place);
}

void WeightCopy::used_on(const Place& place) {
  if (place.host || place.stream == owner_.stream || capture_of(place) != 0) return;
  const std::lock_guard lock(mutex_);
  uses_.insert_or_assign(place.stream, StreamPoint(place));
}

}  // namespace octile::binding
