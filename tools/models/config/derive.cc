#include "tools/models/config/derive.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "tools/models/config/architectures.h"
#include "tools/models/document.h"

namespace octile::tools {
namespace {

constexpr std::int64_t kMostLayers = 10000;

// The object that describes the language model, and where it is.
struct Found {
  const Json* object = nullptr;
  std::string prefix = {};
};

bool is_object_at(const Json& json, const char* key) {
  const Json* found = json.find(key);
  return found != nullptr && found->is_object();
}

std::string type_of(const Json& json) {
  const Json* type = json.find("model_type");
  return type != nullptr && type->string() != nullptr ? *type->string() : std::string();
}

Found language_model(const Json& config) {
  Found found{&config};
  if (is_object_at(config, "thinker_config")) {
    found = {&config.at("thinker_config"), "thinker_config."};
  }
  for (const char* key : {"text_config", "llm_config", "language_config"}) {
    if (is_object_at(*found.object, key)) {
      return {&found.object->at(key), found.prefix + key + "."};
    }
  }
  return found;
}

// A key whose value has another type would be passed over.
Status check_types(const Json& config, const std::string& origin) {
  const auto refuse = [&](const std::string& key, const Json& value, const char* allowed) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} is {}; allowed: {}", origin, key, excerpt(value), allowed));
  };
  if (!config.is_object()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: it is {}; allowed: an object", origin, excerpt(config)));
  }
  const Found found = language_model(config);
  for (const auto& [object, prefix] :
       {std::pair(&config, std::string()), std::pair(found.object, found.prefix)}) {
    for (const char* key : {"thinker_config", "text_config", "llm_config", "language_config",
                            "quantization_config", "compression_config"}) {
      const Json* value = object->find(key);
      if (value == nullptr || value->is_null() || value->is_object()) continue;
      return refuse(prefix + key, *value, "an object");
    }
    const Json* type = object->find("model_type");
    if (type != nullptr && !type->is_null() && type->string() == nullptr) {
      return refuse(prefix + "model_type", *type, "a text such as \"llama\"");
    }
  }
  return {};
}

const Architecture* row_of(const Json& config) { return find_architecture(model_type_of(config)); }

// The layers that have each block.
struct LayerBlocks {
  std::int64_t layers = 0;
  std::vector<bool> is_other;    // the row's other attention
  std::vector<bool> is_sparse;   // experts
  std::vector<bool> is_indexed;  // an indexer of its own
};

using Flags = std::vector<bool>;
using Layers = std::vector<std::int32_t>;

// Returns the layers whose flag is `value`.
Layers layers_with(const Flags& flags, bool value) {
  Layers layers;
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] == value) layers.push_back(static_cast<std::int32_t>(i));
  }
  return layers;
}

template <typename Is>
Flags flags_of(std::int64_t layers, const Is& is) {
  Flags flags;
  for (std::int64_t i = 0; i < layers; ++i) flags.push_back(is(i));
  return flags;
}

template <typename Values, typename Is>
Flags flags_of_list(const Values& values, const Is& is) {
  Flags flags;
  for (const auto& value : values) flags.push_back(is(value));
  return flags;
}

Flags other_layers(Keys& keys, const Architecture& row, std::int64_t layers) {
  if (row.other_attention == nullptr) return Flags(static_cast<std::size_t>(layers));
  if (keys.contains("layer_types")) {
    constexpr std::string_view kLinear = "linear_attention";
    const std::string_view other = row.other_type;
    const auto types =
        other == kLinear
            ? keys.texts("layer_types", layers, {kLinear, "full_attention", "attention"})
            : keys.texts("layer_types", layers, {other, kLinear, "full_attention", "attention"});
    return flags_of_list(types,
                         [&](const std::string& type) { return type == other || type == kLinear; });
  }
  if (keys.contains("linear_attn_config.full_attn_layers")) {
    // Layers count from 1 there.
    Flags others(static_cast<std::size_t>(layers), true);
    for (const std::int64_t layer : keys.numbers("linear_attn_config.full_attn_layers")) {
      if (layer < 1 || layer > layers) {
        keys.refuse("linear_attn_config.full_attn_layers",
                    fmt::format("layers from 1 to {}", layers));
        break;
      }
      others[static_cast<std::size_t>(layer - 1)] = false;
    }
    return others;
  }
  if (keys.contains("attn_type_list")) {
    return flags_of_list(keys.numbers("attn_type_list", layers),
                         [](std::int64_t type) { return type == 0; });
  }
  if (keys.contains("hybrid_layer_pattern")) {
    return flags_of_list(keys.numbers("hybrid_layer_pattern", layers),
                         [](std::int64_t type) { return type == 1; });
  }
  if (row.full_interval == 0) {
    keys.refuse("attn_type_list", "a list of 0 (linear attention) and 1, or layer_types");
    return Flags(static_cast<std::size_t>(layers));
  }
  const std::int64_t interval =
      keys.count_or({"full_attention_interval", "layer_group_size"}, plain(row.full_interval))
          .value;
  return flags_of(layers, [&](std::int64_t i) {
    return (i + 1) % interval != 0 && (!row.first_is_full || i != 0);
  });
}

// Returns the layers that a list names. Errors if one does not exist.
Flags listed_layers(Keys& keys, const char* name, std::int64_t layers) {
  Flags flags(static_cast<std::size_t>(layers));
  for (const std::int64_t layer : keys.numbers(name)) {
    if (layer >= layers) {
      keys.refuse(name, fmt::format("layers from 0 to {}", layers - 1));
      break;
    }
    flags[static_cast<std::size_t>(layer)] = true;
  }
  return flags;
}

Flags by_first_dense(Keys& keys, const Architecture& row, std::int64_t layers) {
  const std::int64_t first =
      keys.count_from_zero({"first_k_dense_replace", "num_dense_layers"}, row.dense_first);
  if (first > layers) {
    keys.refuse("first_k_dense_replace", fmt::format("0 to {}, the layers", layers));
  }
  const std::int64_t every = keys.count_or({"moe_layer_freq"}, plain(1)).value;
  return flags_of(layers, [&](std::int64_t i) { return i >= first && i % every == 0; });
}

Flags sparse_layers(Keys& keys, const Architecture& row, std::int64_t layers) {
  if (row.feed.experts == nullptr) return Flags(static_cast<std::size_t>(layers));
  const bool no_experts = keys.count_from_zero({"num_local_experts"}, 1) == 0;
  if (no_experts && row.feed.mlp != nullptr) return Flags(static_cast<std::size_t>(layers));
  if (row.feed.mlp == nullptr) return Flags(static_cast<std::size_t>(layers), true);
  if (keys.contains("mlp_layer_types")) {
    return flags_of_list(keys.texts("mlp_layer_types", layers, {"dense", "sparse"}),
                         [](const std::string& type) { return type != "dense"; });
  }
  if (keys.is_list("moe_layer_freq")) {
    return flags_of_list(keys.numbers("moe_layer_freq", layers),
                         [](std::int64_t sparse) { return sparse != 0; });
  }
  if (keys.contains("moe_layers")) return listed_layers(keys, "moe_layers", layers);
  if (keys.has_any({"mlp_only_layers", "decoder_sparse_step"})) {
    Flags dense(static_cast<std::size_t>(layers));
    if (keys.contains("mlp_only_layers")) dense = listed_layers(keys, "mlp_only_layers", layers);
    const std::int64_t step = keys.count_or({"decoder_sparse_step"}, plain(1)).value;
    return flags_of(layers, [&](std::int64_t i) {
      return !dense[static_cast<std::size_t>(i)] && (i + 1) % step == 0;
    });
  }
  if (keys.has_any({"moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"})) {
    const std::int64_t first = keys.count_from_zero({"moe_layer_start_index"}, 0);
    const std::int64_t step = keys.count_or({"moe_layer_interval"}, plain(1)).value;
    const std::int64_t last = keys.last_layer("moe_layer_end_index", layers);
    return flags_of(layers,
                    [&](std::int64_t i) { return i >= first && i <= last && (i + 1) % step == 0; });
  }
  if (row.dense_width == "intermediate_size_mlp") {
    const std::int64_t step = keys.count({"interleave_moe_layer_step"}).value;
    return flags_of(layers, [&](std::int64_t i) { return (i + 1) % step == 0; });
  }
  return by_first_dense(keys, row, layers);
}

constexpr const char* kSparseAttentionOf = "sparse_attention_config.sparse_attention_freq";

Flags indexed_layers(Keys& keys, const Architecture& row, std::int64_t layers) {
  if (row.indexer == nullptr) return Flags(static_cast<std::size_t>(layers));
  if (!row.indexed_type.empty()) {
    if (keys.contains("layer_types")) {
      return flags_of_list(keys.texts("layer_types", layers, {row.indexed_type, "full_attention"}),
                           [&](const std::string& type) { return type == row.indexed_type; });
    }
    if (!keys.contains(kSparseAttentionOf)) return Flags(static_cast<std::size_t>(layers));
    return flags_of_list(keys.numbers(kSparseAttentionOf, layers),
                         [](std::int64_t sparse) { return sparse != 0; });
  }
  if (keys.contains("indexer_types")) {
    return flags_of_list(keys.texts("indexer_types", layers, {"full", "shared"}),
                         [](const std::string& type) { return type == "full"; });
  }
  const std::int64_t every =
      std::max<std::int64_t>(1, keys.count_from_zero({"index_topk_freq"}, 1));
  const std::int64_t offset = keys.count_from_zero({"index_skip_topk_offset"}, 2);
  return flags_of(layers, [&](std::int64_t i) {
    return std::max<std::int64_t>(i - offset + 1, 0) % every == 0;
  });
}

LayerBlocks layer_blocks_of(Keys& keys, const Architecture& row) {
  LayerBlocks blocks;
  blocks.layers = keys.count({"num_hidden_layers", "num_layers"}, kMostLayers).value;
  blocks.is_other = other_layers(keys, row, blocks.layers);
  blocks.is_sparse = sparse_layers(keys, row, blocks.layers);
  blocks.is_indexed = indexed_layers(keys, row, blocks.layers);
  return blocks;
}

// Adds the tensors of a block that `layers` layers and `mtp` further ones have. Equal ones of
// several blocks are one.
class Builder {
 public:
  Builder(Keys& keys, const Architecture& row, std::vector<Weight>& weights)
      : keys_(keys), row_(row), weights_(weights) {}

  // Adds a block of the layers `at`, and of `mtp` further ones.
  void add(BlockFunction function, const Layers& at, std::int64_t mtp) {
    if (function == nullptr || (at.empty() && mtp == 0)) return;
    Block block(keys_, row_);
    function(block);
    for (Weight& weight : block.weights) {
      weight.at = at;
      weight.layers = std::ssize(at);
      weight.mtp = mtp;
      merge(std::move(weight));
    }
  }

  void add_of_model(BlockFunction function) {
    Block block(keys_, row_);
    function(block);
    for (Weight& weight : block.weights) {
      weight.layers = 1;
      weight.per_layer = false;
      merge(std::move(weight));
    }
  }

  void add_norms(std::int64_t layers, std::int64_t mtp) {
    const Extent h = keys_.count({"hidden_size"});
    merge({.role = "norms of a layer",
           .layers = layers,
           .mtp = mtp,
           .n = row_.norms * h,
           .out = "vectors: no GEMM"});
  }

 private:
  void merge(Weight weight) {
    const auto same = std::ranges::find_if(weights_, [&](const Weight& other) {
      return other.role == weight.role && other.n.value == weight.n.value &&
             other.k.value == weight.k.value && other.groups == weight.groups &&
             other.units.value == weight.units.value;
    });
    if (same == weights_.end()) {
      weights_.push_back(std::move(weight));
    } else {
      same->layers += weight.layers;
      same->mtp += weight.mtp;
      same->at.insert(same->at.end(), weight.at.begin(), weight.at.end());
      std::ranges::sort(same->at);
    }
  }

  Keys& keys_;
  const Architecture& row_;
  std::vector<Weight>& weights_;
};

std::vector<Weight> weights_of(Keys& keys, const Architecture& row, const LayerBlocks& blocks) {
  std::vector<Weight> weights;
  Builder builder(keys, row, weights);
  const std::int64_t mtp =
      row.mtp == nullptr ? 0 : keys.count_from_zero({"num_nextn_predict_layers"}, 0, kMostLayers);
  const auto of = [&](const Flags& flags, bool value, BlockFunction block) {
    // A layer of multi-token prediction is as the last one.
    const std::int64_t further = flags.empty() || flags.back() != value ? 0 : mtp;
    builder.add(block, layers_with(flags, value), further);
  };
  of(blocks.is_other, false, row.attention);
  of(blocks.is_other, true, row.other_attention);
  of(blocks.is_indexed, true, row.indexer);
  of(blocks.is_sparse, false, row.feed.mlp);
  of(blocks.is_sparse, true, row.feed.experts);
  of(blocks.is_sparse, true, row.feed.shared);
  builder.add(row.mtp, {}, mtp);
  builder.add_norms(blocks.layers, mtp);
  builder.add_of_model(embeddings);
  return weights;
}

tl::unexpected<Error> unknown_type(const std::string& origin, const Found& found) {
  const std::string type = type_of(*found.object);
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: {}model_type is {}; allowed: the model's .safetensors files beside it, "
                  "or what octile.torch.shapes writes in its place",
                  origin, found.prefix,
                  type.empty() ? "missing" : fmt::format("'{}', which has no row here", type)));
}

// Says what may be wrong with a row: a published model may have a known type and be another one.
void add_doubts(const Json& config, const Json& language, const Architecture& row, const Keys& keys,
                Model& model) {
  const Json* of = language.contains("architectures") ? &language : &config;
  const Json* classes = of->find("architectures");
  const std::string* name = classes == nullptr || classes->begin() == classes->end()
                                ? nullptr
                                : classes->begin()->string();
  if (name != nullptr && !names_class(row, *name)) {
    model.remarks.push_back(
        fmt::format("architectures[0] is {}, and the weights are those of {}: compare them with "
                    "the checkpoint's headers",
                    excerpt(classes->at(0)), model.model_type));
  }
  const std::vector<std::string> unread = keys.unread();
  if (unread.empty()) return;
  model.remarks.push_back(
      fmt::format("the row of {} reads none of these keys, which may change weights: {}",
                  model.model_type, fmt::join(unread, ", ")));
}

// Says what a model has besides its language model.
void add_remarks(const Json& config, const Json& language, Model& model) {
  for (const auto& [key, tower] :
       {std::pair("vision_config", "vision"), {"audio_config", "audio"}}) {
    const bool is_of_thinker =
        is_object_at(config, "thinker_config") && config.at("thinker_config").contains(key);
    if (!config.contains(key) && !is_of_thinker) continue;
    model.remarks.push_back(
        fmt::format("the {} tower and its projector stay as they are: not listed", tower));
  }
  const bool has_head = std::ranges::any_of(
      model.weights, [](const Weight& weight) { return weight.role == "lm_head"; });
  if (has_head && !language.contains("tie_word_embeddings")) {
    model.remarks.emplace_back(
        "tie_word_embeddings is missing: lm_head is listed, and transformers may tie it to the "
        "embeddings");
  }
}

}  // namespace

bool is_config(const Json& document) {
  return document.is_object() && !document.contains("gemms") &&
         (document.contains("model_type") || document.contains("architectures") ||
          language_model(document).object != &document || document.contains("hidden_size"));
}

const Json& language_of(const Json& config) { return *language_model(config).object; }

std::string model_type_of(const Json& config) {
  const std::string type = type_of(*language_model(config).object);
  return type.empty() ? type_of(config) : type;
}

bool knows_architecture(const Json& config) { return row_of(config) != nullptr; }

Result<Model> model_of_config(const Json& config, const std::string& origin,
                              const std::string& name) {
  if (Status ok = check_types(config, origin); !ok) return tl::unexpected<Error>(ok.error());
  const Found found = language_model(config);
  const Architecture* row = row_of(config);
  if (row == nullptr) return unknown_type(origin, found);
  Json language = *found.object;
  // Whether the output layer is the table of embeddings is the whole model's to say, where it does.
  if (found.object != &config && config.contains("tie_word_embeddings")) {
    language.set("tie_word_embeddings", config.at("tie_word_embeddings"));
  }
  Keys keys(language, origin, found.prefix);
  keys.set_defaults(row->defaults);
  const LayerBlocks blocks = layer_blocks_of(keys, *row);
  Model model{.name = name,
              .origin = origin,
              .model_type = std::string(row->model_types.front()),
              .layers = blocks.layers,
              .weights = weights_of(keys, *row, blocks)};
  if (Status ok = keys.status(); !ok) return tl::unexpected<Error>(ok.error());
  auto quantization = quantization_of(config, *found.object, origin);
  if (!quantization) return tl::unexpected<Error>(quantization.error());
  model.quantization = std::move(*quantization);
  if (saturating_sum(parameters_of(model), mtp_parameters_of(model)) >= kSaturated) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: the model has 2^62 parameters or more; allowed: less", origin));
  }
  add_doubts(config, language, *row, keys, model);
  if (found.object != &config) add_remarks(config, language, model);
  return model;
}

}  // namespace octile::tools
