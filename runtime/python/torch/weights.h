// FP8 copies of weights. A weight that is kept (keep_weight) is quantised once for all calls
// between two changes of its contents, and so are the weights that FSDP2 gathers (gather_weight) if
// it does not free them between forward and backward; every other weight is quantised by each call.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_WEIGHTS_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "kept_weight.h"

namespace octile::binding {

// W as one call of a layer reads it. The call is made between the constructor and made(), and this
// is destroyed behind it. Any threads may do so, on any streams.
//
// Copies of a kept weight are used again as KeptWeight says. Those that are to be made are made by
// the call, from one read; another thread that wants them waits until it has been made. They stay
// where they are as long as the weight is kept, outside every memory pool of a CUDA graph. For
// other weights the call makes the copy that it reads in its workspace.
class WeightUse {
 public:
  explicit WeightUse(const WeightCall& call);
  ~WeightUse();
  WeightUse(const WeightUse&) = delete;
  WeightUse& operator=(const WeightUse&) = delete;

  const octile_layer_operand* operand() const { return &use_.operand; }
  // Returns the octile_layer_use bits of a forward or a backward pass that say how W is quantised.
  std::uint32_t forward_uses() const;
  std::uint32_t backward_uses() const;
  // Returns those that say whose memory W's copies are in.
  std::uint32_t memory_uses() const;

  // The call has enqueued its work.
  void made();

 private:
  void read_from_now_on();

  Place place_;
  std::shared_ptr<KeptWeight> kept_;
  // Locks of kept_. Copies are not made again before the calls that read them have enqueued their
  // work, or on the host have done it.
  std::unique_lock<SharedLock> making_lock_;
  std::shared_lock<SharedLock> reading_lock_;
  KeptWeight::Use use_;
};

// Return how many times a weight was quantised in this process, and how many copies that made.
// Results of comparisons on CUDA devices count for weights that are kept now, and make no copies
// here. The first waits for these devices.
std::int64_t weight_quantizations();
std::int64_t weight_copies_made();

// Keeps the copies of this weight, until forget_weight() of the token returned.
std::int64_t keep_weight(Tensor weight);
// Frees the copies of a weight that was kept or gathered, if no other token of it is left.
void forget_weight(std::int64_t token);
// All writes of this weight are seen by the host from now on: those that PyTorch counts, and those
// that weight_changed() and weights_changed() tell of.
void trust_weight(std::int64_t token, bool trusted);

// Says which copies of this weight outlast a forward pass with gradients, by the number of a
// Keeping.
void keep_copies(std::int64_t token, std::int64_t keeping);

// FSDP2 has gathered `weight` into new memory, where PyTorch counts no write. token: 0, or what
// this returned when the weight was gathered before. same: the contents are those of that time.
// Returns the token for release_weight() and forget_weight().
//
// Earlier calls decide which copies are kept. If the weight was freed between the forward and the
// backward pass of a call, each pass makes the copy that it needs itself, and keeps none: to keep
// them would keep the whole model in FP8. Otherwise forward makes both copies for both passes. They
// stay when the weight is freed after backward, until it is gathered with other contents, unless a
// forward pass without a backward one has ever been followed by the weight's being freed.
std::int64_t gather_weight(Tensor weight, std::int64_t token, bool same);
// FSDP2 is about to free the memory of the gathered weight.
void release_weight(Tensor weight, std::int64_t token);

// A call with gradients has come to this pass. Tells gathered weights whether they last from one to
// the other.
void note_pass(const Tensor& weight, Pass pass);

// One weight was written where PyTorch does not count it. Replays learn of it by
// replays_see_changes().
void weight_changed(std::int64_t token);
// All were. Replays of trusted weights learn of it by work on the current stream of every device:
// if that stream is captured, by each replay of it.
void weights_changed();

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_WEIGHTS_H_
