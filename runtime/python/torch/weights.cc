#include "weights.h"

#include <atomic>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "fork.h"

namespace octile::binding {
namespace {

using Kept = std::shared_ptr<KeptWeight>;

std::atomic<bool> any_gathered{false};
std::atomic<std::int64_t> quantizations{0}, copies_made{0};

// Guarded by ProcessWide::kWeights. A weight's own mutex is not locked meanwhile, but tried in the
// child of a fork.
struct Registry {
  std::int64_t last_token = 0;
  std::unordered_map<std::int64_t, Kept> by_token;
  std::unordered_map<const void*, Kept> by_address;

  Kept find(const void* address) {
    const std::scoped_lock lock(process_mutex(ProcessWide::kWeights));
    const auto found = by_address.find(address);
    return found == by_address.end() ? nullptr : found->second;
  }
  Kept find(std::int64_t token) {
    const std::scoped_lock lock(process_mutex(ProcessWide::kWeights));
    const auto found = by_token.find(token);
    return found == by_token.end() ? nullptr : found->second;
  }
  std::int64_t add(const Kept& kept) {
    by_token.emplace(++last_token, kept);
    ++kept->holders;
    return last_token;
  }
};
// Never destroyed: at exit tensors may outlive what frees them.
Registry& registry = *new Registry;

// In the child of a fork: weights that another thread of the parent was using begin anew. Their
// copies stay in memory, because nothing is known about it.
void leave_used_weights() {
  std::unordered_map<const KeptWeight*, Kept> anew;
  const auto replace = [&](Kept& kept) {
    if (kept->survives_fork()) return;
    Kept& other = anew[kept.get()];
    if (!other) {
      other = std::make_shared<KeptWeight>();
      other->registered_at = kept->registered_at;
      other->holders = kept->holders;
      new Kept(kept);  // keeps the parent's from being destroyed
    }
    kept = other;
  };
  for (auto& [address, kept] : registry.by_address) replace(kept);
  for (auto& [token, kept] : registry.by_token) replace(kept);
}
const InChild kLeavesUsedWeights(leave_used_weights);

}  // namespace

WeightUse::WeightUse(const WeightCall& call) : place_(call.place) {
  use_.operand.struct_size = sizeof use_.operand;
  use_.operand.source = call.weight.data_ptr();
  kept_ = registry.find(call.weight.data_ptr());
  if (!kept_) return;
  reading_lock_ = std::shared_lock(kept_->mutex());
  if (kept_->current(call, use_)) return;
  reading_lock_.unlock();
  making_lock_ = std::unique_lock(kept_->mutex());
  if (!kept_->begin(call, use_)) {
    making_lock_ = {};
    kept_.reset();
  } else if (!use_.makes()) {
    read_from_now_on();
  }
}

WeightUse::~WeightUse() {
  try {
    if (making_lock_) kept_->fail(place_);
    for (WeightCopy* copy : {use_.rowwise.get(), use_.transposed.get()}) {
      if (copy != nullptr) copy->used_on(place_);
    }
  } catch (...) {  // The driver has failed, and with it the work that used the copies.
  }
}

std::uint32_t WeightUse::forward_uses() const {
  if (!kept_) return 0;
  return OCTILE_LAYER_KEEP_W | (use_.transposed ? OCTILE_LAYER_INPUT_GRADIENT : 0) |
         (use_.operand.fingerprint != nullptr ? OCTILE_LAYER_COMPARE_W : 0);
}

std::uint32_t WeightUse::backward_uses() const { return use_.makes() ? 0 : OCTILE_LAYER_KEEP_W; }

std::uint32_t WeightUse::memory_uses() const { return kept_ ? OCTILE_LAYER_KEEP_W : 0; }

void WeightUse::made() {
  if (!use_.makes()) return;
  if (!kept_ || kept_->end(place_, use_)) {
    ++quantizations;
    copies_made += use_.rowwise && use_.transposed ? 2 : 1;
  }
  if (kept_) read_from_now_on();
}

// Others may read the copies too, but not make them again.
void WeightUse::read_from_now_on() {
  making_lock_.unlock();
  reading_lock_ = std::shared_lock(kept_->mutex());
}

std::int64_t weight_quantizations() {
  std::unordered_set<Kept> all;
  {
    const std::scoped_lock lock(process_mutex(ProcessWide::kWeights));
    for (const auto& [token, kept] : registry.by_token) all.insert(kept);
  }
  std::int64_t found = quantizations.load();
  for (const Kept& kept : all) found += kept->device_changes();
  return found;
}

std::int64_t weight_copies_made() { return copies_made.load(); }

std::int64_t keep_weight(Tensor weight) {
  reserve_replay_words(place_of(weight));
  Kept kept;
  std::int64_t token = 0;
  {
    const std::scoped_lock lock(process_mutex(ProcessWide::kWeights));
    Kept& known = registry.by_address[weight.data_ptr()];
    if (!known) known = std::make_shared<KeptWeight>();
    kept = known;
    kept->registered_at = weight.data_ptr();
    token = registry.add(kept);
  }
  kept->take_over(weight);
  return token;
}

void forget_weight(std::int64_t token) {
  Kept forgotten;  // freed without the lock
  const std::scoped_lock lock(process_mutex(ProcessWide::kWeights));
  auto entry = registry.by_token.extract(token);
  if (!entry) return;
  forgotten = std::move(entry.mapped());
  if (--forgotten->holders > 0) return;
  const auto found = registry.by_address.find(forgotten->registered_at);
  if (found != registry.by_address.end() && found->second == forgotten)
    registry.by_address.erase(found);
}

void trust_weight(std::int64_t token, bool trusted) {
  if (const Kept kept = registry.find(token)) kept->trust(trusted);
}

void keep_copies(std::int64_t token, std::int64_t keeping) {
  if (keeping < 0 || keeping > static_cast<int>(Keeping::kBoth))
    refuse("keeping is " + std::to_string(keeping) + "; allowed are 0, 1 and 2");
  if (const Kept kept = registry.find(token)) kept->keep(static_cast<Keeping>(keeping));
}

std::int64_t gather_weight(Tensor weight, std::int64_t token, bool same) {
  reserve_replay_words(place_of(weight));
  any_gathered = true;
  Kept kept, former;  // freed without the lock
  {
    const std::scoped_lock lock(process_mutex(ProcessWide::kWeights));
    if (token == 0) token = registry.add(std::make_shared<KeptWeight>());
    kept = registry.by_token.at(token);
  }
  kept->gathered(weight, same);
  const std::scoped_lock lock(process_mutex(ProcessWide::kWeights));
  kept->registered_at = weight.data_ptr();
  former = std::exchange(registry.by_address[weight.data_ptr()], kept);
  return token;
}

void release_weight(Tensor weight, std::int64_t token) {
  Kept released;  // frees its copies without the lock
  {
    const std::scoped_lock lock(process_mutex(ProcessWide::kWeights));
    const auto found = registry.by_address.find(weight.data_ptr());
    const auto known = registry.by_token.find(token);
    if (found == registry.by_address.end() || known == registry.by_token.end() ||
        found->second != known->second)
      return;
    released = known->second;
    registry.by_address.erase(found);
  }
  released->released();
}

void note_pass(const Tensor& weight, Pass pass) {
  if (!any_gathered.load()) return;
  if (const Kept kept = registry.find(weight.data_ptr())) kept->note(pass);
}

void weight_changed(std::int64_t token) {
  if (const Kept kept = registry.find(token)) kept->changed();
}

void weights_changed() {
  all_weights_changed();
  replays_see_changes();
}

}  // namespace octile::binding
