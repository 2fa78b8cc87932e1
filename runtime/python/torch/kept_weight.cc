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

Moment KeptWeight::moment_of(const WeightCall& call) const {
  return {version_of(call.weight), epoch_of_all.load() + epoch_.load(), capture_of(call.place)};
}

bool KeptWeight::fits(const WeightCall& call, const WeightSource& source) const {
  return address_ == call.weight.data_ptr() && device_index_ == call.place.device_index &&
         source_ == source;
}

void KeptWeight::start_over(const WeightCall& call, const WeightSource& source) {
  address_ = call.weight.data_ptr();
  memory_.reset();
  if (trusted_) memory_ = alias(call.weight);
  device_index_ = call.place.device_index;
  source_ = source;
  made_ = {};
  drop_copies();
}

// Those that are allocated in their place are not what the fingerprint describes.
void KeptWeight::drop_copies() {
  rowwise_ = transposed_ = {};
  covered_ = {};
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
  made_ = {};
  rowwise_.current = transposed_.current = false;
  reserve_fingerprints(weight);
}

void KeptWeight::trust(bool trusted) {
  const std::lock_guard lock(mutex_);
  if (trusted_ == trusted) return;
  trusted_ = trusted;
  made_ = {};
  rowwise_.current = transposed_.current = false;
  if (captured_) {
    // Replays that obey words would overtake comparisons.
    if (!captured_comparison_.any()) fingerprints_.reset();
    return;
  }
  address_ = nullptr;  // so that the next call starts over
  memory_.reset();
}

void KeptWeight::keep(Keeping keeping) {
  const std::lock_guard lock(mutex_);
  keeping_ = keeping;
}

// Returns the copies that the call wants and that outlast it.
CopySet KeptWeight::kept_of(const WeightCall& call) const {
  const bool trains = call.pass == Pass::kBackward || call.gradients;
  CopySet kept = call.wanted;
  if (trains && keeping_ == Keeping::kNone) kept.rowwise = false;
  if (trains && keeping_ != Keeping::kBoth) kept.transposed = false;
  return kept;
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

bool KeptWeight::is_whole() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return false;
  const std::array<StreamMemory*, 3> parts{rowwise_.copy.get(), transposed_.copy.get(),
                                           fingerprints_.get()};
  return std::ranges::all_of(
      parts, [](StreamMemory* part) { return part == nullptr || part->is_whole(); });
}

std::int64_t KeptWeight::device_changes() {
  const std::lock_guard lock(mutex_);
  return fingerprints_ && !fingerprints_->on_host() ? fingerprints_->changes() : 0;
}

// ---- a weight that is trusted

// Replays may have made the copies of other contents.
bool KeptWeight::is_unsure(const Moment& now) const {
  return has_words() && now.capture == 0 && replays_change_weights.load();
}

// Returns the word by which the work about to be enqueued learns on the device that it has nothing
// to do, or null if it always has.
const std::uint32_t* KeptWeight::skip_of(const Moment& now, CopySet making) const {
  if (!has_words()) return nullptr;
  if (now.capture == 0 && !replays_change_weights.load()) return nullptr;
  // Written in place, and no word was cleared since.
  if (now.epoch == made_.epoch && now.version != made_.version) return nullptr;
  return words_.of(making.rowwise, making.transposed);
}

KeptWeight::Copies KeptWeight::begin_trusted(const WeightCall& call, const Moment& now) {
  if (now.capture != 0 && !has_words()) words_ = take_replay_words(call.place);
  const bool stale = now != made_ || is_unsure(now);
  const CopySet wanted = kept_of(call);
  const CopySet making{.rowwise = wanted.rowwise && (stale || !rowwise_.current),
                       .transposed = wanted.transposed && (stale || !transposed_.current)};
  const std::uint32_t* const skip = making.any() ? skip_of(now, making) : nullptr;
  if (stale && making.any()) rowwise_.current = transposed_.current = false;
  Copies given = give(call, now, wanted, making, false);
  given.skip = skip;
  return given;
}

// ---- a weight that is not

// Contents that are used once are quantised by the call that uses them, without a comparison, as
// long as it was so the last time.
void KeptWeight::note_forward(bool changed) {
  if (changed) {
    used_once_ = forwards_ == 1;
    forwards_ = 0;
  }
  ++forwards_;
}

bool KeptWeight::compares(const WeightCall& call, const Moment& now, bool changed) const {
  if (call.pass == Pass::kBackward) return false;
  if (!fingerprints_ || fingerprints_->experts() != source_.experts) return false;
  if (now.capture != 0) return !call.gradients;
  return !(changed && used_once_);
}

KeptWeight::Copies KeptWeight::begin_untrusted(const WeightCall& call, const Moment& now) {
  const CopySet wanted = kept_of(call);
  if (call.pass == Pass::kBackward) {
    const bool made = now == made_ && (wanted & current_copies()) == wanted;
    return give(call, now, wanted, made ? CopySet{} : wanted, false);
  }
  const bool changed = now.version != made_.version || now.epoch != made_.epoch;
  note_forward(changed);
  if (!compares(call, now, changed)) {
    rowwise_.current = transposed_.current = false;
    return give(call, now, wanted, wanted, false);
  }
  CopySet making = wanted;
  if (!changed) making = making | current_copies();
  if (captured_comparison_.any()) making = captured_comparison_;
  if (now.capture != 0) captured_comparison_ = making;
  rowwise_.current = transposed_.current = false;
  // A copy outside the captured set is made by each call that reads it.
  return give(call, now, wanted & making, making, true);
}

// ---- both

bool KeptWeight::current(const WeightCall& call, Copies& found) const {
  if (gather_ || !fits(call, source_of(call.weight, call.recipe))) return false;
  if (!trusted_ && call.pass == Pass::kForward) return false;
  const Moment now = moment_of(call);
  if (now != made_ || (trusted_ && is_unsure(now))) return false;
  if (trusted_ && now.capture != 0 && !has_words()) return false;
  const CopySet wanted = kept_of(call);
  if (!wanted.any() || (wanted & current_copies()) != wanted) return false;
  if (wanted.rowwise) found.rowwise = rowwise_.copy;
  if (wanted.transposed) found.transposed = transposed_.copy;
  return true;
}

KeptWeight::Copies KeptWeight::begin(const WeightCall& call) {
  const WeightSource source = source_of(call.weight, call.recipe);
  if (gather_) {
    gather_->forward |= call.wanted.rowwise;
    if (!gather_->shares) return {};
  }
  if (!kept_of(call).any()) {
    if (call.pass == Pass::kForward && !captured_) drop_copies();
    return {};
  }
  if (!fits(call, source)) {
    if (captured_) return {};
    start_over(call, source);
  }
  const Moment now = moment_of(call);
  return trusted_ ? begin_trusted(call, now) : begin_untrusted(call, now);
}

void KeptWeight::forget_contents(const Place& place) {
  fingerprints_->before_write(place);
  fingerprints_->forget(place);
  if (!place.host) fingerprints_->made_at(place, std::make_shared<const StreamPoint>(place));
  fingerprints_->used_on(place);
  covered_ = {};
}

// Returns the copies `given`, after those of `making` were made ready for the call to write.
KeptWeight::Copies KeptWeight::give(const WeightCall& call, const Moment& now, CopySet given,
                                    CopySet making, bool compared) {
  const Place& place = call.place;
  const CopySet all = given | making;
  const bool rowwise = all.rowwise && rowwise_.copy == nullptr;
  const bool transposed = all.transposed && transposed_.copy == nullptr;
  if (rowwise || transposed) {
    run_apart(place, [&, handle = call.layer.handle()](const Place& apart) {
      if (rowwise) rowwise_.copy = std::make_shared<WeightCopy>(handle, apart, false);
      if (transposed) transposed_.copy = std::make_shared<WeightCopy>(handle, apart, true);
    });
  }
  Copies copies;
  copies.making = making;
  if (making.any()) {
    made_ = {};  // should the call fail
    making_ = now;
    if (making.rowwise) rowwise_.copy->before_write(place);
    if (making.transposed) transposed_.copy->before_write(place);
  }
  // A replay comes behind every comparison since the capture.
  const bool overlaps = (making & (covered_ | captured_comparison_)).any() ||
                        (making.any() && now.capture != 0 && !trusted_);
  if (compared) {
    if (making != covered_) forget_contents(place);
    covered_ = making;
    fingerprints_->before_write(place);
    copies.fingerprint = fingerprints_->first();
  } else if (fingerprints_ && overlaps) {
    forget_contents(place);
  }
  if (all.rowwise) copies.rowwise = rowwise_.copy;
  if (all.transposed) copies.transposed = transposed_.copy;
  return copies;
}

bool KeptWeight::end(const Place& place, CopySet made, bool compared) {
  if (has_words()) words_.set(place, made.rowwise, made.transposed);
  if (!place.host) {
    if (!point_ || !point_->move_on(place)) point_ = std::make_shared<StreamPoint>(place);
    if (made.rowwise) rowwise_.copy->made_at(place, point_);
    if (made.transposed) transposed_.copy->made_at(place, point_);
    if (compared) {
      fingerprints_->made_at(place, point_);
      fingerprints_->used_on(place);
    }
  }
  rowwise_.current = rowwise_.current || made.rowwise;
  transposed_.current = transposed_.current || made.transposed;
  captured_ = captured_ || making_.capture != 0;
  made_ = making_;
  return !compared || (place.host && fingerprints_->host_has_changed());
}

}  // namespace octile::binding
