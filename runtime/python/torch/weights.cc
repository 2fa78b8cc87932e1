#include "weights.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "fork.h"
#include "replay_words.h"
#include "streams.h"

namespace octile::binding {
namespace {

std::atomic<std::int64_t> epoch{0};
std::atomic<int> sharing{0};
std::atomic<bool> any_gathered{false};
// A graph that changes weights was captured: its replays are not seen here.
std::atomic<bool> replays_change_weights{false};

// The contents of a weight, as far as the host can tell, and the capture that copies were made in.
struct Moment {
  std::int64_t version = -1, epoch = -1;
  std::uint64_t capture = 0;

  friend bool operator==(const Moment&, const Moment&) = default;
};

Moment moment_of(const Tensor& weight, const Place& place) {
  return {version_of(weight), epoch.load(), capture_of(place)};
}

// What is known of a weight that FSDP2 gathers and frees. The passes are those that have used it
// since it was gathered.
struct Gather {
  bool shares = true;  // a backward pass finds the weight that its forward pass has used
  bool lasts = true;   // never freed between forward and backward
  bool forward = false, forward_with_gradients = false, backward = false;

  // Returns whether copies may stay while the weight is freed.
  bool end() {
    if (forward && !backward) lasts = false;
    if (forward_with_gradients) {
      // Checkpointing gathers alternately for forward alone and for both, which is not to share.
      shares = backward && (shares || shared_);
      shared_ = backward;
    }
    const bool stay = lasts && backward;
    forward = forward_with_gradients = backward = false;
    return stay;
  }

 private:
  bool shared_ = false;  // when it was gathered the last time
};

std::atomic<std::int64_t> quantizations{0}, copies_made{0};

}  // namespace

// One weight and its copies.
class KeptWeight {
 public:
  // The copies for a call, and those of them that it has to make unless the word `skip` on the
  // device is 1.
  struct Copies {
    std::shared_ptr<WeightCopy> rowwise, transposed;
    WantedCopies stale;
    const std::uint32_t* skip = nullptr;
  };

  SharedLock& mutex() { return mutex_; }
  // Called with the mutex locked or shared. Returns whether the call has nothing to make, and then
  // the copies.
  bool current(const Tensor& weight, const Place& place, RecipeCode recipe, WantedCopies wanted,
               Copies& found) const;
  // The next two are called with the mutex locked. Returns no copies if replays use them and they
  // do not fit this call.
  Copies begin(const Tensor& weight, const Place& place, Layer& layer, RecipeCode recipe,
               WantedCopies wanted);
  // Copies that are stale have been made.
  void end(const Place& place, WantedCopies made);

  // Another parameter has this memory now.
  void take_over();
  // FSDP2 has gathered the weight, or is about to free it.
  void gathered(const Tensor& weight, bool same);
  void released();
  void note(Pass pass);

  // In the child of a fork, where no other thread is: returns whether none was using the weight.
  bool is_whole();

  std::int64_t token = 0;  // guarded by the registry

 private:
  struct Slot {
    std::shared_ptr<WeightCopy> copy;
    bool current = false;
  };

  // Replays know from words whether the copies are current.
  bool shared() const { return words_.first != nullptr; }
  bool is_unsure(const Moment& now) const;
  bool fits(const Tensor& weight, const Place& place, const WeightSource& source) const;
  void start_over(const Tensor& weight, const Place& place, const WeightSource& source);
  const std::uint32_t* skip_of(const Moment& now, WantedCopies stale) const;
  void allocate_missing(const Place& place, Layer& layer, WantedCopies stale);

  SharedLock mutex_;
  // Keeps the weight's memory alive, so that no other tensor can have the address.
  std::optional<Tensor> memory_;
  std::int32_t device_index_ = 0;
  WeightSource source_;
  Moment made_, making_;
  Slot rowwise_, transposed_;
  bool captured_ = false;  // graphs have the copies' addresses
  CopyWords words_;
  std::optional<Gather> gather_;
};

// Replays may have made the copies of other contents.
bool KeptWeight::is_unsure(const Moment& now) const {
  return shared() && now.capture == 0 && replays_change_weights.load();
}

bool KeptWeight::current(const Tensor& weight, const Place& place, RecipeCode recipe,
                         WantedCopies wanted, Copies& found) const {
  if (gather_ || !fits(weight, place, source_of(weight, recipe))) return false;
  const Moment moment = moment_of(weight, place);
  if (moment != made_ || is_unsure(moment)) return false;
  if (moment.capture != 0 && !shared() && sharing.load() > 0) return false;
  if ((wanted.rowwise && !rowwise_.current) || (wanted.transposed && !transposed_.current))
    return false;
  if (wanted.rowwise) found.rowwise = rowwise_.copy;
  if (wanted.transposed) found.transposed = transposed_.copy;
  return true;
}

bool KeptWeight::fits(const Tensor& weight, const Place& place, const WeightSource& source) const {
  return memory_ && memory_->data_ptr() == weight.data_ptr() &&
         device_index_ == place.device_index && source_ == source;
}

void KeptWeight::start_over(const Tensor& weight, const Place& place, const WeightSource& source) {
  memory_ = alias(weight);
  device_index_ = place.device_index;
  source_ = source;
  rowwise_ = transposed_ = {};
}

void KeptWeight::take_over() {
  const std::lock_guard lock(mutex_);
  made_ = {};
  rowwise_.current = transposed_.current = false;
}

void KeptWeight::gathered(const Tensor& weight, bool same) {
  if (!same) take_over();
  const std::lock_guard lock(mutex_);
  if (!gather_) gather_.emplace();
  if (!captured_) memory_ = alias(weight);
}

void KeptWeight::released() {
  const std::lock_guard lock(mutex_);
  const bool stay = gather_ && gather_->end();
  if (captured_) return;
  memory_.reset();
  if (!stay) rowwise_ = transposed_ = {};
}

bool KeptWeight::is_whole() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return false;
  return std::ranges::all_of(std::array{&rowwise_, &transposed_}, [](const Slot* slot) {
    return slot->copy == nullptr || slot->copy->is_whole();
  });
}

void KeptWeight::note(Pass pass) {
  const std::lock_guard lock(mutex_);
  if (!gather_) return;
  bool& seen = pass == Pass::kForward ? gather_->forward_with_gradients : gather_->backward;
  seen = true;
}

// Returns the word by which the work about to be enqueued learns on the device that it has nothing
// to do, or null if it always has.
const std::uint32_t* KeptWeight::skip_of(const Moment& now, WantedCopies stale) const {
  if (!shared() || (now.capture != 0 && sharing.load() == 0)) return nullptr;
  if (now.capture == 0 && !replays_change_weights.load()) return nullptr;
  // Written in place, and no word was cleared since.
  if (now.epoch == made_.epoch && now.version != made_.version) return nullptr;
  return words_.of(stale.rowwise, stale.transposed);
}

void KeptWeight::allocate_missing(const Place& place, Layer& layer, WantedCopies stale) {
  const bool rowwise = stale.rowwise && rowwise_.copy == nullptr;
  const bool transposed = stale.transposed && transposed_.copy == nullptr;
  if (!rowwise && !transposed) return;
  run_apart(place, [&, handle = layer.handle()](const Place& apart) {
    if (rowwise) rowwise_.copy = std::make_shared<WeightCopy>(handle, apart, false);
    if (transposed) transposed_.copy = std::make_shared<WeightCopy>(handle, apart, true);
  });
}

KeptWeight::Copies KeptWeight::begin(const Tensor& weight, const Place& place, Layer& layer,
                                     RecipeCode recipe, WantedCopies wanted) {
  const WeightSource source = source_of(weight, recipe);
  if (gather_) {
    gather_->forward |= wanted.rowwise;
    if (!gather_->shares) return {};
  }
  if (!fits(weight, place, source)) {
    if (captured_) return {};
    start_over(weight, place, source);
  }
  const Moment now = moment_of(weight, place);
  if (now.capture != 0 && !shared() && sharing.load() > 0) {
    words_ = take_replay_words(place);
  }
  const bool stale = now != made_ || is_unsure(now);
  Copies given;
  given.stale = {.rowwise = wanted.rowwise && (stale || !rowwise_.current),
                 .transposed = wanted.transposed && (stale || !transposed_.current)};
  if (given.stale.rowwise || given.stale.transposed) {
    given.skip = skip_of(now, given.stale);
    if (stale) rowwise_.current = transposed_.current = false;
    allocate_missing(place, layer, given.stale);
    made_ = {};  // should the call fail
    making_ = now;
    if (given.stale.rowwise) rowwise_.copy->before_write(place);
    if (given.stale.transposed) transposed_.copy->before_write(place);
  }
  if (wanted.rowwise) given.rowwise = rowwise_.copy;
  if (wanted.transposed) given.transposed = transposed_.copy;
  return given;
}

void KeptWeight::end(const Place& place, WantedCopies made) {
  if (shared()) words_.set(place, made.rowwise, made.transposed);
  if (!place.host) {
    const auto point = std::make_shared<const StreamPoint>(place);
    if (made.rowwise) rowwise_.copy->made_at(place, point);
    if (made.transposed) transposed_.copy->made_at(place, point);
  }
  rowwise_.current = rowwise_.current || made.rowwise;
  transposed_.current = transposed_.current || made.transposed;
  captured_ = captured_ || making_.capture != 0;
  made_ = making_;
}

namespace {

// Guarded by ProcessWide::kWeights. A weight's own mutex is not locked meanwhile, but tried in the
// child of a fork.
struct Registry {
  std::int64_t last_token = 0;
  std::unordered_map<const void*, std::shared_ptr<KeptWeight>> by_address;
  std::unordered_map<std::int64_t, std::shared_ptr<KeptWeight>> gathered;  // by token

  std::shared_ptr<KeptWeight> find(const void* address) {
    const std::scoped_lock lock(process_mutex(ProcessWide::kWeights));
    const auto found = by_address.find(address);
    return found == by_address.end() ? nullptr : found->second;
  }
};
// Never destroyed: at exit tensors may outlive what frees them.
Registry& registry = *new Registry;

// In the child of a fork: weights that another thread of the parent was using begin anew. What they
// had stays in memory, because nothing is known about it.
void leave_used_weights() {
  std::unordered_map<const KeptWeight*, std::shared_ptr<KeptWeight>> anew;
  const auto replace = [&](std::shared_ptr<KeptWeight>& kept) {
    if (kept->is_whole()) return;
    std::shared_ptr<KeptWeight>& other = anew[kept.get()];
    if (!other) {
      other = std::make_shared<KeptWeight>();
      other->token = kept->token;
      new std::shared_ptr<KeptWeight>(kept);  // keeps the parent's from being destroyed
    }
    kept = other;
  };
  for (auto& [address, kept] : registry.by_address) replace(kept);
  for (auto& [token, kept] : registry.gathered) replace(kept);
}
const InChild kLeavesUsedWeights(leave_used_weights);

}  // namespace

WeightSource source_of(const Tensor& weight, RecipeCode recipe) {
  const std::int64_t rank = weight.dim();
  return {.experts = rank == 3 ? weight.size(0) : 1,
          .n = weight.size(rank - 2),
          .k = weight.size(rank - 1),
          .type = float_type(weight, "weight"),
          .recipe = recipe};
}

WeightUse::WeightUse(const Tensor& weight, const Place& place, Layer& layer, RecipeCode recipe,
                     WantedCopies wanted, float* scaling)
    : place_(place) {
  operand_.struct_size = sizeof operand_;
  operand_.source = weight.data_ptr();
  kept_ = registry.find(weight.data_ptr());
  if (!kept_) return;
  KeptWeight::Copies given;
  reading_lock_ = std::shared_lock(kept_->mutex());
  if (!kept_->current(weight, place, recipe, wanted, given)) {
    reading_lock_.unlock();
    making_lock_ = std::unique_lock(kept_->mutex());
    given = kept_->begin(weight, place, layer, recipe, wanted);
  }
  rowwise_ = std::move(given.rowwise);
  transposed_ = std::move(given.transposed);
  making_ = given.stale;
  operand_.skip = given.skip;
  if (!rowwise_ && !transposed_) {
    making_lock_ = {};
    reading_lock_ = {};
    kept_.reset();
    return;
  }
  if (wanted.rowwise && making_.transposed && !making_.rowwise) quantize_transposed(layer, scaling);
  // A call makes every copy whose memory it is given.
  const bool makes = making_.rowwise || making_.transposed;
  if (rowwise_ && (!makes || making_.rowwise)) operand_.rowwise = rowwise_->memory();
  if (transposed_ && (!makes || making_.transposed)) operand_.transposed = transposed_->memory();
  if (!makes) {
    operand_.state = OCTILE_LAYER_CURRENT;
    read_from_now_on();
  }
  if (rowwise_ && !making_.rowwise) rowwise_->before(place_);
  if (transposed_ && !making_.transposed) transposed_->before(place_);
}

WeightUse::~WeightUse() {
  try {
    for (WeightCopy* copy : {rowwise_.get(), transposed_.get()}) {
      if (copy != nullptr) copy->used_on(place_);
    }
  } catch (...) {  // The driver has failed, and with it the work that used the copies.
  }
}

void WeightUse::quantize_transposed(Layer& layer, float* scaling) {
  octile_layer_operand operand = operand_;
  operand.transposed = transposed_->memory();
  octile_layer_quantize_args args{};
  args.struct_size = sizeof args;
  args.tensor = OCTILE_LAYER_W;
  args.operand = &operand;
  args.scaling = scaling;
  constexpr std::uint32_t kSizes =
      OCTILE_LAYER_WITHOUT_FORWARD | OCTILE_LAYER_KEEP_W | OCTILE_LAYER_INPUT_GRADIENT;
  const Workspace space(place_, layer.sizes(0, kSizes).workspace, args);
  constexpr std::uint32_t kUses =
      OCTILE_LAYER_WITHOUT_FORWARD | OCTILE_LAYER_WITHOUT_BACKWARD | OCTILE_LAYER_INPUT_GRADIENT;
  layer.run(0, kUses, [&](octile_layer* handle) {
    return octile_layer_quantize(handle, &args, place_.stream);
  });
  made();
  making_ = {};
  operand_.skip = nullptr;
}

std::uint32_t WeightUse::forward_uses() const {
  if (!kept_) return 0;
  const bool makes_one = making_.rowwise && !making_.transposed;
  return OCTILE_LAYER_KEEP_W | (transposed_ && !makes_one ? OCTILE_LAYER_INPUT_GRADIENT : 0);
}

std::uint32_t WeightUse::backward_uses() const {
  return operand_.state == OCTILE_LAYER_CURRENT ? OCTILE_LAYER_KEEP_W : 0;
}

std::uint32_t WeightUse::memory_uses() const { return kept_ ? OCTILE_LAYER_KEEP_W : 0; }

void WeightUse::made() {
  if (operand_.state == OCTILE_LAYER_CURRENT) return;
  ++quantizations;
  copies_made += making_.rowwise && making_.transposed ? 2 : 1;
  if (!kept_) return;
  kept_->end(place_, making_);
  read_from_now_on();
}

// Others may read the copies too, but not make them again.
void WeightUse::read_from_now_on() {
  if (!making_lock_) return;
  making_lock_.unlock();
  reading_lock_ = std::shared_lock(kept_->mutex());
}

std::int64_t weight_quantizations() { return quantizations.load(); }
std::int64_t weight_copies_made() { return copies_made.load(); }

std::int64_t keep_weight(Tensor weight) {
  reserve_replay_words(place_of(weight));
  std::shared_ptr<KeptWeight> kept;
  std::int64_t token = 0;
  {
    const std::scoped_lock lock(process_mutex(ProcessWide::kWeights));
    std::shared_ptr<KeptWeight>& known = registry.by_address[weight.data_ptr()];
    if (!known) known = std::make_shared<KeptWeight>();
    token = known->token = ++registry.last_token;
    kept = known;
  }
  kept->take_over();
  return token;
}

void forget_weight(std::int64_t token) {
  std::shared_ptr<KeptWeight> forgotten;  // freed without the lock
  const std::scoped_lock lock(process_mutex(ProcessWide::kWeights));
  if (auto gathered = registry.gathered.extract(token)) forgotten = std::move(gathered.mapped());
  for (auto entry = registry.by_address.begin(); entry != registry.by_address.end(); ++entry) {
    if (entry->second->token != token) continue;
    forgotten = std::move(entry->second);
    registry.by_address.erase(entry);
    return;
  }
}

std::int64_t gather_weight(Tensor weight, std::int64_t token, bool same) {
  reserve_replay_words(place_of(weight));
  any_gathered = true;
  std::shared_ptr<KeptWeight> kept, former;  // freed without the lock
  {
    const std::scoped_lock lock(process_mutex(ProcessWide::kWeights));
    if (token == 0) token = ++registry.last_token;
    std::shared_ptr<KeptWeight>& known = registry.gathered[token];
    if (!known) known = std::make_shared<KeptWeight>();
    known->token = token;
    kept = known;
  }
  kept->gathered(weight, same);
  const std::scoped_lock lock(process_mutex(ProcessWide::kWeights));
  former = std::exchange(registry.by_address[weight.data_ptr()], kept);
  return token;
}

void release_weight(Tensor weight, std::int64_t token) {
  std::shared_ptr<KeptWeight> released;  // frees its copies without the lock
  {
    const std::scoped_lock lock(process_mutex(ProcessWide::kWeights));
    const auto found = registry.by_address.find(weight.data_ptr());
    if (found == registry.by_address.end() || found->second->token != token) return;
    released = std::move(found->second);
    registry.by_address.erase(found);
  }
  released->released();
}

void note_pass(const Tensor& weight, Pass pass) {
  if (!any_gathered.load()) return;
  if (const auto kept = registry.find(weight.data_ptr())) kept->note(pass);
}

void weights_changed() {
  ++epoch;
  if (clear_replay_words()) replays_change_weights = true;
}

void share_weights(bool begin) { sharing += begin ? 1 : -1; }

}  // namespace octile::binding
