// FP8 copies of weights. A weight that is kept (keep_weight) is quantised once for all calls
// between two changes of its contents, and so are the weights that FSDP2 gathers (gather_weight) if
// it does not free them between forward and backward; every other weight is quantised by each call.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_WEIGHTS_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "recipes.h"
#include "scaling.h"
#include "tensors.h"
#include "weight_copy.h"

namespace octile::binding {

// Copies for the work that a call enqueues on its stream. The call destroys this behind that work.
class WeightCodes {
 public:
  WeightCodes(const Place& place, std::shared_ptr<WeightCopy> rowwise,
              std::shared_ptr<WeightCopy> transposed);
  ~WeightCodes();
  WeightCodes(const WeightCodes&) = delete;
  WeightCodes& operator=(const WeightCodes&) = delete;

  // Return the copy of W [n, k], which the forward pass reads, and that of W^T [k, n], which input
  // gradients read. Each throws std::logic_error if it was not asked for.
  const Quantized& rowwise() const { return present(rowwise_); }
  const Quantized& transposed() const { return present(transposed_); }

 private:
  static const Quantized& present(const std::shared_ptr<WeightCopy>& copy);

  Place place_;
  std::shared_ptr<WeightCopy> rowwise_, transposed_;
};

// Returns W in FP8, with those copies at least that are asked for. W is contiguous [n, k], or
// [experts, n, k]: then the copies of all experts lie one behind the other. Any threads may call,
// on any streams.
//
// Copies of a kept weight are used again if nothing suggests that W has changed: its address, the
// version that PyTorch counts at every write in place, and weights_changed(). They stay where they
// are as long as the weight is kept, outside every memory pool of a CUDA graph. A capture makes
// them again, so that every replay quantises W once, unless replays share (share_weights).
// `scaling` is used whenever W is quantised.
WeightCodes weight_codes(const Tensor& weight, const Place& place, RecipeCode recipe, bool rowwise,
                         bool transposed, const Scaling& scaling = {});

// Keeps the copies of this weight, until forget_weight() of the token returned.
std::int64_t keep_weight(Tensor weight);
// Frees the copies of a weight that was kept or gathered.
void forget_weight(std::int64_t token);

// FSDP2 has gathered `weight` into new memory, where PyTorch counts no write. token: 0, or what
// this returned when the weight was gathered before. same: the contents are those of that time.
// Returns the token for release_weight() and forget_weight().
//
// What came before decides what is kept. If the weight was freed between the forward and the
// backward pass of a call, each pass makes the copy that it needs itself, and keeps none: to keep
// them would keep the whole model in FP8. Otherwise forward makes both copies for both passes. They
// stay when the weight is freed after backward, until it is gathered with other contents, unless a
// forward pass without a backward one has ever been followed by the weight's being freed.
std::int64_t gather_weight(Tensor weight, std::int64_t token, bool same);
// FSDP2 is about to free the memory of the gathered weight.
void release_weight(Tensor weight, std::int64_t token);

enum class Pass : std::uint8_t { kForward, kBackward };
// A call with gradients has come to this pass. Tells gathered weights whether they last from one to
// the other.
void note_pass(const Tensor& weight, Pass pass);

// All copies are out of date, also those whose weight was written where PyTorch does not count it.
// Replays that share learn of it by work on the current stream of every device: if that stream is
// captured, by each replay of it.
void weights_changed();

// While the number of share_weights(true) is above that of share_weights(false), kept weights are
// captured so that replays share their copies with each other and with calls outside: a replay
// quantises W if nothing did since the last weights_changed().
void share_weights(bool begin);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_WEIGHTS_H_
