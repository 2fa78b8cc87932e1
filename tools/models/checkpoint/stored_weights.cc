#include "tools/models/checkpoint/stored_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "tools/models/config/extent.h"

namespace octile::tools {
namespace {

constexpr std::array<std::string_view, 7> kTowers{
    "vision", "visual", "audio", "image", "mm_projector", "multi_modal_projector", "vit"};

// A name, taken apart.
struct ModuleName {
  std::string role;
  std::optional<std::int32_t> layer, expert;
};

std::vector<std::string_view> parts_of_name(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::optional<std::int32_t> index_of_part(std::string_view part) {
  std::int32_t index = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
  if (error != std::errc() || end != part.data() + part.size() || index < 0) return std::nullopt;
  return index;
}

// Names that models give to the same parts.
std::string_view usual_part(std::string_view part, bool of_expert) {
  if (part == "block_sparse_moe") return "mlp";
  if (!of_expert) return part;
  if (part == "w1" || part == "linear_fc1_gate") return "gate_proj";
  if (part == "w3") return "up_proj";
  if (part == "w2") return "down_proj";
  return part;
}

ModuleName module_of(std::string_view name) {
  ModuleName module;
  const std::vector<std::string_view> parts = parts_of_name(name);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto index = index_of_part(parts[i]);
    if (index && i > 0 && !module.layer &&
        (parts[i - 1] == "layers" || parts[i - 1] == "h" || parts[i - 1] == "blocks")) {
      module.layer = index;
      module.role.clear();
      continue;
    }
    if (index && i > 0 && parts[i - 1] == "experts") {
      module.expert = index;
      continue;
    }
    if (!module.role.empty()) module.role += '.';
    module.role += usual_part(parts[i], module.expert.has_value());
  }
  for (const std::string_view prefix : {"model.", "language_model.", "model."}) {
    if (!module.layer && module.role.starts_with(prefix)) module.role.erase(0, prefix.size());
  }
  return module;
}

bool is_tower(std::string_view name) {
  const auto parts = parts_of_name(name);
  return std::ranges::any_of(parts, [](std::string_view part) {
    return std::ranges::any_of(kTowers, [&](std::string_view tower) {
      return part == tower || part.starts_with(std::string(tower) + "_");
    });
  });
}

bool is_scale(std::string_view name) {
  return std::ranges::any_of(
      std::array{"_scale_inv", "_scale", "_scale_2", "_zero_point", "_shape", ".g_idx", "_scales",
                 "qzeros", ".scales", "k_scale", "v_scale", "input_scale"},
      [&](const char* end) { return name.ends_with(end); });
}

// Returns which weights one scale serves.
StoredScales scales_of(const StoredTensors& tensors, const std::string& name,
                       const StoredTensor& weight) {
  for (const char* end : {"_scale_inv", "_scale"}) {
    const auto found = tensors.find(name + end);
    if (found == tensors.end()) continue;
    const std::vector<std::int64_t>& shape = found->second.shape;
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) {
      count = saturating_product(count, std::max<std::int64_t>(1, extent));
    }
    const std::int64_t n = weight.shape[weight.shape.size() - 2], k = weight.shape.back();
    const std::int64_t last = shape.empty() ? 1 : shape.back();
    const bool block = std::string_view(end) == "_scale_inv" && shape.size() >= 2 &&
                       shape[shape.size() - 2] == (n + 127) / 128 && last == (k + 127) / 128;
    if (block) return StoredScales::kBlock;
    if (count == 1) return StoredScales::kTensor;
    if (last == 1 || (shape.size() == 1 && last == n)) return StoredScales::kRow;
    if (last == (k + 127) / 128) return StoredScales::kBlock;
    if (last == (k + 31) / 32) return StoredScales::kMx;
  }
  return StoredScales::kNone;
}

// Returns the weight whose bias the name is; empty if it is none.
std::string weight_of_bias(const StoredTensors& tensors, std::string_view name) {
  for (const auto& [end, weight] : {std::pair(std::string_view(".bias"), ".weight"),
                                    std::pair(std::string_view("_bias"), "")}) {
    if (!name.ends_with(end)) continue;
    std::string of = std::string(name.substr(0, name.size() - end.size())) + weight;
    const auto found = tensors.find(of);
    if (found != tensors.end() && found->second.shape.size() >= 2) return of;
  }
  return {};
}

std::int64_t elements_of(const StoredTensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t extent : tensor.shape) count = saturating_product(count, extent);
  return count;
}

// What is equal for the layers and experts that one StoredWeight stands for.
using StoredKey =
    std::tuple<std::string, std::int64_t, std::int64_t, std::string, StoredScales, bool>;
struct StoredPlaces {
  std::set<std::int32_t> layers;
  std::set<std::int32_t> experts;
  std::int64_t stacked = 0;  // experts of a tensor of three dimensions
};

}  // namespace

bool StoredWeight::is_packed() const {
  return std::ranges::count(std::array<std::string_view, 6>{"U8", "I8", "I32", "U32", "F4", "I64"},
                            std::string_view(dtype)) > 0;
}

std::vector<StoredWeight> stored_weights(const StoredTensors& tensors, std::int64_t& elsewhere,
                                         std::int64_t& vectors) {
  std::map<StoredKey, StoredPlaces> found;
  for (const auto& [name, tensor] : tensors) {
    if (is_scale(name)) continue;
    if (is_tower(name)) {
      elsewhere = saturating_sum(elsewhere, elements_of(tensor));
      continue;
    }
    const bool named = name.ends_with(".weight");
    const bool experts = name.find("experts.") != std::string::npos;
    const bool matrix =
        (tensor.shape.size() == 2 && (named || experts)) || (tensor.shape.size() == 3 && experts);
    if (!weight_of_bias(tensors, name).empty()) continue;  // counts with its weight
    if (!matrix || name.ends_with("bias")) {
      vectors = saturating_sum(vectors, elements_of(tensor));
      continue;
    }
    const std::string bare = named ? name.substr(0, name.size() - 7) : name;
    const ModuleName module = module_of(bare);
    const std::size_t last = tensor.shape.size() - 1;
    StoredPlaces& places =
        found[{module.role, tensor.shape[last - 1], tensor.shape[last], tensor.dtype,
               scales_of(tensors, name, tensor),
               tensors.contains(bare + ".bias") || tensors.contains(bare + "_bias")}];
    places.layers.insert(module.layer.value_or(-1));
    if (module.expert) places.experts.insert(*module.expert);
    if (last == 2) places.stacked = tensor.shape[0];
  }
  std::vector<StoredWeight> all;
  for (const auto& [key, places] : found) {
    StoredWeight weight{.role = std::get<0>(key),
                        .layers = {},
                        .n = std::get<1>(key),
                        .k = std::get<2>(key),
                        .bias = std::get<5>(key),
                        .dtype = std::get<3>(key),
                        .scales = std::get<4>(key)};
    if (*places.layers.begin() >= 0) {
      weight.layers.assign(places.layers.begin(), places.layers.end());
    }
    weight.is_stacked = places.stacked > 0;
    weight.experts = places.stacked > 0 ? places.stacked : std::ssize(places.experts);
    all.push_back(std::move(weight));
  }
  return all;
}

}  // namespace octile::tools
