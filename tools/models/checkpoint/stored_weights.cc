#include "tools/models/checkpoint/stored_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "tools/models/config/derive.h"
#include "tools/models/config/extent.h"
#include "tools/models/config/keys.h"
#include "tools/models/config/name_patterns.h"

namespace octile::tools {
namespace {

constexpr std::array<std::string_view, 7> kTowers{
    "vision", "visual", "audio", "image", "mm_projector", "multi_modal_projector", "vit"};

std::vector<std::string_view> parts_of_name(std::string_view name) {
  std::vector<std::string_view> parts;
  for_words(name, '.', [&](std::string_view part) { parts.push_back(part); });
  return parts;
}

bool is_list_of_layers(std::string_view part) {
  constexpr std::array<std::string_view, 5> kLists{"layers", "layer", "h", "blocks", "block"};
  return std::ranges::find(kLists, part) != kLists.end();
}

bool is_tower(std::string_view name) {
  const auto parts = parts_of_name(name);
  return std::ranges::any_of(parts, [](std::string_view part) {
    return std::ranges::any_of(kTowers, [&](std::string_view tower) {
      return part == tower || part.starts_with(std::string(tower) + "_");
    });
  });
}

std::int64_t parts_of(std::int64_t extent, std::int64_t of) { return (extent + of - 1) / of; }

// Returns how many elements of an extent each of the scales serves, 0 if that is not a power of
// two.
std::int64_t block_of(std::int64_t extent, std::int64_t scales) {
  std::int64_t block = 1;
  while (block < extent && parts_of(extent, block) > scales) block *= 2;
  return parts_of(extent, block) == scales ? block : 0;
}

// Returns what a tensor of scales serves. With stacked experts both have a dimension more.
StoredScales scales_of(const StoredTensor& scales, const StoredTensor& weight, bool is_inverse) {
  constexpr std::int64_t kBlockSize = 128, kMxSize = 32;
  const std::int64_t n = weight.shape[weight.shape.size() - 2], k = weight.shape.back();
  std::vector<std::int64_t> shape = scales.shape;
  const bool is_stacked = weight.shape.size() == 3 && !shape.empty() && shape[0] == weight.shape[0];
  if (is_stacked) shape.erase(shape.begin());
  if (shape.size() == 1 && shape[0] == n) shape.push_back(1);
  shape.insert(shape.begin(), shape.size() < 2 ? 2 - shape.size() : 0, 1);
  using enum StoredScales::Kind;
  const auto are = [&](std::int64_t rows, std::int64_t columns) {
    return shape.size() == 2 && shape[0] == rows && shape[1] == columns;
  };
  const bool are_blocks = are(parts_of(n, kBlockSize), parts_of(k, kBlockSize));
  // A small weight may be one block.
  if (is_inverse && are_blocks && scales.shape.size() >= 2) return {kBlock};
  if (are(1, 1)) return {kTensor};
  if (are(n, 1)) return {kRow};
  if (are_blocks) return {kBlock};
  if (are(n, parts_of(k, kMxSize))) return {kMx};
  const std::int64_t rows = shape.size() == 2 ? block_of(n, shape[0]) : 0;
  const std::int64_t columns = shape.size() == 2 ? block_of(k, shape[1]) : 0;
  if (rows > 0 && columns > 0) return {kOther, fmt::format("blocks of {} x {}", rows, columns)};
  return {kOther, fmt::format("scales [{}] for [{}]", fmt::join(scales.shape, ", "),
                              fmt::join(weight.shape, ", "))};
}

StoredScales scales_of(const StoredTensors& tensors, const std::string& name,
                       const StoredTensor& weight) {
  const std::string scales = scales_of_tensor(tensors, name);
  if (scales.empty()) return {};
  const StoredTensor& stored = tensors.at(scales);
  StoredScales of = scales_of(stored, weight, scales.ends_with("_scale_inv"));
  of.is_e8m0 = stored.dtype == "F8_E8M0";
  return of;
}

// Returns the matrix whose bias the name is; empty if it is none.
std::string weight_of_bias(const StoredTensors& tensors, std::string_view name) {
  for (const auto& [end, weight] : {std::pair(std::string_view(".bias"), ".weight"),
                                    std::pair(std::string_view("_bias"), "")}) {
    if (!name.ends_with(end)) continue;
    std::string of = std::string(name.substr(0, name.size() - end.size())) + weight;
    const auto found = tensors.find(of);
    if (found != tensors.end() && !module_of_matrix(of, found->second).empty()) return of;
  }
  return {};
}

std::int64_t elements_of(const StoredTensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t extent : tensor.shape) count = saturating_product(count, extent);
  return count;
}

// The layers and experts that have equal weights, which are keyed without them.
struct StoredPlaces {
  std::set<std::pair<std::string, std::int32_t>> layers;  // with the names before the numbers
  std::set<std::int32_t> experts;
};
using AllPlaces = std::map<StoredWeight, StoredPlaces>;

// Returns the number of the first layer of each list.
std::map<std::string, std::int32_t> first_layers(const AllPlaces& found) {
  std::map<std::string, std::int32_t> counts;
  for (const auto& [key, places] : found) {
    for (const auto& [before, layer] : places.layers) {
      counts[before] = std::max(counts[before], layer + 1);
    }
  }
  std::vector<std::pair<std::int32_t, std::string>> lists;
  for (const auto& [before, count] : counts) lists.emplace_back(-count, before);
  std::ranges::sort(lists);
  std::int32_t first = 0;
  for (const auto& [count, before] : lists) {
    counts[before] = first;
    first = std::min(first - count, std::int32_t{1} << 30);
  }
  return counts;
}

StoredWeight key_of(const StoredTensors& tensors, const std::string& name, const std::string& bare,
                    const StoredShape& shape, const ModuleName& module) {
  const StoredTensor& tensor = tensors.at(name);
  StoredWeight key{.role = module.role,
                   .n = shape.n,
                   .k = shape.k,
                   .experts = shape.experts,
                   .bias = bias_of_module(tensors, bare) != nullptr,
                   .dtype = tensor.dtype,
                   .scales = scales_of(tensors, name, tensor)};
  if (module.layer) key.layers = {0};
  return key;
}

}  // namespace

std::optional<std::int32_t> index_of_part(std::string_view part) {
  std::int32_t index = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
  constexpr std::int32_t kMostIndex = 1'000'000;
  const bool is_index = error == std::errc() && end == part.data() + part.size();
  return is_index && index >= 0 && index <= kMostIndex ? std::optional(index) : std::nullopt;
}

bool is_scale(const StoredTensors& tensors, const std::string& name) {
  const std::string module = name.substr(0, name.rfind('.'));
  if (name.ends_with(".scale") && tensors.contains(module + ".weight")) return true;
  return std::ranges::any_of(
      std::array{"_scale_inv", "_scale", "_scale_2", "_zero_point", "_shape", ".g_idx", "_scales",
                 "qzeros", ".scales", "k_scale", "v_scale", "input_scale"},
      [&](const char* end) { return name.ends_with(end); });
}

std::string scales_of_tensor(const StoredTensors& tensors, const std::string& name) {
  const std::string bare(without_weight(name));
  for (std::string scales : {name + "_scale_inv", name + "_scale", bare + ".scale"}) {
    if (tensors.contains(scales)) return scales;
  }
  return {};
}

ModuleName module_of(std::string_view name) {
  ModuleName module;
  const std::vector<std::string_view> parts = parts_of_name(name);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto index = index_of_part(parts[i]);
    if (index && i > 0 && !module.layer && is_list_of_layers(parts[i - 1])) {
      module.layer = index;
      std::swap(module.before, module.role);
      continue;
    }
    if (index && i > 0 && parts[i - 1] == "experts") {
      module.expert = index;
      continue;
    }
    if (!module.role.empty()) module.role += '.';
    module.role += parts[i];
  }
  for (const std::string_view prefix : {"model.", "language_model.", "model."}) {
    if (!module.layer && module.role.starts_with(prefix)) module.role.erase(0, prefix.size());
  }
  return module;
}

std::string_view without_weight(std::string_view name) {
  constexpr std::string_view kEnd = ".weight";
  return name.ends_with(kEnd) ? name.substr(0, name.size() - kEnd.size()) : name;
}

bool StoredWeight::is_packed() const { return is_packed_type(dtype); }

StatedSizes stated_sizes(const Json& config) {
  const Json& text = language_of(config);
  const auto count = [&](Keys::Names names) {
    Keys keys(text, "", "");
    const std::int64_t value = keys.count_or(names, {0, ""}).value;
    return keys.status() ? value : 0;
  };
  const std::int64_t heads =
      count({"num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"});
  const std::int64_t kv_heads =
      count({"num_key_value_heads", "num_kv_heads", "n_kv_heads", "attn_config.kv_n_heads"});
  return {count({"hidden_size", "n_embd", "d_model", "dim"}),
          count(kExpertCounts),
          count(kExpertsPerToken),
          {heads, kv_heads > 0 ? kv_heads : heads, count({"linear_num_key_heads"})},
          model_type_of(config)};
}

void complete_experts(StoredWeight& weight, std::int64_t numbered) {
  if (weight.experts == 0) weight.experts = numbered;
  if (weight.experts == 0) return;
  weight.role = usual_name(weight.role);
  if (("." + weight.role).find(".experts.") == std::string::npos) {  // a tensor of Granite's
    weight.role.insert(weight.role.rfind('.') + 1, "experts.");
  }
}

StoredModel stored_model(const StoredTensors& tensors, const StatedSizes& stated) {
  StoredModel model;
  AllPlaces found;
  const StoredShapes shapes(tensors, stated);
  for (const auto& [name, tensor] : tensors) {
    if (is_scale(tensors, name)) continue;
    if (is_tower(name)) {
      model.elsewhere = saturating_sum(model.elsewhere, elements_of(tensor));
      continue;
    }
    if (!weight_of_bias(tensors, name).empty()) continue;  // counts with its weight
    const std::string bare = module_of_matrix(name, tensor);
    if (bare.empty() || name.ends_with("bias")) {
      model.vectors = saturating_sum(model.vectors, elements_of(tensor));
      continue;
    }
    const ModuleName module = module_of(bare);
    StoredPlaces& places = found[key_of(tensors, name, bare, shapes[name], module)];
    if (module.layer) places.layers.emplace(module.before, *module.layer);
    if (module.expert) places.experts.insert(*module.expert);
  }
  const auto first = first_layers(found);
  for (const auto& [key, places] : found) {
    StoredWeight weight = key;
    weight.layers.clear();
    for (const auto& [before, layer] : places.layers) {
      weight.layers.push_back(first.at(before) + layer);
    }
    std::ranges::sort(weight.layers);
    complete_experts(weight, std::ssize(places.experts));
    model.weights.push_back(std::move(weight));
  }
  std::ranges::stable_sort(model.weights, {}, &StoredWeight::role);
  return model;
}

}  // namespace octile::tools
