// Which weights of a checkpoint are stored as [k, n].
#include "tools/models/checkpoint/stored_shapes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace octile::tools {
namespace {

using Shape = std::vector<std::int64_t>;

StoredTensors tensors_of(const std::map<std::string, Shape>& shapes,
                         const std::string& dtype = "BF16") {
  StoredTensors tensors;
  for (const auto& [name, shape] : shapes) tensors.emplace(name, StoredTensor{dtype, shape});
  return tensors;
}

bool is_transposed(const StoredTensors& tensors, const std::string& name,
                   const StatedSizes& stated = {}) {
  return StoredShapes(tensors, stated)[name].is_transposed;
}

// transformers' Conv1D. The bias does not tell of a square weight, but the layer does.
TEST(StoredShapes, BiasesAndTheLayerTellConv1d) {
  const std::string at = "h.0.";
  const StoredTensors tensors = tensors_of({{at + "attn.c_attn.weight", {32, 96}},
                                            {at + "attn.c_attn.bias", {96}},
                                            {at + "attn.c_proj.weight", {32, 32}},
                                            {at + "attn.c_proj.bias", {32}},
                                            {at + "mlp.c_proj.weight", {128, 32}},
                                            {at + "mlp.c_proj.bias", {32}},
                                            {"wte.weight", {64, 32}}});
  EXPECT_TRUE(is_transposed(tensors, at + "attn.c_attn.weight"));
  EXPECT_TRUE(is_transposed(tensors, at + "attn.c_proj.weight"));
  EXPECT_TRUE(is_transposed(tensors, at + "mlp.c_proj.weight"));
  EXPECT_FALSE(is_transposed(tensors, "wte.weight"));
  const StoredShape shape = StoredShapes(tensors, {})[at + "attn.c_attn.weight"];
  EXPECT_EQ(shape.n, 96);
  EXPECT_EQ(shape.k, 32);
}

// GPT-BigCode and Qwen have nn.Linear under these names.
TEST(StoredShapes, NamesOfConv1dMayBeThoseOfLinear) {
  const std::string at = "transformer.h.3.";
  const StoredTensors tensors = tensors_of({{at + "attn.c_attn.weight", {96, 32}},
                                            {at + "attn.c_attn.bias", {96}},
                                            {at + "attn.c_proj.weight", {32, 32}},
                                            {at + "mlp.c_fc.weight", {128, 32}}});
  for (const char* name : {"attn.c_attn", "attn.c_proj", "mlp.c_fc"})
    EXPECT_FALSE(is_transposed(tensors, fmt::format("{}{}.weight", at, name))) << name;
  // Without a bias the model's type says so, and only of these names.
  const StoredTensors bare =
      tensors_of({{"h.0.attn.c_proj.weight", {32, 32}}, {"h.0.attn.o_proj.weight", {32, 32}}});
  EXPECT_FALSE(is_transposed(bare, "h.0.attn.c_proj.weight"));
  const StatedSizes gpt2{.model_type = "gpt2"};
  EXPECT_TRUE(is_transposed(bare, "h.0.attn.c_proj.weight", gpt2));
  EXPECT_FALSE(is_transposed(bare, "h.0.attn.o_proj.weight", gpt2));
}

TEST(StoredShapes, ALayerThatContradictsItselfTellsNothing) {
  const StoredTensors tensors = tensors_of({{"layers.0.a.weight", {32, 96}},
                                            {"layers.0.a.bias", {96}},
                                            {"layers.0.b.weight", {96, 32}},
                                            {"layers.0.b.bias", {96}},
                                            {"layers.0.c.weight", {32, 32}}});
  EXPECT_TRUE(is_transposed(tensors, "layers.0.a.weight"));
  EXPECT_FALSE(is_transposed(tensors, "layers.0.c.weight"));
}

// Llama 4 and Qwen3-VL-MoE store [E, k, n], Qwen3-MoE of transformers 5 [E, n, k].
TEST(StoredShapes, TheHiddenSizeOrThePairTellsExperts) {
  const std::string at = "model.layers.0.mlp.experts.";
  const StoredTensors kn =
      tensors_of({{at + "gate_up_proj", {4, 32, 96}}, {at + "down_proj", {4, 48, 32}}});
  const StoredTensors nk =
      tensors_of({{at + "gate_up_proj", {4, 96, 32}}, {at + "down_proj", {4, 32, 48}}});
  for (const StatedSizes& stated : {StatedSizes{}, StatedSizes{.hidden = 32}}) {
    for (const char* name : {"gate_up_proj", "down_proj"}) {
      EXPECT_TRUE(is_transposed(kn, at + name, stated)) << name;
      EXPECT_FALSE(is_transposed(nk, at + name, stated)) << name;
    }
  }
  // Without a gate only the hidden size tells.
  const StoredTensors plain =
      tensors_of({{at + "up_proj", {4, 32, 48}}, {at + "down_proj", {4, 48, 32}}});
  EXPECT_FALSE(is_transposed(plain, at + "up_proj"));
  EXPECT_TRUE(is_transposed(plain, at + "up_proj", {.hidden = 32}));
  EXPECT_TRUE(is_transposed(plain, at + "down_proj", {.hidden = 32}));
  // A partner of other dimensions tells nothing.
  const StoredTensors odd =
      tensors_of({{at + "gate_up_proj", {4, 32, 96}}, {at + "down_proj", {}}});
  EXPECT_FALSE(is_transposed(odd, at + "gate_up_proj"));
  // Words that hold several elements have shapes of their own.
  const StoredTensors packed = tensors_of({{at + "gate_up_proj", {4, 32, 96}}}, "U8");
  EXPECT_FALSE(is_transposed(packed, at + "gate_up_proj", {.hidden = 32}));
}

// gpt-oss: hidden and intermediate size are equal, so that down_proj is square.
TEST(StoredShapes, SquareExpertsAreAsTheOthersOfTheirLayer) {
  const std::string at = "model.layers.7.", experts = at + "mlp.experts.";
  const StoredTensors tensors = tensors_of({{experts + "gate_up_proj", {4, 64, 128}},
                                            {experts + "gate_up_proj_bias", {4, 128}},
                                            {experts + "down_proj", {4, 64, 64}},
                                            {experts + "down_proj_bias", {4, 64}},
                                            {at + "self_attn.q_proj.weight", {128, 64}},
                                            {at + "self_attn.q_proj.bias", {128}},
                                            {at + "self_attn.o_proj.weight", {64, 64}}});
  EXPECT_TRUE(is_transposed(tensors, experts + "gate_up_proj", {.hidden = 64}));
  EXPECT_TRUE(is_transposed(tensors, experts + "down_proj", {.hidden = 64}));
  EXPECT_FALSE(is_transposed(tensors, at + "self_attn.o_proj.weight", {.hidden = 64}));
}

// DBRX.
TEST(StoredShapes, ExpertsBehindEachOtherAreDivided) {
  const std::string at = "transformer.blocks.0.ffn.experts.mlp.";
  const StoredTensors tensors = tensors_of({{at + "w1", {4 * 48, 32}}, {at + "w2", {4 * 48, 32}}});
  const StatedSizes stated{.hidden = 32, .experts = 4};
  const StoredShape up = StoredShapes(tensors, stated)[at + "w1"];
  const StoredShape down = StoredShapes(tensors, stated)[at + "w2"];
  EXPECT_EQ(up.experts, 4);
  EXPECT_EQ(up.n, 48);
  EXPECT_FALSE(up.is_transposed);
  EXPECT_EQ(down.n, 32);
  EXPECT_EQ(down.k, 48);
  EXPECT_TRUE(down.is_transposed);
}

}  // namespace
}  // namespace octile::tools
