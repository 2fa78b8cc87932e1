// A weight whose FP8 copies outlast the calls that read them: which copies there are, where they
// are, and in which order streams make and read them.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_KEPT_WEIGHT_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_KEPT_WEIGHT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "layer_handles.h"
#include "octile/layers.h"
#include "recipes.h"
#include "replay_words.h"
#include "shared_lock.h"
#include "tensors.h"
#include "weight_copy.h"

namespace octile::binding {

// A weight as a quantiser reads it: contiguous [n, k], or [experts, n, k], whose copies lie one
// behind the other.
struct WeightSource {
  std::int64_t experts = 1, n = 0, k = 0;
  octile_dtype type{};
  RecipeCode recipe = 0;  // without delay, which is none of W's

  friend bool operator==(const WeightSource&, const WeightSource&) = default;
};
WeightSource source_of(const Tensor& weight, RecipeCode recipe);

// A set of copies: that of W, which the forward pass reads, and that of W^T, which input gradients
// read.
struct CopySet {
  bool rowwise = false, transposed = false;

  bool any() const { return rowwise || transposed; }
};

// Which copies outlast a forward pass with gradients. Those of passes without gradients do in any
// case, until one with gradients is made.
enum class Keeping : std::uint8_t { kNone, kRowwise, kBoth };

enum class Pass : std::uint8_t { kForward, kBackward };

// A call of a layer, as its weight sees it.
struct WeightCall {
  const Tensor& weight;  // contiguous
  const Place& place;
  Layer& layer;
  RecipeCode recipe = 0;
  Pass pass{};
  CopySet wanted;          // for this pass and, of a forward pass, for the backward one
  bool gradients = false;  // a forward pass with a backward one
};

// All kept weights were written where PyTorch does not count it. The second counts these calls.
void all_weights_changed();
std::int64_t epoch_of_all_weights();
// Says the same to replays of trusted weights, by work on the current stream of every device.
void replays_see_changes();

// The state of a weight that FSDP2 gathers and frees. The passes are those that have used it
// since it was gathered.
struct Gather {
  bool shares = true;  // a backward pass finds the weight that its forward pass has used
  bool lasts = true;   // never freed between forward and backward
  bool forward = false, forward_with_gradients = false, backward = false;

  // Returns whether copies may stay while the weight is freed.
  bool end();

 private:
  bool shared_ = false;  // when it was gathered the last time
};

// One weight, the memory of its copies, and the streams that make and read them. The library knows
// if they are current (octile_weight).
class KeptWeight {
 public:
  // W of a call, and the copies in its operand: those that the call reads, or those that it makes.
  struct Use {
    octile_layer_operand operand{};
    std::shared_ptr<WeightCopy> rowwise, transposed;
    std::uint64_t capture = 0;

    bool makes() const { return operand.state == OCTILE_LAYER_QUANTIZE; }
  };

  SharedLock& mutex() { return mutex_; }
  // Called with the mutex locked or shared. Returns whether the call has nothing to make, and then
  // completes the use, whose operand has the source.
  bool current(const WeightCall& call, Use& use) const;
  // The next three are called with the mutex locked. begin() completes the use, and returns false
  // if no copies are kept for the call, or if graphs use them and they do not fit it.
  bool begin(const WeightCall& call, Use& use);
  // The call has enqueued its work. Returns whether W was quantised, as far as the host knows: of a
  // comparison only on the host device.
  bool end(const Place& place, const Use& use);
  // It has not.
  void fail(const Place& place);

  // The weight is used, on this device, by a parameter that was not known before.
  void take_over(const Tensor& weight);
  void trust(bool trusted);
  void keep(Keeping keeping);
  // It was written where PyTorch does not count it.
  void changed() { ++epoch_; }

  // FSDP2 has gathered the weight, or is about to free it.
  void gathered(const Tensor& weight, bool same);
  void released();
  void note(Pass pass);

  // In the child of a fork, where no other thread is: returns whether none was using the weight. It
  // then goes on with the copies as memory, of which nothing is known.
  bool survives_fork();
  // Returns how many comparisons of a CUDA device have found a change. Waits for the device.
  std::int64_t device_changes();

  // Guarded by the registry.
  const void* registered_at = nullptr;
  int holders = 0;

 private:
  struct Delete {
    void operator()(octile_weight* weight) const { octile_weight_destroy(weight); }
  };

  CopySet kept_of(const WeightCall& call) const;
  bool fits(const WeightCall& call) const;
  octile_weight_call call_of(const WeightCall& call, std::uint64_t capture) const;
  void give_memory(CopySet kept, octile_layer_operand& operand) const;
  void take_copies(Use& use) const;
  void start_over(const WeightCall& call);
  void follow_source(const Tensor& weight);
  void allocate(const WeightCall& call, CopySet copies);
  void reserve_fingerprints(const Tensor& weight);
  void drop_copies();

  SharedLock mutex_;
  std::unique_ptr<octile_weight, Delete> known_;  // of source_
  WeightSource source_;
  std::int32_t device_index_ = 0;
  bool trusted_ = false;
  Keeping keeping_ = Keeping::kBoth;
  std::atomic<std::int64_t> epoch_{0};
  std::uint64_t contents_ = 0;     // other tensors, and other trust, than the ones before
  const void* address_ = nullptr;  // of W
  // For a weight that is trusted: keeps W's memory alive, so that no other tensor has the address.
  std::optional<Tensor> memory_;
  std::shared_ptr<WeightCopy> rowwise_, transposed_;
  std::unique_ptr<Fingerprints> fingerprints_;
  bool captured_ = false;  // graphs have the copies' addresses
  std::optional<Gather> gather_;
  std::shared_ptr<StreamPoint> point_;  // where copies were made last
  std::uint32_t* words_ = nullptr;      // if it is trusted, and was captured
};

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_KEPT_WEIGHT_H_
