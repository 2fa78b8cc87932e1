#include "kept_weight.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "streams.h"

namespace octile::binding {
namespace {

std::atomic<std::int64_t> epoch_of_all{0};
// A graph that changes weights was captured: its replays are not seen here.
std::atomic<bool> replays_change_weights{false};

}  // namespace

WeightSource source_of(const Tensor& weight, RecipeCode recipe) {
  const std::int64_t rank = weight.dim();
  return {.experts = rank == 3 ? weight.size(0) : 1,
          .n = weight.size(rank - 2),
          .k = weight.size(rank - 1),
          .type = float_type(weight, "weight"),
          .recipe = without_delay(recipe)};
}

void all_weights_changed() { ++epoch_of_all; }

std::int64_t epoch_of_all_weights() { return epoch_of_all.load(); }

void replays_see_changes() {
  if (clear_replay_words()) replays_change_weights = true;
}

bool Gather::end() {
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

CopySet KeptWeight::kept_of(const WeightCall& call) const {
  const bool trains = call.pass == Pass::kBackward || call.gradients;
  CopySet kept = call.wanted;
  if (trains && keeping_ == Keeping::kNone) kept.rowwise = false;
  if (trains && keeping_ != Keeping::kBoth) kept.transposed = false;
  return kept;
}

bool KeptWeight::fits(const WeightCall& call) const {
  return known_ && device_index_ == call.place.device_index &&
         source_ == source_of(call.weight, call.recipe);
}

octile_weight_call KeptWeight::call_of(const WeightCall& call, std::uint64_t capture) const {
  constexpr int kVersionBits = 40;
  octile_weight_call known{};
  known.struct_size = sizeof known;
  known.uses =
      call.pass == Pass::kForward ? OCTILE_LAYER_WITHOUT_BACKWARD : OCTILE_LAYER_WITHOUT_FORWARD;
  if (call.wanted.transposed) known.uses |= OCTILE_LAYER_INPUT_GRADIENT;
  if (call.gradients) known.uses |= OCTILE_LAYER_KEEP_X;
  known.trusted = trusted_ ? 1 : 0;
  known.stamp = (contents_ << kVersionBits) + static_cast<std::uint64_t>(version_of(call.weight));
  known.epoch = static_cast<std::uint64_t>(epoch_of_all.load() + epoch_.load());
  known.capture = capture;
  known.words = words_;
  known.replayed = replays_change_weights.load() ? 1 : 0;
  return known;
}

// Gives the memory of all copies, but for one that the call does not keep and no graph has.
void KeptWeight::give_memory(CopySet kept, octile_layer_operand& operand) const {
  const bool all = captured_ || kept.transposed || keeping_ == Keeping::kBoth;
  if (rowwise_) operand.rowwise = rowwise_->parts();
  if (transposed_ && all) operand.transposed = transposed_->parts();
  if (fingerprints_ && fingerprints_->experts() == source_.experts)
    operand.fingerprint = fingerprints_->first();
}

void KeptWeight::take_copies(Use& use) const {
  if (use.operand.rowwise.codes != nullptr) use.rowwise = rowwise_;
  if (use.operand.transposed.codes != nullptr) use.transposed = transposed_;
}

void KeptWeight::start_over(const WeightCall& call) {
  source_ = source_of(call.weight, call.recipe);
  device_index_ = call.place.device_index;
  drop_copies();
  octile_weight* known = nullptr;
  check(octile_weight_create(call.layer.handle(), &known));
  known_.reset(known);
}

// Another tensor has other contents.
void KeptWeight::follow_source(const Tensor& weight) {
  if (address_ != weight.data_ptr()) {
    address_ = weight.data_ptr();
    memory_.reset();
    ++contents_;
  }
  if (trusted_ && !memory_) memory_ = alias(weight);
}

void KeptWeight::drop_copies() {
  if (!rowwise_ && !transposed_) return;
  rowwise_.reset();
  transposed_.reset();
  if (known_) check(octile_weight_forget(known_.get()));
}

// Outside a capture, because a captured fill would be repeated by every replay.
void KeptWeight::reserve_fingerprints(const Tensor& weight) {
  const Place place = place_of(weight);
  const std::int64_t experts = weight.dim() == 3 ? weight.size(0) : 1;
  if (fingerprints_ || captured_ || capture_of(place) != 0) return;
  const OnDevice device(place);
  run_apart(place, [&](const Place& apart) {
    fingerprints_ = std::make_unique<Fingerprints>(apart, experts);
  });
}

void KeptWeight::take_over(const Tensor& weight) {
  const std::lock_guard lock(mutex_);
  ++contents_;
  reserve_fingerprints(weight);
}

void KeptWeight::trust(bool trusted) {
  const std::lock_guard lock(mutex_);
  if (trusted_ == trusted) return;
  trusted_ = trusted;
  ++contents_;
  if (!captured_) memory_.reset();
}

void KeptWeight::keep(Keeping keeping) {
  const std::lock_guard lock(mutex_);
  keeping_ = keeping;
}

void KeptWeight::gathered(const Tensor& weight, bool same) {
  if (!same) take_over(weight);
  const std::lock_guard lock(mutex_);
  if (!gather_) gather_.emplace();
  if (captured_) return;
  address_ = weight.data_ptr();
  if (trusted_) memory_ = alias(weight);
}

void KeptWeight::released() {
  const std::lock_guard lock(mutex_);
  const bool stay = gather_ && gather_->end();
  if (captured_) return;
  address_ = nullptr;
  memory_.reset();
  if (!stay) drop_copies();
}

void KeptWeight::note(Pass pass) {
  const std::lock_guard lock(mutex_);
  if (!gather_) return;
  bool& seen = pass == Pass::kForward ? gather_->forward_with_gradients : gather_->backward;
  seen = true;
}

bool KeptWeight::survives_fork() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return false;
  [[maybe_unused]] const auto* of_parent = known_.release();  // of no use in the child
  const std::array<StreamMemory*, 3> parts{rowwise_.get(), transposed_.get(), fingerprints_.get()};
  return std::ranges::all_of(
      parts, [](StreamMemory* part) { return part == nullptr || part->is_whole(); });
}

std::int64_t KeptWeight::device_changes() {
  const std::lock_guard lock(mutex_);
  return fingerprints_ && !fingerprints_->on_host() ? fingerprints_->changes() : 0;
}

bool KeptWeight::current(const WeightCall& call, Use& use) const {
  if (gather_ || !fits(call) || address_ != call.weight.data_ptr()) return false;
  const CopySet kept = kept_of(call);
  if (!kept.any()) return false;
  const std::uint64_t capture = capture_of(call.place);
  if (trusted_ && capture != 0 && words_ == nullptr) return false;
  const octile_weight_call known = call_of(call, capture);
  octile_layer_operand operand = use.operand;
  give_memory(kept, operand);
  std::int32_t current = 0;
  check(octile_weight_is_current(known_.get(), &known, &operand, &current));
  if (current == 0) return false;
  use.operand = operand;
  take_copies(use);
  if (use.rowwise) use.rowwise->before(call.place);
  if (use.transposed) use.transposed->before(call.place);
  return true;
}

void KeptWeight::allocate(const WeightCall& call, CopySet copies) {
  const bool rowwise = copies.rowwise && rowwise_ == nullptr;
  const bool transposed = copies.transposed && transposed_ == nullptr;
  if (!rowwise && !transposed) return;
  run_apart(call.place, [&, handle = call.layer.handle()](const Place& apart) {
    if (rowwise) rowwise_ = std::make_shared<WeightCopy>(handle, apart, false);
    if (transposed) transposed_ = std::make_shared<WeightCopy>(handle, apart, true);
  });
}

bool KeptWeight::begin(const WeightCall& call, Use& use) {
  if (gather_) {
    gather_->forward |= call.wanted.rowwise;
    if (!gather_->shares) return false;
  }
  const CopySet kept = kept_of(call);
  if (!kept.any()) {
    if (call.pass == Pass::kForward && !captured_) drop_copies();
    return false;
  }
  const bool is_known = fits(call);
  if (captured_ && (!is_known || address_ != call.weight.data_ptr())) return false;
  if (!is_known) start_over(call);
  follow_source(call.weight);
  const Place& place = call.place;
  use.capture = capture_of(place);
  if (trusted_ && use.capture != 0 && words_ == nullptr) words_ = take_replay_words(place);
  allocate(call, kept);
  give_memory(kept, use.operand);
  if (fingerprints_) fingerprints_->before_write(place);
  const octile_weight_call known = call_of(call, use.capture);
  check(octile_weight_begin(known_.get(), &known, &use.operand, place.stream));
  take_copies(use);
  for (WeightCopy* copy : {use.rowwise.get(), use.transposed.get()}) {
    if (copy == nullptr) continue;
    use.makes() ? copy->before_write(place) : copy->before(place);
  }
  return use.rowwise || use.transposed;
}

bool KeptWeight::end(const Place& place, const Use& use) {
  check(octile_weight_end(known_.get(), place.stream));
  captured_ = captured_ || use.capture != 0;
  if (!place.host) {
    if (!point_ || !point_->move_on(place)) point_ = std::make_shared<StreamPoint>(place);
    if (use.rowwise) use.rowwise->made_at(place, point_);
    if (use.transposed) use.transposed->made_at(place, point_);
    if (fingerprints_) {
      fingerprints_->made_at(place, point_);
      fingerprints_->used_on(place);
    }
  }
  return use.operand.fingerprint == nullptr || (place.host && fingerprints_->host_has_changed());
}

// The library may have written the fingerprint, which other streams wait for.
void KeptWeight::fail(const Place& place) {
  if (!fingerprints_ || place.host) return;
  fingerprints_->made_at(place, std::make_shared<const StreamPoint>(place));
}

}  // namespace octile::binding
