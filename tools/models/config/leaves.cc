#include "tools/models/config/leaves.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "tools/models/config/name_patterns.h"

namespace octile::tools {
namespace {

constexpr std::int64_t kVocabularyStep = 64;  // of serving engines
constexpr std::string_view kGateOfHead = "gates of a head each, which stay in BF16";

constexpr auto all_leaves() {
  using enum Cut;
  using enum By;
  return std::to_array<Leaf>({
      // Attention.
      {"q_proj query q wq q_lin", kN, kHeads, "qkv_proj", "hidden"},
      {"k_proj key k wk k_lin", kN, kKvHeads, "qkv_proj", "hidden"},
      {"v_proj value v wv v_lin", kN, kKvHeads, "qkv_proj", "hidden"},
      {"qkv_proj query_key_value qkv Wqkv c_attn", kN, kQkv, "", "hidden"},
      {"encoder_attn.q_proj EncDecAttention.q", kN, kHeads, "", "hidden"},
      {"encoder_attn.k_proj EncDecAttention.k", kN, kKvHeads, "kv_proj", ".encoder"},
      {"encoder_attn.v_proj EncDecAttention.v", kN, kKvHeads, "kv_proj", ".encoder"},
      {"o_proj out_proj wo o out_lin self_attn.dense attention.dense self_attention.dense "
       "attention.output.dense attn.c_proj",
       kK, kHeads, "", "attention"},
      {"self_attn.gate_proj", kN, kHeads, "", "hidden"},
      {"output_gate", kN, kHeads, "", "hidden"},
      {"f_proj", kN, kHeads, "", "hidden"},
      {"g_proj", kN, kHeads, "", "hidden"},
      {"f_a_proj", kNone, kNothing, "", "hidden"},
      {"g_a_proj", kNone, kNothing, "", "hidden"},
      {"f_b_proj", kN, kHeads, "", ".f_a_proj"},
      {"g_b_proj", kN, kHeads, "", ".g_a_proj"},
      {"q_a_proj wq_a", kNone, kNothing, "qkv_a_proj", "hidden"},
      {"kv_a_proj_with_mqa", kNone, kNothing, "qkv_a_proj", "hidden"},
      {"qkv_a_proj", kNone, kNothing, "", "hidden"},
      {"q_b_proj wq_b", kN, kHeads, "", "q_lora"},
      {"kv_b_proj", kN, kHeads, "", "kv_lora"},
      {"indexer.wq_b", kNone, kNothing, "", "q_lora"},
      {"indexer.wk", kNone, kNothing, "", "hidden"},
      {"indexer.q_proj", kNone, kNothing, "", "hidden"},
      {"indexer.k_proj", kNone, kNothing, "", "hidden"},
      {"linear_attn.in_proj_qkvz", kN, kLinearHeads, "", "hidden"},
      {"linear_attn.in_proj_qkv", kN, kLinearHeads, "in_proj_qkvz", "hidden"},
      {"linear_attn.in_proj_z", kN, kLinearHeads, "in_proj_qkvz", "hidden"},
      {"linear_attn.out_proj", kK, kLinearHeads, "", "linear_attn"},
      {"mamba.in_proj mixer.in_proj", kNone, kNothing, "", "hidden"},
      {"mamba.out_proj mixer.out_proj", kNone, kNothing, "", "mamba"},
      // MLPs.
      {"gate_proj w1 wi_0 linear_fc1_gate", kN, kWidth, "gate_up_proj", "mlp"},
      {"up_proj w3 wi_1 v1", kN, kWidth, "gate_up_proj", "mlp"},
      {"gate_up_proj input_linear", kN, kWidth, "", "mlp", 2},
      {"down_proj w2 output_linear DenseReluDense.wo", kK, kWidth, "", ".activation"},
      {"fc1 c_fc fc_in wi lin1 dense_h_to_4h intermediate.dense", kN, kWidth, "", "mlp"},
      {"fc2 mlp.c_proj fc_out lin2 dense_4h_to_h output.dense", kK, kWidth},
      // Tables, the output layer, routers and gates.
      {.names = "embed_tokens embed wte shared", .out = kTable},
      {.names = "wpe", .out = kTable},
      {.names = "relative_attention_bias", .out = kTable},
      {"lm_head head output embed_out", kN, kVocabulary, "", "", 1,
       "the output layer, kept in BF16"},
      {.names = "gate router gate.wg router.gate router.layer router.classifier",
       .out = "the router, kept in BF16"},
      {.names = "shared_expert_gate", .out = "one output, kept in BF16"},
      {.names = "in_proj_ba", .out = kGateOfHead},
      {.names = "in_proj_a", .out = kGateOfHead},
      {.names = "in_proj_b", .out = kGateOfHead},
      {.names = "b_proj", .out = kGateOfHead},
      {.names = "weights_proj", .out = "weights of the indexer's heads, kept in BF16"},
      {.names = "eh_proj", .out = "serving engines keep it in BF16"},
  });
}
constexpr auto kLeaves = all_leaves();

using Index = std::unordered_map<std::string_view, const Leaf*>;

Index index_of_leaves() {
  Index index;
  for (const Leaf& leaf : kLeaves) {
    for_words(leaf.names, ' ', [&](std::string_view name) { index.emplace(name, &leaf); });
  }
  return index;
}

struct LeafAt {
  const Leaf* leaf = nullptr;
  std::size_t at = 0;  // where its name begins
};

// Returns the leaf of the longest end of the name, of up to three parts.
LeafAt look_up(std::string_view role) {
  static const Index index = index_of_leaves();
  LeafAt found;
  for (std::size_t end = role.size(), parts = 0; parts < 3 && end != std::string_view::npos;
       ++parts) {
    const std::size_t dot = end == 0 ? std::string_view::npos : role.rfind('.', end - 1);
    const std::size_t begin = dot == std::string_view::npos ? 0 : dot + 1;
    if (const auto leaf = index.find(role.substr(begin)); leaf != index.end()) {
      found = {leaf->second, begin};
    }
    end = dot;
  }
  if (found.leaf == nullptr && role.find("embed") != std::string_view::npos) {
    return {index.at("embed_tokens"), role.size()};
  }
  return found;
}

std::string_view usual_part(std::string_view part) {
  for (const char* name : {"block_sparse_moe", "feed_forward", "ffn", "moe"}) {
    if (part == name) return "mlp";
  }
  for (const char* name : {"attn", "attention", "self_attention"}) {
    if (part == name) return "self_attn";
  }
  return part;
}

std::string input_of(const Leaf& leaf, const Weight& weight, const std::string& around,
                     bool of_experts) {
  if (leaf.input.empty()) return weight.role;
  if (leaf.input.starts_with('.')) return around + std::string(leaf.input.substr(1));
  if (leaf.input != "mlp") return std::string(leaf.input);
  return weight.is_shared ? "shared" : of_experts ? "experts" : "mlp";
}

}  // namespace

const Leaf* find_leaf(std::string_view role) { return look_up(role).leaf; }

std::string usual_name(std::string_view role) {
  const auto [leaf, at] = look_up(role);
  std::string name(role);
  if (leaf != nullptr && at < role.size()) {
    name =
        std::string(role.substr(0, at)) + std::string(leaf->names.substr(0, leaf->names.find(' ')));
  }
  std::string usual;
  for_words(name, '.', [&](std::string_view part) {
    usual.append(usual.empty() ? "" : ".").append(usual_part(part));
  });
  return usual;
}

void name_weight(Weight& weight) {
  const Leaf* leaf = find_leaf(weight.role);
  weight.input = weight.role;
  if (leaf == nullptr) {
    weight.cut = Cut::kUnknown;
    return;
  }
  const std::string around = weight.role.substr(0, weight.role.rfind('.') + 1);
  const bool of_experts = ("." + around).find(".experts.") != std::string::npos;
  weight.cut = leaf->cut;
  weight.stacked = leaf->stacked;
  weight.out = leaf->out;
  weight.padded = leaf->by == By::kVocabulary ? kVocabularyStep : 0;
  weight.is_attention = leaf->by == By::kHeads || leaf->by == By::kKvHeads ||
                        leaf->by == By::kQkv || leaf->by == By::kLinearHeads;
  weight.is_shared = leaf->by == By::kWidth && around.find("shared") != std::string::npos;
  weight.kv_n = leaf->by == By::kKvHeads ? weight.n.value : 0;
  weight.input = input_of(*leaf, weight, around, of_experts);
  if (!leaf->fused.empty() && !of_experts) weight.fused = around + std::string(leaf->fused);
}

void divide_by_name(Weight& weight, const HeadCounts& counts) {
  const auto& [heads, kv_heads, linear_heads] = counts;
  const Leaf* leaf = find_leaf(weight.role);
  if (leaf == nullptr || weight.cut == Cut::kNone || weight.padded > 0) return;
  const bool of_n = weight.cut == Cut::kN;
  const std::int64_t size = of_n ? weight.n.value : weight.k.value;
  if (leaf->by == By::kWidth) {
    weight.units = {size / (of_n ? weight.stacked : 1), of_n ? "n" : "k"};
    return;
  }
  const bool of_qkv = leaf->by == By::kQkv, of_kv = leaf->by == By::kKvHeads;
  const std::int64_t all = leaf->by == By::kLinearHeads ? linear_heads
                           : of_kv                      ? kv_heads
                           : of_qkv                     ? heads + 2 * kv_heads
                                                        : heads;
  if (all == 0 || size % all != 0 || (of_qkv && (heads == 0 || kv_heads == 0))) {
    weight.cut = Cut::kUnknown;
    return;
  }
  weight.units = {of_kv ? kv_heads : of_qkv ? heads : all, of_kv ? "kv_heads" : "heads"};
  if (of_kv || of_qkv) weight.kv_heads = {kv_heads, "kv_heads"};
  if (of_kv) weight.kv_n = size;
  if (of_qkv) weight.kv_n = size / all * 2 * kv_heads;
}

}  // namespace octile::tools
