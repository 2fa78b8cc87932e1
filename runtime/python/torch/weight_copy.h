// The copies of a weight: FP8 copies, and a fingerprint of the contents that they were made from.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_WEIGHT_COPY_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_WEIGHT_COPY_H_

#include <cstdint>

#include "octile/layers.h"
#include "stream_memory.h"

namespace octile::binding {

// A copy of W, or of W^T.
class WeightCopy : public StreamMemory {
 public:
  // Allocates a copy of the layer's weight on the stream of `place`.
  WeightCopy(octile_layer* layer, const Place& place, bool transposed);

  const octile_layer_copy& parts() const { return parts_; }

 private:
  WeightCopy(const octile_quantized_layout& layout, const Place& place);

  octile_layer_copy parts_;
};

// By which calls see on the device if W has changed: an octile_fingerprint of each expert.
class Fingerprints : public StreamMemory {
 public:
  // Allocates them on the stream of `place`, which then knows of no contents. The stream is not
  // captured.
  Fingerprints(const Place& place, std::int64_t experts);

  std::int64_t experts() const { return experts_; }
  bool on_host() const { return place_.host; }
  octile_fingerprint* first() const { return static_cast<octile_fingerprint*>(data()); }

  // Returns how many calls have quantised W, or an expert of it. Waits for the device.
  std::int64_t changes() const;
  // On the host: returns whether the last call has.
  bool host_has_changed() const;

 private:
  Place place_;
  std::int64_t experts_;
};

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_WEIGHT_COPY_H_
