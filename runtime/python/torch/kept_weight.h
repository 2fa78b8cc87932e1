// A weight whose FP8 copies outlast the calls that read them: which copies there are, how they are
// known to be current, and what a call has to do before it reads them.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_KEPT_WEIGHT_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_KEPT_WEIGHT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "layer_handles.h"
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
  friend CopySet operator|(CopySet a, CopySet b) {
    return {a.rowwise || b.rowwise, a.transposed || b.transposed};
  }
  friend CopySet operator&(CopySet a, CopySet b) {
    return {a.rowwise && b.rowwise, a.transposed && b.transposed};
  }
  friend bool operator==(const CopySet&, const CopySet&) = default;
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

// The contents of a weight, as far as the host can tell, and the capture that copies were made in.
struct Moment {
  std::int64_t version = -1;  // writes in place that PyTorch has counted
  std::int64_t epoch = -1;    // other writes that the host was told of
  std::uint64_t capture = 0;

  friend bool operator==(const Moment&, const Moment&) = default;
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

// One weight and its copies.
//
// By default no write is trusted to be seen by the host. A forward pass either knows that W has
// changed and quantises it, or has the device compare W with the fingerprint of the contents that
// the copies were made from, and quantise W if it is another; the backward pass reads what its
// forward pass has made. A captured forward pass without gradients compares, and one with gradients
// quantises, because a step changes W. A weight that is trusted is quantised if the host knows of a
// change, and replays learn from words on the device if there was one (replay_words.h).
//
// The fingerprint describes the copies of the set covered_, and all of them are made together; who
// makes one of them otherwise has it forgotten.
class KeptWeight {
 public:
  // The copies for a call, and those that it makes: all of them, or none if the device finds that
  // they are current, by the word `skip` or by the fingerprint.
  struct Copies {
    std::shared_ptr<WeightCopy> rowwise, transposed;
    CopySet making;
    const std::uint32_t* skip = nullptr;
    octile_fingerprint* fingerprint = nullptr;
  };

  SharedLock& mutex() { return mutex_; }
  // Called with the mutex locked or shared. Returns whether the call has nothing to make, and then
  // the copies.
  bool current(const WeightCall& call, Copies& found) const;
  // The next two are called with the mutex locked. begin() returns no copies if none of those that
  // the call wants is kept, or if graphs use them and they do not fit this call.
  Copies begin(const WeightCall& call);
  // The copies to be made have been enqueued. Returns whether W was quantised, as far as the host
  // knows: of a comparison only on the host device.
  bool end(const Place& place, CopySet made, bool compared);

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

  // In the child of a fork, where no other thread is: returns whether none was using the weight.
  bool is_whole();
  // Returns how many comparisons of a CUDA device have found a change. Waits for the device.
  std::int64_t device_changes();

  // Guarded by the registry.
  const void* registered_at = nullptr;
  int holders = 0;

 private:
  struct Slot {
    std::shared_ptr<WeightCopy> copy;
    bool current = false;  // made of the contents that made_ says
  };

  CopySet kept_of(const WeightCall& call) const;
  Moment moment_of(const WeightCall& call) const;
  bool fits(const WeightCall& call, const WeightSource& source) const;
  void start_over(const WeightCall& call, const WeightSource& source);
  void reserve_fingerprints(const Tensor& weight);

  Copies begin_trusted(const WeightCall& call, const Moment& now);
  bool is_unsure(const Moment& now) const;
  const std::uint32_t* skip_of(const Moment& now, CopySet making) const;

  Copies begin_untrusted(const WeightCall& call, const Moment& now);
  bool compares(const WeightCall& call, const Moment& now, bool changed) const;
  void note_forward(bool changed);

  Copies give(const WeightCall& call, const Moment& now, CopySet given, CopySet making,
              bool compared);
  void forget_contents(const Place& place);
  void drop_copies();

  CopySet current_copies() const { return {rowwise_.current, transposed_.current}; }
  // Replays of a trusted weight know from words whether the copies are current.
  bool has_words() const { return words_.first != nullptr; }

  SharedLock mutex_;
  bool trusted_ = false;
  Keeping keeping_ = Keeping::kBoth;
  std::atomic<std::int64_t> epoch_{0};
  const void* address_ = nullptr;  // of W
  // For a weight that is trusted: keeps W's memory alive, so that no other tensor has the address.
  std::optional<Tensor> memory_;
  std::int32_t device_index_ = 0;
  WeightSource source_;
  Moment made_, making_;
  Slot rowwise_, transposed_;
  bool captured_ = false;  // graphs have the copies' addresses
  std::optional<Gather> gather_;

  std::unique_ptr<Fingerprints> fingerprints_;
  CopySet covered_;
  CopySet captured_comparison_;  // what graphs that compare make; no other set is covered then
  std::int64_t forwards_ = 0;    // with the contents of today
  bool used_once_ = false;       // so were those before
  std::shared_ptr<StreamPoint> point_;  // where copies were made last

  CopyWords words_;
};

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_KEPT_WEIGHT_H_
