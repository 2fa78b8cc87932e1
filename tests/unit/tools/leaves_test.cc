// Names of weights: what ranks divide, what serving engines fuse, what is read, what stays out.
#include "tools/models/config/leaves.h"

#include <gtest/gtest.h>

#include <string>

#include "tools/models/source.h"

namespace octile::tools {
namespace {

Weight named(const std::string& role, std::int64_t n = 64, std::int64_t k = 32) {
  Weight weight{.role = role, .n = {n, "n"}, .k = {k, "k"}};
  name_weight(weight);
  return weight;
}

TEST(Leaves, KnowEveryWeightOfTheShippedModels) {
  for (const std::string& name : shipped_model_names()) {
    const auto model = find_model(name);
    ASSERT_TRUE(model) << model.error().message;
    for (const Weight& weight : model->weights) {
      if (weight.is_vector()) continue;
      EXPECT_NE(find_leaf(weight.role), nullptr) << name << " " << weight.role;
      EXPECT_NE(weight.cut, Cut::kUnknown) << name << " " << weight.role;
      const bool has_units =
          weight.cut == Cut::kNone || weight.padded > 0 || weight.units.value > 0;
      EXPECT_TRUE(has_units) << name << " " << weight.role;
    }
  }
}

TEST(Leaves, TheLongestEndOfANameCounts) {
  EXPECT_EQ(named("self_attn.k_proj").kv_n, 64);
  EXPECT_EQ(named("self_attn.indexer.k_proj").cut, Cut::kNone);
  EXPECT_TRUE(named("self_attn.gate_proj").is_attention);
  EXPECT_FALSE(named("mlp.gate_proj").is_attention);
  EXPECT_EQ(named("mamba.out_proj").cut, Cut::kNone);
  EXPECT_EQ(named("attention.output.dense").cut, Cut::kK);
  EXPECT_TRUE(named("attention.output.dense").is_attention);
  EXPECT_FALSE(named("output.dense").is_attention);
  EXPECT_EQ(named("mlp.unheard_of").cut, Cut::kUnknown);
  EXPECT_EQ(named("mlp.unheard_of").input, "mlp.unheard_of");
  EXPECT_EQ(named("").cut, Cut::kUnknown);
}

TEST(Leaves, SayWhatIsFusedAndRead) {
  EXPECT_EQ(named("self_attn.q_proj").fused, "self_attn.qkv_proj");
  EXPECT_EQ(named("self_attn.0.q_a_proj").fused, "self_attn.0.qkv_a_proj");
  EXPECT_EQ(named("mlp.up_proj").fused, "mlp.gate_up_proj");
  EXPECT_EQ(named("mlp.experts.up_proj").fused, "") << "experts are stacked";
  EXPECT_EQ(named("mlp.up_proj").input, "mlp");
  EXPECT_EQ(named("mlp.experts.up_proj").input, "experts");
  EXPECT_EQ(named("mlp.shared_experts.up_proj").input, "shared");
  EXPECT_TRUE(named("mlp.shared_experts.up_proj").is_shared);
  EXPECT_EQ(named("mlp.shared_experts.down_proj").input, "mlp.shared_experts.activation");
  EXPECT_EQ(named("self_attn.f_b_proj").input, "self_attn.f_a_proj");
  EXPECT_EQ(named("mlp.gate_up_proj").stacked, 2);
}

TEST(Leaves, TablesAreKnownByParts) {
  for (const char* role :
       {"embed_tokens", "embed", "wte", "wpe", "shared", "decoder.embed_positions",
        "embeddings.word_embeddings", "SelfAttention.relative_attention_bias"}) {
    EXPECT_EQ(named(role).out, "a table: no GEMM") << role;
  }
  for (const char* role : {"lm_head", "head", "output", "embed_out", "shared_head.head"}) {
    EXPECT_EQ(named(role).out, "the output layer, kept in BF16") << role;
    EXPECT_EQ(named(role).padded, 64) << role;
  }
  EXPECT_EQ(named("mlp.shared.up_proj").out, "");
  EXPECT_EQ(named("attention.output.dense").out, "");
}

TEST(Leaves, UsualNames) {
  EXPECT_EQ(usual_name("block_sparse_moe.experts.w2"), "mlp.experts.down_proj");
  EXPECT_EQ(usual_name("feed_forward.router"), "mlp.gate");
  EXPECT_EQ(usual_name("mlp.gate.wg"), "mlp.gate");
  EXPECT_EQ(usual_name("block_sparse_moe.router.layer"), "mlp.gate");
  EXPECT_EQ(usual_name("attn.wq"), "self_attn.q_proj");
  EXPECT_EQ(usual_name("shared_mlp.input_linear"), "shared_mlp.gate_up_proj");
  EXPECT_EQ(usual_name("decoder.embed_positions"), "decoder.embed_positions");
  EXPECT_EQ(usual_name("own.name"), "own.name");
}

TEST(Leaves, HeadsDivideAWeightOrNothingDoes) {
  const auto divided = [](Weight weight, const HeadCounts& counts) {
    divide_by_name(weight, counts);
    return weight;
  };
  EXPECT_EQ(divided(named("self_attn.q_proj"), {.heads = 4}).units.value, 4);
  EXPECT_EQ(divided(named("self_attn.q_proj"), {.heads = 3}).cut, Cut::kUnknown);
  EXPECT_EQ(divided(named("self_attn.q_proj"), {}).cut, Cut::kUnknown);
  EXPECT_EQ(divided(named("self_attn.o_proj"), {.heads = 8}).units.value, 8);
  const Weight k = divided(named("self_attn.k_proj"), {.heads = 8, .kv_heads = 2});
  EXPECT_EQ(k.kv_heads.value, 2);
  EXPECT_EQ(k.kv_n, 64);
  Weight wider = k;
  wider.n.value = 96;
  EXPECT_EQ(divided(wider, {.heads = 8, .kv_heads = 2}).kv_n, 96);
  const Weight qkv = divided(named("self_attn.qkv_proj"), {.heads = 4, .kv_heads = 2});
  EXPECT_EQ(qkv.units.value, 4);
  EXPECT_EQ(qkv.kv_heads.value, 2);
  EXPECT_EQ(qkv.kv_n, 32);
  EXPECT_EQ(divided(named("self_attn.qkv_proj"), {.heads = 4}).cut, Cut::kUnknown);
  EXPECT_EQ(divided(named("linear_attn.out_proj"), {.heads = 4}).cut, Cut::kUnknown);
  EXPECT_EQ(divided(named("linear_attn.out_proj"), {.linear_heads = 4}).units.value, 4);
  EXPECT_EQ(divided(named("mlp.gate_up_proj"), {}).units.value, 32);
  EXPECT_EQ(divided(named("mlp.down_proj"), {}).units.value, 32);
  EXPECT_EQ(divided(named("self_attn.q_a_proj"), {}).cut, Cut::kNone);
}

}  // namespace
}  // namespace octile::tools
