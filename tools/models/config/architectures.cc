#include "tools/models/config/architectures.h"

#include <algorithm>
#include <string>

#include "generator/core/ascii.h"

namespace octile::tools {
namespace {

// Experts in every layer or in some, with shared ones beside them.
constexpr Feed kExperts{nullptr, experts}, kMixed{mlp, experts};
constexpr Feed kExpertsShared{nullptr, experts, shared_experts};
constexpr Feed kMixedShared{mlp, experts, shared_experts};

Architecture dense(std::vector<std::string_view> types, std::string_view models) {
  return {.model_types = std::move(types), .models = models};
}

// Multi-head latent attention, dense layers first, experts, shared experts, multi-token prediction.
Architecture deepseek(std::vector<std::string_view> types, std::string_view models) {
  return {.model_types = std::move(types),
          .models = models,
          .attention = mla,
          .feed = kMixedShared,
          .mtp = mtp};
}

Architecture with_indexer(Architecture row) {
  row.indexer = indexer;
  return row;
}

// Gated delta rule, gated attention in every fourth layer.
Architecture qwen3_5(std::string_view type, std::string_view root, std::string_view models) {
  return {.model_types = {type, root},
          .models = models,
          .attention = gated_gqa,
          .other_attention = gated_delta,
          .full_interval = 4,
          .qk_norm = QkNorm::kHead,
          .shared_name = "shared_expert",
          .defaults = {{"head_dim", 256}, {"linear_conv_kernel_dim", 4}}};
}

// Mamba-2 in most layers, and an MLP beside the experts, or alone.
Architecture granite_hybrid() {
  return {.model_types = {"granitemoehybrid"},
          .models = "Granite 4",
          .feed = {linear_mlp, experts, linear_mlp},
          .other_attention = mamba2,
          .other_type = "mamba",
          .mlp_name = "block_sparse_moe",
          .router_name = "router",
          .defaults = {{"mamba_expand", 2}, {"mamba_d_conv", 4}}};
}

void add_granite(std::vector<Architecture>& rows) {
  rows.push_back(dense({"granite"}, "Granite 3"));
  rows.back().mlp_bias = "mlp_bias";
  rows.push_back({.model_types = {"granitemoe", "granitemoeshared"},
                  .models = "Granite 3 MoE",
                  .feed = {nullptr, experts, linear_mlp},
                  .mlp_name = "block_sparse_moe",
                  .router_name = "router"});
  rows.push_back(granite_hybrid());
}

void add_microsoft(std::vector<Architecture>& rows) {
  rows.push_back({.model_types = {"phi3"},
                  .models = "Phi-3, Phi-4",
                  .qkv_bias = "",
                  .o_bias = "",
                  .fused_qkv = true,
                  .fused_gate_up = true});
  // Its norms have biases.
  rows.push_back({.model_types = {"phimoe"},
                  .models = "Phi-3.5-MoE",
                  .feed = kExperts,
                  .lm_head_bias = "lm_head_bias",
                  .norms = 4,
                  .final_norms = 2,
                  .router_name = "router"});
}

void add_google(std::vector<Architecture>& rows) {
  const std::vector<KeyDefault> heads{{"head_dim", 256}};
  rows.push_back({.model_types = {"gemma"}, .models = "Gemma", .tied = true, .defaults = heads});
  rows.push_back({.model_types = {"gemma2"},
                  .models = "Gemma 2",
                  .norms = 4,
                  .tied = true,
                  .defaults = heads});
}

// GLM-4 before its mixtures: one weight for gate and up.
Architecture glm4(std::string_view type, std::string_view models, std::int64_t norms) {
  return {.model_types = {type},
          .models = models,
          .o_bias = "",
          .fused_gate_up = true,
          .norms = norms,
          .defaults = {{"head_dim", 128}, {"attention_bias", 1}}};
}

void add_exaone(std::vector<Architecture>& rows) {
  rows.push_back({.model_types = {"exaone4"},
                  .models = "EXAONE 4.0",
                  .qkv_bias = "",
                  .o_bias = "",
                  .qk_norm = QkNorm::kHead});
  rows.push_back({.model_types = {"exaone_moe"},
                  .models = "K-EXAONE",
                  .feed = kMixedShared,
                  .mtp = mtp,
                  .dense_first = 1,
                  .qkv_bias = "",
                  .o_bias = "",
                  .qk_norm = QkNorm::kHead});
}

// Families that have no block of their own.
void add_others(std::vector<Architecture>& rows) {
  add_granite(rows);
  add_microsoft(rows);
  add_google(rows);
  add_exaone(rows);
  rows.push_back(glm4("glm", "GLM-4 9B", 2));
  rows.push_back(glm4("glm4", "GLM-4-0414", 4));
  rows.push_back({.model_types = {"cohere", "cohere2"},
                  .models = "Command R, R7B, A",
                  .qk_norm = QkNorm::kWholeByKey,
                  .norms = 1,
                  .tied = true});
  rows.push_back(dense({"smollm3"}, "SmolLM3"));
  rows.back().mlp_bias = "mlp_bias";
  rows.back().tied = true;
  rows.push_back(dense({"hunyuan_v1_dense"}, "Hunyuan dense"));
  rows.back().class_name = "HunYuanDenseV1";
  rows.back().qk_norm = QkNorm::kHead;
  rows.push_back(dense({"arcee"}, "AFM-4.5B"));
  rows.back().mlp_bias = "mlp_bias";
  rows.back().gated_mlp = false;
  rows.push_back({.model_types = {"nemotron"},
                  .models = "Nemotron-4, Minitron",
                  .mlp_bias = "mlp_bias",
                  .gated_mlp = false,
                  .norms = 4,
                  .final_norms = 2});
  rows.push_back({.model_types = {"dots1"},
                  .models = "dots.llm1",
                  .feed = kMixedShared,
                  .qk_norm = QkNorm::kHead});
  rows.push_back({.model_types = {"solar_open"},
                  .models = "Solar Open",
                  .feed = kExpertsShared,
                  .o_bias = ""});
  rows.push_back({.model_types = {"sarvam_moe"},
                  .models = "Sarvam-30B",
                  .feed = kMixedShared,
                  .mtp = mtp,
                  .dense_first = 1,
                  .o_bias = "",
                  .qk_norm = QkNorm::kByKey});
  rows.push_back({.model_types = {"afmoe"},
                  .models = "Trinity",
                  .feed = kMixedShared,
                  .dense_first = 1,
                  .qk_norm = QkNorm::kHead,
                  .router_bias = true,
                  .attention_gate = true,
                  .norms = 4,
                  .router_name = "router.gate"});
}

std::vector<Architecture> all_rows() {
  std::vector<Architecture> rows;
  const auto add = [&](Architecture row) { rows.push_back(std::move(row)); };

  add({.model_types = {"llama"}, .models = "Llama 3, 3.1, 3.2, 3.3", .mlp_bias = "mlp_bias"});
  add({.model_types = {"llama4_text", "llama4"},
       .models = "Llama 4 Scout, Maverick",
       .feed = kMixedShared,
       .mlp_name = "feed_forward",
       .router_name = "router",
       .shared_name = "shared_expert",
       .dense_width = "intermediate_size_mlp",
       .shared_width = "intermediate_size",
       .defaults = {{"interleave_moe_layer_step", 1}}});
  add({.model_types = {"mistral", "ministral3"},
       .models = "Mistral 7B, Ministral 3",
       .qkv_bias = "",
       .o_bias = ""});
  add({.model_types = {"mixtral"},
       .models = "Mixtral 8x7B, 8x22B",
       .feed = kExperts,
       .qkv_bias = "",
       .o_bias = ""});
  add({.model_types = {"qwen2", "qwen2_5_vl_text", "qwen2_5_vl"},
       .models = "Qwen2.5, Qwen2.5-VL",
       .qkv_bias = "always",
       .o_bias = ""});
  add({.model_types = {"qwen2_moe"},
       .models = "Qwen1.5-MoE, Qwen2-57B-A14B",
       .feed = kMixedShared,
       .qkv_bias = "qkv_bias",
       .o_bias = "",
       .shared_gate = true,
       .shared_name = "shared_expert",
       .defaults = {{"qkv_bias", 1}}});
  add({.model_types = {"qwen3", "qwen3_vl_text", "qwen3_vl"},
       .models = "Qwen3 dense, Qwen3-VL dense",
       .qk_norm = QkNorm::kHead,
       .defaults = {{"head_dim", 128}}});
  add({.model_types = {"qwen3_moe", "qwen3_vl_moe_text", "qwen3_vl_moe"},
       .models = "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-VL of these",
       .feed = kMixed,
       .qk_norm = QkNorm::kHead});
  add({.model_types = {"qwen3_next"},
       .models = "Qwen3-Next-80B-A3B",
       .attention = gated_gqa,
       .feed = kMixedShared,
       .other_attention = gated_delta_fused,
       .full_interval = 4,
       .qk_norm = QkNorm::kHead,
       .shared_gate = true,
       .shared_name = "shared_expert",
       .defaults = {{"head_dim", 256}, {"linear_conv_kernel_dim", 4}}});
  add(qwen3_5("qwen3_5_text", "qwen3_5", "Qwen3.5 dense"));
  Architecture moe = qwen3_5("qwen3_5_moe_text", "qwen3_5_moe", "Qwen3.5-35B-A3B, 397B-A17B");
  moe.feed = kExpertsShared;
  moe.shared_gate = true;
  add(std::move(moe));

  add(deepseek({"deepseek_v2"}, "DeepSeek-V2, V2-Lite"));
  rows.back().mlp_bias = "mlp_bias";
  add(deepseek({"deepseek_v3", "kimi_k2"}, "DeepSeek-V3, R1, V3.1, Kimi-K2"));
  add(with_indexer(deepseek({"deepseek_v32"}, "DeepSeek-V3.2")));
  add(deepseek({"glm4_moe_lite"}, "GLM-4.7-Flash"));
  rows.back().dense_first = 1;
  add(with_indexer(deepseek({"glm_moe_dsa"}, "GLM-5")));
  add(deepseek({"mistral4"}, "Mistral Small 4"));
  add(deepseek({"sarvam_mla"}, "Sarvam-105B"));
  rows.back().dense_first = 1;
  add({.model_types = {"youtu"}, .models = "Youtu-LLM", .attention = mla, .tied = true});
  add({.model_types = {"longcat_flash"},
       .models = "LongCat-Flash",
       .attention = mla_twice,
       .feed = {nullptr, experts, mlp_twice},
       .norms = 4,
       .router_name = "router.classifier"});
  Architecture linear = deepseek({"kimi_linear"}, "Kimi-Linear-48B-A3B");
  linear.other_attention = kda;
  linear.dense_first = 1;
  add(std::move(linear));
  Architecture ling = deepseek({"bailing_hybrid"}, "Ling of KDA and MLA");
  ling.attention = mla_gated;
  ling.other_attention = kda_whole;
  ling.full_interval = 6;
  ling.dense_first = 2;
  add(std::move(ling));
  add({.model_types = {"glm4_moe", "glm4v_moe_text", "glm4v_moe"},
       .models = "GLM-4.5, 4.6, Air, 4.5V",
       .feed = kMixedShared,
       .mtp = mtp,
       .o_bias = "",
       .qk_norm = QkNorm::kByKey});

  add({.model_types = {"minimax", "minimax_text_01", "minimax_m1"},
       .models = "MiniMax-Text-01, M1",
       .feed = kExpertsShared,
       .other_attention = lightning,
       .qkv_bias = "",
       .o_bias = ""});
  add({.model_types = {"minimax_m2"},
       .models = "MiniMax-M2, M2.1",
       .feed = kExperts,
       .qkv_bias = "",
       .o_bias = "",
       .qk_norm = QkNorm::kWhole,
       .defaults = {{"head_dim", 128}}});
  add({.model_types = {"minimax_m3_vl_text", "minimax_m3_vl"},
       .models = "MiniMax-M3",
       .class_name = "MiniMaxM3Sparse",
       .feed = kMixedShared,
       .indexer = block_indexer,
       .indexed_type = "minimax_m3_sparse",
       .qkv_bias = "",
       .o_bias = "",
       .qk_norm = QkNorm::kHead,
       .fused_gate_up = true,
       .dense_width = "dense_intermediate_size",
       .defaults = {{"head_dim", 128}}});
  add({.model_types = {"gpt_oss"},
       .models = "gpt-oss-20b, 120b",
       .feed = kExperts,
       .sinks = true,
       .router_bias = true,
       .experts_bias = true,
       .router_name = "router",
       .defaults = {{"head_dim", 64}, {"attention_bias", 1}}});
  add({.model_types = {"gemma3_text", "gemma3"},
       .models = "Gemma 3",
       .qk_norm = QkNorm::kHead,
       .norms = 4,
       .tied = true,
       .defaults = {{"num_attention_heads", 8},
                    {"num_key_value_heads", 4},
                    {"head_dim", 256},
                    {"vocab_size", 262208}}});
  add({.model_types = {"hunyuan_v1_moe"},
       .models = "Hunyuan-A13B",
       .class_name = "HunYuanMoEV1",
       .feed = kExpertsShared,
       .qk_norm = QkNorm::kHead,
       .router_name = "gate.wg",
       .shared_name = "shared_mlp",
       .defaults = {{"num_shared_expert", 1}}});
  add({.model_types = {"hy_v3"},
       .models = "Hy3",
       .feed = kMixedShared,
       .mtp = mtp,
       .dense_first = 1,
       .mlp_bias = "mlp_bias",
       .qk_norm = QkNorm::kHead,
       .defaults = {{"head_dim", 128}}});
  add({.model_types = {"ernie4_5_moe"},
       .models = "ERNIE 4.5",
       .feed = kMixedShared,
       .qkv_bias = "use_bias",
       .o_bias = "use_bias",
       .mlp_bias = "use_bias",
       .lm_head_bias = "use_bias",
       .router_bias = true,
       .tied = true});
  add({.model_types = {"ernie4_5"},
       .models = "ERNIE 4.5 0.3B",
       .qkv_bias = "use_bias",
       .o_bias = "use_bias",
       .mlp_bias = "use_bias",
       .lm_head_bias = "use_bias",
       .tied = true,
       .defaults = {{"head_dim", 128}}});
  add({.model_types = {"mimo_v2_flash"},
       .models = "MiMo-V2-Flash",
       .feed = kMixed,
       .other_attention = sliding_gqa,
       .other_type = "sliding_attention",
       .full_interval = 6,
       .first_is_full = true,
       .dense_first = 1,
       .o_bias = "",
       .sliding_sinks = true,
       .defaults = {{"head_dim", 192}, {"v_head_dim", 128}}});
  add({.model_types = {"seed_oss"},
       .models = "Seed-OSS-36B",
       .o_bias = "attention_out_bias",
       .mlp_bias = "mlp_bias",
       .defaults = {{"head_dim", 128}, {"attention_bias", 1}}});
  add(dense({"olmo2", "olmo3"}, "OLMo 2, 3"));
  rows.back().qk_norm = QkNorm::kWhole;
  add(dense({"olmo"}, "OLMo"));
  rows.back().norms = rows.back().final_norms = 0;
  add({.model_types = {"olmoe", "flex_olmo"},
       .models = "OLMoE, FlexOlmo",
       .feed = kExperts,
       .qk_norm = QkNorm::kWhole});
  add_others(rows);
  return rows;
}

// "qwen3moe" for "qwen3_moe" and "Qwen3Moe".
std::string letters_of(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (c != '_') letters += to_lower(c);
  }
  return letters;
}

}  // namespace

std::span<const Architecture> architectures() {
  static const std::vector<Architecture> rows = all_rows();
  return rows;
}

const Architecture* find_architecture(std::string_view model_type) {
  for (const Architecture& row : architectures()) {
    if (std::ranges::find(row.model_types, model_type) != row.model_types.end()) return &row;
  }
  return nullptr;
}

bool names_class(const Architecture& row, std::string_view name) {
  for (const std::string_view end : {"ForCausalLM", "ForConditionalGeneration"}) {
    if (!name.ends_with(end) || name.size() == end.size()) continue;
    name.remove_suffix(end.size());
    const auto is_named = [&](std::string_view type) {
      return letters_of(type) == letters_of(name);
    };
    return is_named(row.class_name) || std::ranges::any_of(row.model_types, is_named);
  }
  return false;
}

}  // namespace octile::tools
