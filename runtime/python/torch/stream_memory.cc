#include "stream_memory.h"

#include <utility>

namespace octile::binding {

StreamMemory::StreamMemory(const Place& place, std::int64_t bytes)
    : owner_(place), bytes_(empty(place, {bytes}, torch_uint8())) {}

StreamMemory::~StreamMemory() {
  if (uses_.empty()) return;
  try {
    const OnDevice device(owner_);
    for (const auto& [stream, use] : uses_) use.before(owner_);
  } catch (...) {  // A driver that refuses to wait has failed, and nothing that it runs counts.
  }
}

bool StreamMemory::is_whole() { return std::unique_lock(mutex_, std::try_to_lock).owns_lock(); }

void StreamMemory::made_at(const Place& place, std::shared_ptr<const StreamPoint> point) {
  const std::lock_guard lock(mutex_);
  made_ = std::move(point);
  made_stream_ = place.stream;
}

void StreamMemory::before_write(const Place& place) {
  const std::lock_guard lock(mutex_);
  if (made_ && made_stream_ != place.stream) made_->before(place);
  for (const auto& [stream, use] : uses_) {
    if (stream != place.stream) use.before(place);
  }
}

void StreamMemory::before(const Place& place) {
  const std::lock_guard lock(mutex_);
  if (made_ && made_stream_ != place.stream) made_->before(place);
}

void StreamMemory::used_on(const Place& place) {
  if (place.host || place.stream == owner_.stream || capture_of(place) != 0) return;
  const std::lock_guard lock(mutex_);
  uses_.insert_or_assign(place.stream, StreamPoint(place));
}

}  // namespace octile::binding
