#include "weights.h"

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "replay_words.h"
#include "streams.h"

namespace octile::binding {
namespace {

std::atomic<std::int64_t> epoch{0};
std::atomic<int> sharing{0};
// A graph that changes weights was captured: its replays are not seen here.
std::atomic<bool> replays_change_weights{false};

// The contents of a weight, as far as the host can tell, and the capture that copies were made in.
struct Moment {
  std::int64_t version = -1, epoch = -1;
  std::uint64_t capture = 0;

  friend bool operator==(const Moment&, const Moment&) = default;
};

// One weight and its copies.
class KeptWeight {
 public:
  // Returns the copies, or none if replays use them and they do not fit this call.
  std::pair<std::shared_ptr<WeightCopy>, std::shared_ptr<WeightCopy>> copies(
      const Tensor& weight, const Place& place, RecipeCode recipe, bool rowwise, bool transposed,
      const Scaling& scaling);
  // Another parameter has this memory now.
  void take_over();

  std::int64_t token = 0;  // guarded by the registry

 private:
  struct Slot {
    std::shared_ptr<WeightCopy> copy;
    bool current = false;
  };

  // Replays know from words whether the copies are current.
  bool shared() const { return words_.first != nullptr; }
  bool fits(const Tensor& weight, const Place& place, const WeightSource& source) const;
  void start_over(const Tensor& weight, const Place& place, const WeightSource& source);
  const std::uint32_t* skip_of(const Moment& now, bool rowwise, bool transposed) const;
  void allocate_missing(const Place& place, bool rowwise, bool transposed);
  void refresh(const Tensor& weight, const Place& place, const Moment& now, bool rowwise,
               bool transposed, const Scaling& scaling);

  std::mutex mutex_;
  // Keeps the weight's memory alive, so that no other tensor can have the address.
  std::optional<Tensor> memory_;
  std::int32_t device_index_ = 0;
  WeightSource source_;
  Moment made_;
  Slot rowwise_, transposed_;
  bool captured_ = false;  // graphs have the copies' addresses
  CopyWords words_;
};

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

// Returns the word by which the work about to be enqueued learns on the device that it has nothing
// to do, or null if it always has.
const std::uint32_t* KeptWeight::skip_of(const Moment& now, bool rowwise, bool transposed) const {
  if (!shared() || (now.capture != 0 && sharing.load() == 0)) return nullptr;
  if (now.capture == 0 && !replays_change_weights.load()) return nullptr;
  // Written in place, and no word was cleared since.
  if (now.epoch == made_.epoch && now.version != made_.version) return nullptr;
  return words_.of(rowwise, transposed);
}

void KeptWeight::allocate_missing(const Place& place, bool rowwise, bool transposed) {
  rowwise = rowwise && rowwise_.copy == nullptr;
  transposed = transposed && transposed_.copy == nullptr;
  if (!rowwise && !transposed) return;
  run_apart(place, [&](const Place& apart) {
    if (rowwise) rowwise_.copy = std::make_shared<WeightCopy>(source_, apart, false);
    if (transposed) transposed_.copy = std::make_shared<WeightCopy>(source_, apart, true);
  });
}

void KeptWeight::refresh(const Tensor& weight, const Place& place, const Moment& now, bool rowwise,
                         bool transposed, const Scaling& scaling) {
  const bool unsure = shared() && now.capture == 0 && replays_change_weights.load();
  const bool stale = now != made_ || unsure;
  rowwise = rowwise && (stale || !rowwise_.current);
  transposed = transposed && (stale || !transposed_.current);
  if (!rowwise && !transposed) return;
  const std::uint32_t* skip = skip_of(now, rowwise, transposed);
  if (stale) rowwise_.current = transposed_.current = false;
  allocate_missing(place, rowwise, transposed);
  made_ = {};  // should the next lines throw
  make_copies(weight, source_, place, rowwise ? rowwise_.copy.get() : nullptr,
              transposed ? transposed_.copy.get() : nullptr, scaling, skip);
  if (shared()) words_.set(place, rowwise, transposed);
  rowwise_.current = rowwise_.current || rowwise;
  transposed_.current = transposed_.current || transposed;
  captured_ = captured_ || now.capture != 0;
  made_ = now;
}

std::pair<std::shared_ptr<WeightCopy>, std::shared_ptr<WeightCopy>> KeptWeight::copies(
    const Tensor& weight, const Place& place, RecipeCode recipe, bool rowwise, bool transposed,
    const Scaling& scaling) {
  const WeightSource source = source_of(weight, recipe);
  const std::lock_guard lock(mutex_);
  if (!fits(weight, place, source)) {
    if (captured_) return {};
    start_over(weight, place, source);
  }
  const Moment now{version_of(weight), epoch.load(), capture_of(place)};
  if (now.capture != 0 && !shared() && sharing.load() > 0) {
    words_ = take_replay_words(place);
  }
  refresh(weight, place, now, rowwise, transposed, scaling);
  return {rowwise ? rowwise_.copy : nullptr, transposed ? transposed_.copy : nullptr};
}

struct Registry {
  std::mutex mutex;
  std::int64_t last_token = 0;
  std::unordered_map<const void*, std::shared_ptr<KeptWeight>> by_address;

  std::shared_ptr<KeptWeight> find(const void* address) {
    const std::lock_guard lock(mutex);
    const auto found = by_address.find(address);
    return found == by_address.end() ? nullptr : found->second;
  }
};
// Never destroyed: at exit tensors may outlive what frees them.
Registry& registry() {
  static auto* made = new Registry;
  return *made;
}

}  // namespace

WeightCodes::WeightCodes(const Place& place, std::shared_ptr<WeightCopy> rowwise,
                         std::shared_ptr<WeightCopy> transposed)
    : place_(place), rowwise_(std::move(rowwise)), transposed_(std::move(transposed)) {
  for (WeightCopy* copy : {rowwise_.get(), transposed_.get()}) {
    if (copy != nullptr) copy->before(place_);
  }
}

WeightCodes::~WeightCodes() {
  try {
    for (WeightCopy* copy : {rowwise_.get(), transposed_.get()}) {
      if (copy != nullptr) copy->used_on(place_);
    }
  } catch (...) {  // The driver has failed, and with it the work that used the copies.
  }
}

const Quantized& WeightCodes::present(const std::shared_ptr<WeightCopy>& copy) {
  if (!copy) throw std::logic_error("octile: an FP8 copy that is needed was not made");
  return copy->quantized();
}

WeightCodes weight_codes(const Tensor& weight, const Place& place, RecipeCode recipe, bool rowwise,
                         bool transposed, const Scaling& scaling) {
  if (const auto kept = registry().find(weight.data_ptr())) {
    auto [row, column] = kept->copies(weight, place, recipe, rowwise, transposed, scaling);
    if (row || column) return {place, std::move(row), std::move(column)};
  }
  // Nobody would find the other copy again.
  const WeightSource source = source_of(weight, recipe);
  auto copy = std::make_shared<WeightCopy>(source, place, !rowwise);
  make_copies(weight, source, place, rowwise ? copy.get() : nullptr, rowwise ? nullptr : copy.get(),
              scaling, nullptr);
  if (rowwise) return {place, std::move(copy), nullptr};
  return {place, nullptr, std::move(copy)};
}

std::int64_t keep_weight(Tensor weight) {
  reserve_replay_words(place_of(weight));
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::shared_ptr<KeptWeight>& kept = all.by_address[weight.data_ptr()];
  if (!kept) kept = std::make_shared<KeptWeight>();
  kept->take_over();
  return kept->token = ++all.last_token;
}

void forget_weight(std::int64_t token) {
  Registry& all = registry();
  std::shared_ptr<KeptWeight> forgotten;  // freed without the lock
  const std::lock_guard lock(all.mutex);
  for (auto entry = all.by_address.begin(); entry != all.by_address.end(); ++entry) {
    if (entry->second->token != token) continue;
    forgotten = std::move(entry->second);
    all.by_address.erase(entry);
    return;
  }
}

void weights_changed() {
  ++epoch;
  if (clear_replay_words()) replays_change_weights = true;
}

void share_weights(bool begin) { sharing += begin ? 1 : -1; }

}  // namespace octile::binding
