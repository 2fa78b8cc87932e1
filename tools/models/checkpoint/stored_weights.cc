#include "tools/models/checkpoint/stored_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

std::int64_t parts_of(std::int64_t extent, std::int64_t of) { return (extent + of - 1) / of; }

// Returns how many elements of an extent each of the scales serves, 0 if that is not a power of
// two.
std::int64_t block_of(std::int64_t extent, std::int64_t scales) {
  std::int64_t block = 1;
  while (block < extent && parts_of(extent, block) > scales) block *= 2;
  return parts_of(extent, block) == scales ? block : 0;
}

struct Scales {
  StoredScales kind = StoredScales::kNone;
  std::string text = {};
  friend auto operator<=>(const Scales&, const Scales&) = default;
};

// Returns what a tensor of scales serves. With stacked experts both have a dimension more.
Scales scales_of(const StoredTensor& scales, const StoredTensor& weight, bool is_inverse) {
  constexpr std::int64_t kBlock = 128, kMx = 32;
  const std::int64_t n = weight.shape[weight.shape.size() - 2], k = weight.shape.back();
  std::vector<std::int64_t> shape = scales.shape;
  const bool is_stacked = weight.shape.size() == 3 && !shape.empty() && shape[0] == weight.shape[0];
  if (is_stacked) shape.erase(shape.begin());
  if (shape.size() == 1 && shape[0] == n) shape.push_back(1);
  shape.insert(shape.begin(), shape.size() < 2 ? 2 - shape.size() : 0, 1);
  const auto are = [&](std::int64_t rows, std::int64_t columns) {
    return shape.size() == 2 && shape[0] == rows && shape[1] == columns;
  };
  const bool are_blocks = are(parts_of(n, kBlock), parts_of(k, kBlock));
  // A small weight may be one block.
  if (is_inverse && are_blocks && scales.shape.size() >= 2) return {StoredScales::kBlock};
  if (are(1, 1)) return {StoredScales::kTensor};
  if (are(n, 1)) return {StoredScales::kRow};
  if (are_blocks) return {StoredScales::kBlock};
  if (are(n, parts_of(k, kMx))) return {StoredScales::kMx};
  const std::int64_t rows = shape.size() == 2 ? block_of(n, shape[0]) : 0;
  const std::int64_t columns = shape.size() == 2 ? block_of(k, shape[1]) : 0;
  if (rows > 0 && columns > 0)
    return {StoredScales::kOther, fmt::format("blocks of {} x {}", rows, columns)};
  return {StoredScales::kOther, fmt::format("scales [{}] for [{}]", fmt::join(scales.shape, ", "),
                                            fmt::join(weight.shape, ", "))};
}

Scales scales_of(const StoredTensors& tensors, const std::string& name,
                 const StoredTensor& weight) {
  for (const char* end : {"_scale_inv", "_scale"}) {
    const auto found = tensors.find(name + end);
    if (found != tensors.end())
      return scales_of(found->second, weight, std::string_view(end) == "_scale_inv");
  }
  return {};
}

// Returns true for tensors that are multiplied: a matrix, and those of all experts in one tensor.
bool is_matrix(std::string_view name, const StoredTensor& tensor) {
  const bool experts = name.find("experts.") != std::string_view::npos;
  const bool named = name.ends_with(".weight");
  return (tensor.shape.size() == 2 && (named || experts)) || (tensor.shape.size() == 3 && experts);
}

// Returns the matrix whose bias the name is; empty if it is none.
std::string weight_of_bias(const StoredTensors& tensors, std::string_view name) {
  for (const auto& [end, weight] : {std::pair(std::string_view(".bias"), ".weight"),
                                    std::pair(std::string_view("_bias"), "")}) {
    if (!name.ends_with(end)) continue;
    std::string of = std::string(name.substr(0, name.size() - end.size())) + weight;
    const auto found = tensors.find(of);
    if (found != tensors.end() && is_matrix(of, found->second)) return of;
  }
  return {};
}

std::int64_t elements_of(const StoredTensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t extent : tensor.shape) count = saturating_product(count, extent);
  return count;
}

// Properties that the layers and experts of one StoredWeight share.
using StoredKey = std::tuple<std::string, std::int64_t, std::int64_t, std::string, Scales, bool>;
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
    if (!weight_of_bias(tensors, name).empty()) continue;  // counts with its weight
    if (!is_matrix(name, tensor) || name.ends_with("bias")) {
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
                        .scales = std::get<4>(key).kind,
                        .scales_text = std::get<4>(key).text};
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
