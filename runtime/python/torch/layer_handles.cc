#include "layer_handles.h"

#include <mutex>
#include <unordered_map>

#include "fork.h"

namespace octile::binding {
namespace {

struct LayerKeyHash {
  std::size_t operator()(const LayerKey& key) const {
    std::uint64_t hash = 0;
    const auto add = [&](auto value) {
      hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15U;
    };
    add(key.n);
    add(key.k);
    add(key.experts);
    add(key.history);
    add(key.device);
    add(key.recipe << 24U | key.type << 20U | key.weight << 16U | key.gradient << 12U |
        key.bias << 8U | (key.accumulate ? 2 : 0) | (key.sentry ? 1 : 0));
    return hash ^ (hash >> 32U);
  }
};

// Guarded by ProcessWide::kLayers, and never destroyed.
using Layers = std::unordered_map<LayerKey, KnownLayer*, LayerKeyHash>;
Layers& layers = *new Layers;

// Counts the forks between the first process and this one, from 1 on, so that threads know handles
// of a parent.
std::uint64_t this_process = 1;

const InChild kForgetsParentsLayers([] {
  layers.clear();
  ++this_process;
});

octile_layer* create(const LayerKey& key) {
  octile_layer_desc desc{};
  desc.struct_size = sizeof desc;
  desc.recipe = recipe_name(key.recipe);
  desc.n = key.n;
  desc.k = key.k;
  desc.experts = key.experts;
  desc.dtype = key.type;
  desc.weight_dtype = key.weight;
  desc.weight_gradient_dtype = key.gradient;
  desc.accumulate = key.accumulate ? 1 : 0;
  desc.bias_dtype = key.bias;
  desc.sentry = key.sentry ? 1 : 0;
  desc.history = key.history;
  octile_layer* handle = nullptr;
  check(octile_layer_create(library(), device_name(key.device).c_str(), &desc, &handle));
  return handle;
}

KnownLayer* known_layer(const LayerKey& key) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kLayers));
  KnownLayer*& known = layers[key];
  if (known == nullptr) known = new KnownLayer(create(key));
  return known;
}

}  // namespace

std::int32_t device_of(const Place& place) { return place.host ? -1 : place.device_index; }

void KnownLayer::note(std::uint32_t uses) {
  std::atomic<std::uint64_t>& word = uses_.at(uses / kWord);
  const std::uint64_t bit = std::uint64_t{1} << (uses % kWord);
  if ((word.load(std::memory_order_relaxed) & bit) == 0) word |= bit;
}

std::string KnownLayer::problems() const {
  std::string texts;
  for (std::uint32_t uses = 0; uses < kWord * uses_.size(); ++uses) {
    if ((uses_.at(uses / kWord).load() >> (uses % kWord) & 1U) == 0) continue;
    std::size_t size = 0;
    check(octile_layer_problems(handle_, uses, nullptr, &size));
    std::string text(size, '\0');
    check(octile_layer_problems(handle_, uses, text.data(), &size));
    texts.append(text, 0, size - 1);  // without the zero behind it
  }
  return texts;
}

Layer& Layer::of(const LayerKey& key) {
  constexpr std::size_t kAtHand = 64;
  thread_local std::array<Layer, kAtHand> at_hand;
  Layer& layer = at_hand.at(LayerKeyHash()(key) % kAtHand);
  if (layer.process_ == this_process && layer.key_ == key) return layer;
  KnownLayer* const known = known_layer(key);
  layer = {};
  layer.process_ = this_process;
  layer.key_ = key;
  layer.known_ = known;
  return layer;
}

const LayerSizes& Layer::sizes(std::int64_t tokens, std::uint32_t uses) {
  for (const LayerSizes& sizes : sizes_) {
    if (sizes.tokens == tokens && sizes.uses == uses) return sizes;
  }
  LayerSizes sizes{.tokens = tokens, .uses = uses};
  std::size_t forward = 0, backward = 0;
  check(octile_layer_workspace_size(handle(), tokens, uses, &forward, &backward));
  sizes.workspace = forward + backward;  // one of them is left out
  sizes.kept.struct_size = sizeof sizes.kept;
  if ((uses & OCTILE_LAYER_KEEP_X) != 0)
    check(octile_layer_copy_layout(handle(), OCTILE_LAYER_X, 1, tokens, &sizes.kept));
  LayerSizes& kept = sizes_.at(oldest_++ % sizes_.size());
  return kept = sizes;
}

void Layer::prepare(std::int64_t lo, std::int64_t hi, std::uint32_t uses) {
  const octile_prepare_options options = prepare_options();
  check(octile_layer_prepare_with(handle(), lo, hi, uses, &options));
  known_->note(uses);
}

std::string layer_problems() {
  const std::scoped_lock lock(process_mutex(ProcessWide::kLayers));
  std::string texts;
  for (const auto& [key, layer] : layers) {
    if (layer != nullptr) texts += layer->problems();
  }
  return texts;
}

}  // namespace octile::binding
