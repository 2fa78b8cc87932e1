// Architectures as data: a model type of transformers is a row that names its blocks and its
// exceptions. Adding a model of known blocks is adding a row.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/models/config/blocks.h"

namespace octile::tools {

// Norms of queries and keys: none, of a head, of the whole projection, or by the key use_qk_norm,
// of a head or of the whole.
enum class QkNorm { kNone, kHead, kWhole, kByKey, kWholeByKey };

// The part of a layer that follows attention.
struct Feed {
  BlockFunction mlp = octile::tools::mlp;  // nullptr: every layer has experts
  BlockFunction experts = nullptr;
  BlockFunction shared = nullptr;  // beside the experts
};

struct Architecture {
  std::vector<std::string_view> model_types;  // the first is the row's own
  std::string_view models;                    // published ones
  std::string_view class_name = "";           // of transformers, if spelt in its own way
  BlockFunction attention = gqa;
  Feed feed = {};
  BlockFunction indexer = nullptr;
  std::string_view indexed_type = "";  // the layer_types entry of layers with an indexer
  BlockFunction mtp = nullptr;

  // Another attention in some layers: those whose layer_types entry is `other_type`, or
  // "linear_attention".
  BlockFunction other_attention = nullptr;
  std::string_view other_type = "linear_attention";
  std::int64_t full_interval = 0;  // without any key: layers at multiples of this are `attention`
  bool first_is_full = false;      // and the first one too
  std::int64_t dense_first = 0;    // without any key: the number of layers without experts

  // Exceptions. Biases by key; "" never, "always" without a key.
  std::string_view qkv_bias = "attention_bias";
  std::string_view o_bias = "attention_bias";
  std::string_view mlp_bias = "";
  std::string_view lm_head_bias = "";
  QkNorm qk_norm = QkNorm::kNone;
  bool sinks = false;          // a number for each head of every layer
  bool sliding_sinks = false;  // of the layers of other_attention
  bool router_bias = false;    // a number for each expert beside the router's weights
  bool experts_bias = false;
  bool shared_gate = false;      // [1, h] beside shared experts
  bool attention_gate = false;   // [H d, h] beside q, k and v
  bool fused_qkv = false;        // q, k and v are one weight of the checkpoint
  bool fused_gate_up = false;    // gate and up likewise
  bool gated_mlp = true;         // false: an MLP has no gate
  std::int64_t norms = 2;        // vectors of the hidden size, in each layer
  std::int64_t final_norms = 1;  // and behind the last one
  std::string_view mlp_name = "mlp";
  std::string_view router_name = "gate";
  std::string_view shared_name = "shared_experts";
  std::string_view dense_width = "intermediate_size";
  std::string_view shared_width = "";  // a key, if it is not a multiple of the experts' width
  bool tied = false;                   // tie_word_embeddings if the key is missing
  std::vector<KeyDefault> defaults = {};
};

std::span<const Architecture> architectures();
// Returns nullptr for an unknown type.
const Architecture* find_architecture(std::string_view model_type);
// Returns true if the row names the class, an entry of a config's `architectures`.
bool names_class(const Architecture& row, std::string_view name);

}  // namespace octile::tools
