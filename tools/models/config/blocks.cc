#include "tools/models/config/blocks.h"

#include <fmt/format.h>

#include <algorithm>

#include "generator/core/text_fields.h"
#include "tools/models/config/architectures.h"
#include "tools/models/config/leaves.h"

namespace octile::tools {
namespace {

constexpr const char* kNorm = "a vector: no GEMM";
constexpr const char* kAttention = "self_attn";

Extent hidden(Keys& keys) { return keys.count({"hidden_size"}); }

bool has_bias(Keys& keys, std::string_view key) {
  return key == "always" || (!key.empty() && keys.flag(key, false));
}

// Without the key it is hidden_size / num_attention_heads.
Extent head_dim(Keys& keys, const Extent& h, const Extent& heads) {
  Extent given = keys.count_or({"head_dim"}, {0, ""});
  if (given.value > 0) return given;
  if (h.value % heads.value != 0) {
    keys.refuse_text(
        fmt::format("{} is {}, no multiple of {} {}; allowed: a multiple, or {} besides", h.keys,
                    h.value, heads.keys, heads.value, keys.full("head_dim")));
  }
  return {h.value / heads.value, h.keys + " / " + heads.keys};
}

struct Heads {
  Extent heads, kv, d, dv;
  std::int64_t query = 1;  // how many times as wide the query is
};

void add_qk_norms(Block& block, const Heads& a) {
  const Architecture& row = block.row;
  const std::string role = fmt::format("{}.q_norm, k_norm", kAttention);
  const bool by_head = row.qk_norm == QkNorm::kHead ||
                       (row.qk_norm == QkNorm::kByKey && block.keys.flag("use_qk_norm", false));
  if (by_head) block.add_vector(role, 2 * a.d, kNorm);
  const bool whole = row.qk_norm == QkNorm::kWhole ||
                     (row.qk_norm == QkNorm::kWholeByKey && block.keys.flag("use_qk_norm", false));
  if (whole) block.add_vector(role, a.heads * a.d + a.kv * a.d, kNorm);
}

void add_attention(Block& block, const Heads& a) {
  const Architecture& row = block.row;
  const Extent h = hidden(block.keys);
  const bool bias = has_bias(block.keys, row.qkv_bias);
  const auto add = [&](const char* name, const Extent& n, const Extent& units) {
    block.add(fmt::format("{}.{}", kAttention, name), n, h, units).bias = bias;
  };
  if (row.fused_qkv) {
    add("qkv_proj", (a.heads * a.d) + (a.kv * a.d) + (a.kv * a.dv), a.kv);
  } else {
    add("q_proj", a.query == 1 ? a.heads * a.d : a.query * (a.heads * a.d), a.heads);
    add("k_proj", a.kv * a.d, a.kv);
    add("v_proj", a.kv * a.dv, a.kv);
  }
  if (row.attention_gate) add("gate_proj", a.heads * a.d, a.heads);
  Weight& o = block.add(fmt::format("{}.o_proj", kAttention), h, a.heads * a.dv, a.heads);
  o.bias = has_bias(block.keys, row.o_bias);
  add_qk_norms(block, a);
}

Heads usual_heads(Keys& keys) {
  const Extent heads = keys.count({"num_attention_heads"});
  const Extent kv = keys.count_or({"num_key_value_heads"}, heads);
  const Extent d = head_dim(keys, hidden(keys), heads);
  if (heads.value % kv.value != 0) {
    keys.refuse_text(fmt::format("{} is {}; allowed: divisors of {}, {}", kv.keys, kv.value,
                                 heads.keys, heads.value));
  }
  return {heads, kv, d, keys.count_or({"v_head_dim"}, d), 1};
}

void add_sinks(Block& block, const Extent& heads) {
  block.add_vector(fmt::format("{}.sinks", kAttention), heads, kNorm);
}

// gate and up [width, h], down [h, width].
void add_mlp(Block& block, const std::string& at, const Extent& width) {
  const Architecture& row = block.row;
  const Extent h = hidden(block.keys);
  const bool bias = has_bias(block.keys, row.mlp_bias);
  const auto add = [&](const char* name, const Extent& n, const Extent& k) {
    block.add(fmt::format("{}.{}", at, name), n, k, width).bias = bias;
  };
  if (row.fused_gate_up) {
    add("gate_up_proj", 2 * width, h);
  } else {
    if (row.gated_mlp) add("gate_proj", width, h);
    add("up_proj", width, h);
  }
  add("down_proj", h, width);
}

// The heads of a linear attention.
struct Delta {
  Extent h, key_heads, value_heads, key, value;  // key, value: of all heads
};

Delta delta_of(Keys& keys) {
  const Extent key_heads = keys.count({"linear_num_key_heads"});
  const Extent value_heads = keys.count({"linear_num_value_heads"});
  if (value_heads.value % key_heads.value != 0) {
    keys.refuse_text(fmt::format("{} is {}; allowed: multiples of {}, {}", value_heads.keys,
                                 value_heads.value, key_heads.keys, key_heads.value));
  }
  return {hidden(keys), key_heads, value_heads, key_heads * keys.count({"linear_key_head_dim"}),
          value_heads * keys.count({"linear_value_head_dim"})};
}

void add_delta_rest(Block& block, const Delta& d) {
  block.add("linear_attn.out_proj", d.h, d.value, d.key_heads);
  block.add_vector("linear_attn.dt_bias, A_log", 2 * d.value_heads, kNorm);
  const Extent kernel = block.keys.count({"linear_conv_kernel_dim"});
  block.add_vector("linear_attn.conv1d", (2 * d.key + d.value) * kernel, "a convolution");
  block.add_vector("linear_attn.norm", block.keys.count({"linear_value_head_dim"}), kNorm);
}

// The heads of Kimi's delta attention.
struct Kda {
  Extent h, heads, d, all;
};

// Adds what both kinds have beside the gates of the state and of the output.
Kda add_kda(Block& block) {
  Keys& keys = block.keys;
  const std::string at(kAttention);
  const Extent h = hidden(keys);
  const Extent heads =
      keys.count({"linear_attn_config.num_heads", "linear_num_heads", "num_attention_heads"});
  const Extent d = keys.count({"linear_attn_config.head_dim", "linear_head_dim", "head_dim"});
  const Extent kernel = keys.count({"linear_attn_config.short_conv_kernel_size",
                                    "linear_conv_kernel_dim", "short_conv_kernel_size"});
  const Extent all = heads * d;
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    block.add(fmt::format("{}.{}", at, name), all, h, heads);
  }
  block.add(at + ".o_proj", h, all, heads);
  block.add(at + ".b_proj", heads, h);
  block.add_vector(at + ".dt_bias, A_log", all + heads, kNorm);
  block.add_vector(at + ".conv1d", (3 * all) * kernel, "a convolution");
  block.add_vector(at + ".o_norm", d, kNorm);
  return {h, heads, d, all};
}

// The channels of a Mamba-2 block.
Extent mamba_width(Keys& keys, const Extent& heads) {
  if (keys.contains("mamba_d_head") && !keys.is_text("mamba_d_head")) {
    return heads * keys.count({"mamba_d_head"});
  }
  return keys.count({"mamba_expand"}) * hidden(keys);  // mamba_d_head is "auto"
}

Extent expert_width(Keys& keys) {
  return keys.count({"moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"});
}

// Experts that return what they get.
Extent zero_experts(Keys& keys) {
  return {keys.count_from_zero({"zero_expert_num"}, 0), keys.full("zero_expert_num")};
}

Extent shared_width(Block& block) {
  Keys& keys = block.keys;
  if (!block.row.shared_width.empty()) return keys.count({block.row.shared_width});
  for (const char* width : {"shared_expert_intermediate_size",
                            "moe_shared_expert_intermediate_size", "shared_intermediate_size"}) {
    if (keys.contains(width)) return {keys.count_from_zero({width}, 0), keys.full(width)};
  }
  const std::int64_t count = keys.count_from_zero(
      {"n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"}, 0);
  return count == 0 ? Extent() : count == 1 ? expert_width(keys) : count * expert_width(keys);
}

void add_mla(Block& block, const std::string& at) {
  Keys& keys = block.keys;
  const Extent h = hidden(keys);
  const Extent heads = keys.count({"num_attention_heads"});
  const Extent nope = keys.count({"qk_nope_head_dim"});
  const Extent rope = keys.count({"qk_rope_head_dim"});
  const Extent v = keys.count({"v_head_dim"});
  const Extent kv_lora = keys.count({"kv_lora_rank"});
  const Extent q_lora = keys.count_or({"q_lora_rank"}, {0, ""});
  const bool bias = has_bias(keys, block.row.qkv_bias);
  const auto add = [&](const char* name, const Extent& n, const Extent& k) -> Weight& {
    return block.add(fmt::format("{}.{}", at, name), n, k, heads);
  };
  if (q_lora.value > 0) {
    add("q_a_proj", q_lora, h).bias = bias;
    add("q_b_proj", heads * (nope + rope), q_lora);
    block.add_vector(at + ".q_a_layernorm", q_lora, kNorm);
  } else {
    add("q_proj", heads * (nope + rope), h);
  }
  add("kv_a_proj_with_mqa", kv_lora + rope, h).bias = bias;
  block.add_vector(at + ".kv_a_layernorm", kv_lora, kNorm);
  add("kv_b_proj", heads * (nope + v), kv_lora).absorbed = {heads, nope, v};
  add("o_proj", h, heads * v).bias = has_bias(keys, block.row.o_bias);
}

Weight& add_to(std::vector<Weight>& weights, Weight weight) {
  weights.push_back(std::move(weight));
  return weights.back();
}

void check_extent(Keys& keys, const std::string& role, const char* which, const Extent& extent) {
  if (extent.value <= kMostCount) return;
  keys.refuse_text(fmt::format("{} has {} = {}, which is {} or more; allowed: less", role, which,
                               extent.keys, kMostCount));
}

}  // namespace

Weight& Block::add(std::string role, const Extent& n, const Extent& k, const Extent& units) {
  check_extent(keys, role, "n", n);
  check_extent(keys, role, "k", k);
  Weight& weight = add_to(weights, {.role = std::move(role), .n = n, .k = k, .units = units});
  name_weight(weight);
  if (weight.kv_n > 0) weight.kv_heads = units;
  return weight;
}

Weight& Block::add_experts(std::string role, const Extent& n, const Extent& k,
                           const Extent& units) {
  Weight& weight = add(std::move(role), n, k, units);
  const Extent all = keys.count(kExpertCounts);
  const Extent each = keys.count(kExpertsPerToken);
  if (each.value > all.value) {
    keys.refuse_text(
        fmt::format("{} is {}; allowed: 1 to {}, {}", each.keys, each.value, all.keys, all.value));
  }
  // A token also goes to experts without weights, which cost nothing.
  const std::int64_t zero = zero_experts(keys).value;
  weight.groups = all.value;
  weight.per_token = zero == 0
                         ? each.value
                         : std::max<std::int64_t>(1, each.value * all.value / (all.value + zero));
  return weight;
}

void Block::add_vector(std::string role, const Extent& n, std::string why) {
  add_to(weights, {.role = std::move(role), .n = n, .out = std::move(why)});
}

void gqa(Block& block) {
  const Heads heads = usual_heads(block.keys);
  add_attention(block, heads);
  if (block.row.sinks) add_sinks(block, heads.heads);
}

void gated_gqa(Block& block) {
  Heads heads = usual_heads(block.keys);
  heads.query = block.keys.flag("attn_output_gate", true) ? 2 : 1;
  add_attention(block, heads);
}

void sliding_gqa(Block& block) {
  Heads heads = usual_heads(block.keys);
  heads.heads = block.keys.count_or({"swa_num_attention_heads"}, heads.heads);
  heads.kv = block.keys.count_or({"swa_num_key_value_heads"}, 2 * heads.kv);
  heads.d = block.keys.count_or({"swa_head_dim"}, heads.d);
  heads.dv = block.keys.count_or({"swa_v_head_dim"}, heads.dv);
  add_attention(block, heads);
  if (block.row.sliding_sinks) add_sinks(block, heads.heads);
}

void mla(Block& block) { add_mla(block, kAttention); }

void mla_gated(Block& block) {
  mla(block);
  const Extent heads = block.keys.count({"num_attention_heads"});
  Weight& gate = block.add(fmt::format("{}.g_proj", kAttention), heads, hidden(block.keys));
  gate.out = find_leaf("b_proj")->out;  // a gate for each head too
}

void mla_twice(Block& block) {
  for (const int i : {0, 1}) add_mla(block, fmt::format("{}.{}", kAttention, i));
}

void indexer(Block& block) {
  Keys& keys = block.keys;
  const std::string at = fmt::format("{}.indexer", kAttention);
  const Extent h = hidden(keys);
  const Extent heads = keys.count({"index_n_heads"});
  const Extent d = keys.count({"index_head_dim"});
  block.add(at + ".wq_b", heads * d, keys.count({"q_lora_rank"}));
  block.add(at + ".wk", d, h);
  block.add(at + ".weights_proj", heads, h);
  block.add_vector(at + ".k_norm", 2 * d, kNorm);
}

void block_indexer(Block& block) {
  Keys& keys = block.keys;
  const std::string at = fmt::format("{}.indexer", kAttention);
  const Extent h = hidden(keys);
  const Extent d = keys.count({"sparse_attention_config.sparse_index_dim", "index_head_dim"});
  const Extent heads =
      keys.count({"sparse_attention_config.sparse_num_index_heads", "index_n_heads"});
  block.add(at + ".q_proj", heads * d, h);
  block.add(at + ".k_proj", d, h);
  block.add_vector(at + ".q_norm, k_norm", 2 * d, kNorm);
}

void gated_delta(Block& block) {
  const Delta d = delta_of(block.keys);
  block.add("linear_attn.in_proj_qkv", 2 * d.key + d.value, d.h, d.key_heads);
  block.add("linear_attn.in_proj_z", d.value, d.h, d.key_heads);
  block.add("linear_attn.in_proj_b", d.value_heads, d.h);
  block.add("linear_attn.in_proj_a", d.value_heads, d.h);
  add_delta_rest(block, d);
}

void gated_delta_fused(Block& block) {
  const Delta d = delta_of(block.keys);
  block.add("linear_attn.in_proj_qkvz", 2 * d.key + 2 * d.value, d.h, d.key_heads);
  block.add("linear_attn.in_proj_ba", 2 * d.value_heads, d.h);
  add_delta_rest(block, d);
}

void lightning(Block& block) {
  const Extent h = hidden(block.keys);
  const Heads a = usual_heads(block.keys);
  const Extent all = a.heads * a.d;
  const std::string at(kAttention);
  block.add(at + ".qkv_proj", 3 * all, h, a.heads);
  block.add(at + ".output_gate", all, h, a.heads);
  block.add(at + ".out_proj", h, all, a.heads);
  block.add_vector(at + ".norm", all, kNorm);
}

void kda(Block& block) {
  const Kda a = add_kda(block);
  for (const char* gate : {"f", "g"}) {
    block.add(fmt::format("{}.{}_a_proj", kAttention, gate), a.d, a.h);
    block.add(fmt::format("{}.{}_b_proj", kAttention, gate), a.all, a.d, a.heads);
  }
}

void kda_whole(Block& block) {
  const Kda a = add_kda(block);
  for (const char* gate : {"f_proj", "g_proj"}) {
    block.add(fmt::format("{}.{}", kAttention, gate), a.all, a.h, a.heads);
  }
}

void mamba2(Block& block) {
  Keys& keys = block.keys;
  const Extent h = hidden(keys);
  const Extent heads = keys.count({"mamba_n_heads"});
  const Extent width = mamba_width(keys, heads);
  const Extent states = 2 * (keys.count({"mamba_n_groups"}) * keys.count({"mamba_d_state"}));
  const bool bias = keys.flag("mamba_proj_bias", false);
  block.add("mamba.in_proj", (2 * width) + states + heads, h).bias = bias;
  block.add("mamba.out_proj", h, width).bias = bias;
  const std::int64_t taps = keys.flag("mamba_conv_bias", true) ? 1 : 0;
  block.add_vector("mamba.conv1d", (width + states) * (keys.count({"mamba_d_conv"}) + plain(taps)),
                   "a convolution");
  block.add_vector("mamba.dt_bias, A_log, D", 3 * heads, kNorm);
  block.add_vector("mamba.norm", width, kNorm);
}

void mlp(Block& block) {
  add_mlp(block, std::string(block.row.mlp_name),
          block.keys.count({block.row.dense_width, "dense_intermediate_size"}));
}

void mlp_twice(Block& block) {
  const Extent width = block.keys.count({"ffn_hidden_size", "intermediate_size"});
  for (const int i : {0, 1}) add_mlp(block, fmt::format("mlps.{}", i), width);
}

void linear_mlp(Block& block) {
  const Extent h = hidden(block.keys);
  const Extent width = shared_width(block);
  if (width.value == 0) return;
  block.add("shared_mlp.input_linear", 2 * width, h, width);
  block.add("shared_mlp.output_linear", h, width, width);
}

void experts(Block& block) {
  const Architecture& row = block.row;
  const Extent h = hidden(block.keys);
  const Extent width = expert_width(block.keys);
  const std::string at(row.mlp_name);
  block.add_experts(at + ".experts.gate_up_proj", 2 * width, h, width).bias = row.experts_bias;
  Weight& down = block.add_experts(at + ".experts.down_proj", h, width, width);
  down.bias = row.experts_bias;
  const Extent zero = zero_experts(block.keys);
  const Extent all = zero.value == 0 ? plain(down.groups) : plain(down.groups) + zero;
  block.add(fmt::format("{}.{}", at, row.router_name), all, h);
  if (row.router_bias) {
    block.add_vector(fmt::format("{}.{} bias", at, row.router_name), all, kNorm);
  }
}

void shared_experts(Block& block) {
  const Architecture& row = block.row;
  const Extent width = shared_width(block);
  const std::string at(row.mlp_name);
  if (width.value == 0) return;
  add_mlp(block, fmt::format("{}.{}", at, row.shared_name), width);
  if (row.shared_gate) {
    block.add(fmt::format("{}.{}_gate", at, row.shared_name), plain(1), hidden(block.keys));
  }
}

void mtp(Block& block) {
  const Extent h = hidden(block.keys);
  block.add("eh_proj", h, 2 * h);
  block.add_vector("enorm, hnorm, norm", 3 * h, kNorm);
}

void embeddings(Block& block) {
  Keys& keys = block.keys;
  const Extent h = hidden(keys);
  const Extent vocabulary = keys.count({"vocab_size"});
  block.add("embed_tokens", vocabulary, h);
  if (!keys.flag("tie_word_embeddings", block.row.tied)) {
    block.add("lm_head", vocabulary, h).bias = has_bias(keys, block.row.lm_head_bias);
  }
  const std::int64_t norms = block.row.final_norms;
  if (norms > 0) block.add_vector("norm", norms == 1 ? h : norms * h, kNorm);
}

}  // namespace octile::tools
