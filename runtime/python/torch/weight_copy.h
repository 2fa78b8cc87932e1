// One FP8 copy of a weight: its memory, and which streams have used it.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_WEIGHT_COPY_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_WEIGHT_COPY_H_

#include <memory>
#include <mutex>
#include <unordered_map>

#include "octile/layers.h"
#include "streams.h"
#include "tensors.h"

namespace octile::binding {

// A copy's memory belongs to the stream that allocated it, as PyTorch's allocator sees it. Other
// streams wait until it is made, and the memory is given back when they have used it. A copy may be
// made again in the same memory, by work that runs behind the last use as a write of the weight
// does.
class WeightCopy {
 public:
  // Allocates a copy of the layer's weight on the stream of `place`.
  WeightCopy(octile_layer* layer, const Place& place, bool transposed);
  ~WeightCopy();
  WeightCopy(const WeightCopy&) = delete;
  WeightCopy& operator=(const WeightCopy&) = delete;

  const octile_layer_copy& memory() const { return parts_; }

  // In the child of a fork, where no other thread is: returns whether none was in a call of this.
  bool is_whole();

  // The copy is made where the stream of `place` has come to `point`.
  void made_at(const Place& place, std::shared_ptr<const StreamPoint> point);
  // Lets the stream of `place` wait until other streams have used the copy, to make it again.
  void before_write(const Place& place);
  // Lets the stream of `place` wait until the copy is made.
  void before(const Place& place);
  // The stream of `place` has enqueued its last use for now.
  void used_on(const Place& place);

 private:
  WeightCopy(const octile_quantized_layout& layout, const Place& place);

  Place owner_;
  Tensor bytes_;
  octile_layer_copy parts_;  // of the bytes
  std::mutex mutex_;
  std::shared_ptr<const StreamPoint> made_;
  void* made_stream_ = nullptr;
  std::unordered_map<void*, StreamPoint> uses_;  // the last of each other stream
};

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_WEIGHT_COPY_H_
