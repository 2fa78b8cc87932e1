#include "replay_words.h"

#include <cstddef>
#include <mutex>
#include <unordered_map>

#include "fork.h"
#include "streams.h"

namespace octile::binding {
namespace {

constexpr std::size_t kWeights = 16384, kStride = 4;

struct DeviceWords {
  Tensor memory;
  std::size_t taken = 0;  // weights
};

// By device. Guarded by ProcessWide::kReplayWords, and never destroyed: at exit graphs may still be
// replayed.
std::unordered_map<std::int32_t, DeviceWords>& words =
    *new std::unordered_map<std::int32_t, DeviceWords>;

std::uint32_t* first_of(const DeviceWords& device) {
  return static_cast<std::uint32_t*>(device.memory.data_ptr());
}

}  // namespace

void reserve_replay_words(const Place& place) {
  if (place.host || capture_of(place) != 0) return;
  {
    const std::scoped_lock lock(process_mutex(ProcessWide::kReplayWords));
    if (words.contains(place.device_index)) return;
  }
  const OnDevice device(place);
  Tensor memory = empty(place, {static_cast<std::int64_t>(kWeights * kStride * 4)}, torch_uint8());
  fill_zero(memory);
  // Another thread may have been faster; its words stay.
  const std::scoped_lock lock(process_mutex(ProcessWide::kReplayWords));
  words.emplace(place.device_index, DeviceWords{.memory = std::move(memory)});
}

std::uint32_t* take_replay_words(const Place& place) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kReplayWords));
  const auto found = words.find(place.device_index);
  if (place.host || found == words.end() || found->second.taken == kWeights) return nullptr;
  return first_of(found->second) + kStride * found->second.taken++;
}

bool clear_replay_words() {
  const std::scoped_lock lock(process_mutex(ProcessWide::kReplayWords));
  bool captured = false;
  for (const auto& [index, device] : words) {
    const Place place = place_of(device.memory);
    const bool capturing = capture_of(place) != 0;
    captured = captured || capturing;
    // A captured step may be replayed beside graphs that are captured later.
    if (device.taken == 0 && !capturing) continue;
    const OnDevice current(place);
    fill_words(place, first_of(device), 0, kWeights * kStride);
  }
  return captured;
}

}  // namespace octile::binding
