// Headers of .safetensors files, and what they say of a model.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "tests/support/api_handles.h"
#include "tools/models/checkpoint/checkpoint.h"
#include "tools/models/checkpoint/safetensors.h"
#include "tools/models/layout.h"
#include "tools/models/parallel.h"
#include "tools/models/recipes.h"
#include "tools/models/source.h"

namespace octile::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of(const std::string& header, std::uint64_t data_bytes = 64) {
  const auto tensors = parse_safetensors_header(header, data_bytes, "s");
  return tensors ? "accepted" : tensors.error().message;
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& range) {
  return fmt::format(R"({{"a": {{"dtype": "{}", "shape": {}, "data_offsets": {}}}}})", dtype, shape,
                     range);
}

TEST(Safetensors, ReadsTypesAndShapes) {
  const auto tensors = parse_safetensors_header(
      R"({"__metadata__": {"format": "pt"},
          "a": {"dtype": "BF16", "shape": [2, 8], "data_offsets": [0, 32]},
          "b": {"dtype": "F8_E4M3", "shape": [], "data_offsets": [32, 33]}})",
      64, "s");
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_EQ(tensors->at("a").dtype, "BF16");
  EXPECT_THAT(tensors->at("a").shape, ElementsAre(2, 8));
  EXPECT_TRUE(tensors->at("b").shape.empty());
}

TEST(Safetensors, SaysWhichHeadersLie) {
  EXPECT_EQ(error_of("[]"), "s: the header is not an object; allowed: an object of tensors");
  EXPECT_EQ(error_of(R"({"a": 1})"),
            "s: 'a' is not a tensor; allowed: dtype, shape and data_offsets");
  EXPECT_EQ(error_of(tensor("BF17", "[1]", "[0, 2]")),
            "s: dtype of 'a' is \"BF17\"; allowed: a type such as BF16 or F8_E4M3");
  for (const char* shape :
       {"[-1]", "[1.5]", "8", "[1,1,1,1,1,1,1,1,1]", "[1073741824,1073741824]", "[\"8\"]"}) {
    EXPECT_THAT(error_of(tensor("BF16", shape, "[0, 2]")),
                HasSubstr("allowed: a list of up to 8 integers from 0 on, below 2^56"))
        << shape;
  }
  for (const char* range : {"[0]", "[8, 2]", "[0, 65]", "[-1, 1]", "[0, 18446744073709551616]"}) {
    EXPECT_THAT(error_of(tensor("BF16", "[1]", range)),
                HasSubstr("allowed: two ascending integers from 0 to 64, the bytes of data"))
        << range;
  }
  EXPECT_EQ(
      error_of(tensor("BF16", "[2]", "[0, 6]")),
      "s: data_offsets of 'a' is [0,6]; allowed: a range of 4 bytes, for its shape and dtype");
  EXPECT_EQ(error_of(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                         "b": {"dtype": "U8", "shape": [4], "data_offsets": [3, 7]}})"),
            "s: 'a' and 'b' overlap; allowed: tensors that follow each other");
  EXPECT_THAT(error_of("{"), HasSubstr("s: line 1, column 1: the text ends here"));
  const auto length = [](std::string first, std::uint64_t bytes) {
    const auto read = safetensors_header_bytes(first, bytes, "s");
    return read ? std::to_string(*read) : read.error().message;
  };
  const std::string eight("\x08\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(length(eight, 16), "8");
  EXPECT_EQ(length(eight, 15), "s: its header has 8 bytes; allowed: up to 7");
  EXPECT_EQ(length(std::string(8, '\xff'), 100),
            "s: its header has 18446744073709551615 bytes; allowed: up to 92");
  EXPECT_EQ(length("abc", 3),
            "s: it has 3 bytes; allowed: 8 and more, the length of the header first");
}

// --- checkpoints in a folder ---

class Checkpoint : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path() + "/" + name, std::ios::binary) << text;
  }

  // Writes a file of tensors, "name dtype bytes_an_element shape".
  using Tensors = std::vector<std::tuple<std::string, std::string, int, std::vector<int>>>;
  void write_tensors(const std::string& file, const Tensors& tensors) const {
    Json header = Json::object();
    std::int64_t at = 0;
    for (const auto& [name, dtype, bytes, shape] : tensors) {
      std::int64_t size = bytes;
      for (const int extent : shape) size *= extent;
      header.add(
          name,
          {{"dtype", dtype}, {"shape", shape}, {"data_offsets", Json::array({at, at + size})}});
      at += size;
    }
    const std::string text = header.dump();
    std::string first(8, '\0');
    for (std::size_t i = 0; i < 8; ++i)
      first[i] = static_cast<char>((text.size() >> (8 * i)) & 0xff);
    write(file, first + text + std::string(static_cast<std::size_t>(at), '\0'));
  }

  Model read() const {
    auto model = find_model(folder_.path());
    EXPECT_TRUE(model) << model.error().message;
    if (!model) return {};
    EXPECT_TRUE(assign_recipes(*model, {}));
    return std::move(*model);
  }

  static std::vector<std::string> lines_of(const Model& model) {
    std::vector<std::string> lines;
    for (const Weight& w : model.weights) {
      lines.push_back(fmt::format("{} {} {} {} {} {}", w.role, w.layers, w.n.value, w.k.value,
                                  w.groups, w.out.empty() ? w.recipe : w.out));
    }
    return lines;
  }

  test::TempFolder folder_;
};

std::string missing(const std::string& weight) {
  return weight + " is not in the checkpoint: its size is the config's";
}

std::string unclaimed(const std::string& weight) {
  return weight + " is in the checkpoint, and no weight of the config is it";
}

constexpr const char* kLlama = R"({"model_type": "llama", "hidden_size": 32,
  "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 2, "vocab_size": 64})";

TEST_F(Checkpoint, DecidesTheTypeOfEachWeightAndItsSize) {
  write("config.json", kLlama);
  const std::string at = "model.layers.0.";
  write_tensors("model.safetensors", {{at + "self_attn.q_proj.weight", "F8_E4M3", 1, {32, 32}},
                                      {at + "self_attn.q_proj.weight_scale", "F32", 4, {32, 1}},
                                      {at + "mlp.down_proj.weight", "F8_E4M3", 1, {32, 64}},
                                      {at + "mlp.down_proj.weight_scale", "F32", 4, {}},
                                      {at + "mlp.up_proj.weight", "BF16", 2, {96, 32}},
                                      {at + "mlp.gate_proj.weight", "F8_E4M3", 1, {64, 32}},
                                      {at + "mlp.gate_proj.weight_scale_inv", "F32", 4, {1, 1}}});
  const Model model = read();
  EXPECT_THAT(lines_of(model),
              ::testing::IsSupersetOf({"self_attn.q_proj 1 32 32 0 rowwise:f32",
                                       "mlp.gate_proj 1 64 32 0 blockwise:f32",
                                       "mlp.up_proj 1 96 32 0 BF16 in the checkpoint",
                                       "mlp.down_proj 1 32 64 0 tensorwise:f32"}));
  EXPECT_THAT(model.remarks,
              ElementsAre("mlp.up_proj: n is 64 by the config and 96 in the checkpoint, which is "
                          "taken",
                          missing("self_attn.k_proj [32, 32] of 1 layers"),
                          missing("self_attn.v_proj [32, 32] of 1 layers"),
                          missing("self_attn.o_proj [32, 32] of 1 layers"),
                          missing("embed_tokens [64, 32]"), missing("lm_head [64, 32]")));
}

// All recipes have weights in E4M3 and blocks of 128 x 128.
TEST_F(Checkpoint, TypesAndScalesOfNoRecipeAreNamed) {
  write("config.json", R"({"model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64})");
  const std::string at = "model.layers.0.";
  write_tensors("model.safetensors", {{at + "self_attn.q_proj.weight", "F8_E5M2", 1, {256, 256}},
                                      {at + "self_attn.q_proj.weight_scale_inv", "F32", 4, {2, 2}},
                                      {at + "self_attn.k_proj.weight", "F8_E4M3", 1, {256, 256}},
                                      {at + "self_attn.k_proj.weight_scale_inv", "F32", 4, {4, 4}},
                                      {at + "self_attn.v_proj.weight", "F8_E4M3", 1, {256, 256}},
                                      {at + "self_attn.o_proj.weight", "F8_E4M3", 1, {256, 256}},
                                      {at + "self_attn.o_proj.weight_scale", "U8", 1, {256, 8}},
                                      {at + "mlp.up_proj.weight", "F8_E4M3", 1, {512, 256}},
                                      {at + "mlp.up_proj.weight_scale_inv", "F32", 4, {2, 4}},
                                      {at + "mlp.down_proj.weight", "F8_E4M3", 1, {256, 512}},
                                      {at + "mlp.down_proj.weight_scale_inv", "F32", 4, {3, 4}}});
  EXPECT_THAT(
      lines_of(read()),
      ::testing::IsSupersetOf(
          {std::string("self_attn.q_proj 1 256 256 0 F8_E5M2 in the checkpoint"),
           std::string("self_attn.k_proj 1 256 256 0 F8_E4M3 with blocks of 64 x 64 in the "
                       "checkpoint"),
           std::string("self_attn.v_proj 1 256 256 0 F8_E4M3 without weight_scale or "
                       "weight_scale_inv in the checkpoint"),
           std::string("self_attn.o_proj 1 256 256 0 mxfp8"),
           std::string("mlp.up_proj 1 512 256 0 F8_E4M3 with blocks of 256 x 64 in the checkpoint"),
           std::string("mlp.down_proj 1 256 512 0 F8_E4M3 with scales [3, 4] for [256, 512] in "
                       "the checkpoint")}));
}

// Indices of large mixtures name hundreds of thousands of tensors.
TEST_F(Checkpoint, ReadsManyTensorsInLinearTime) {
  write("config.json", R"({"model_type": "new_moe", "num_experts_per_tok": 2, "hidden_size": 32})");
  const std::clock_t begin = std::clock();
  std::string header = "{";
  constexpr int kTensors = 100'000;
  for (int i = 0; i < kTensors; ++i)
    header += fmt::format(
        R"({}"model.layers.{}.mlp.experts.{}.w2.weight":{{"dtype":"BF16","shape":[32,0],"data_offsets":[0,0]}})",
        i == 0 ? "" : ",", i / 1000, i % 1000);
  const auto tensors = parse_safetensors_header(header + "}", 0, "s");
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_EQ(tensors->size(), kTensors);
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 20) << "seconds of the processor";
}

TEST_F(Checkpoint, ServesAnUnknownArchitectureAlone) {
  write("config.json", R"({"model_type": "new_moe", "num_experts_per_tok": 2})");
  Tensors tensors{{"model.embed_tokens.weight", "BF16", 2, {64, 32}},
                  {"model.norm.weight", "BF16", 2, {32}},
                  {"model.vision_tower.fc.weight", "BF16", 2, {8, 8}}};
  for (const char* layer : {"0", "1"}) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    tensors.push_back({at + "attn.q_proj.weight", "F8_E4M3", 1, {32, 32}});
    tensors.push_back({at + "attn.q_proj.weight_scale_inv", "F32", 4, {1, 1}});
    tensors.push_back({at + "mlp.gate.weight", "BF16", 2, {4, 32}});
    for (int expert = 0; expert < 4; ++expert) {
      const std::string of = fmt::format("{}mlp.experts.{}.", at, expert);
      tensors.push_back({of + "w1.weight", "BF16", 2, {16, 32}});
      tensors.push_back({of + "w3.weight", "BF16", 2, {16, 32}});
      tensors.push_back({of + "w2.weight", "BF16", 2, {32, 16}});
    }
  }
  write_tensors("a.safetensors", tensors);
  const Model model = read();
  EXPECT_THAT(
      lines_of(model),
      ElementsAre("attn.q_proj 2 32 32 0 blockwise:f32", "embed_tokens 1 64 32 0 a table: no GEMM",
                  "mlp.experts.down_proj 2 32 16 4 BF16 in the checkpoint",
                  "mlp.experts.gate_up_proj 2 32 32 4 BF16 in the checkpoint",
                  "mlp.gate 2 4 32 0 the router, kept in BF16",
                  "vectors and convolutions 1 32 0 0 no GEMM"));
  EXPECT_EQ(model.weights[2].per_token, 2);
  EXPECT_THAT(model.remarks, ::testing::Contains(HasSubstr("64 parameters of towers")));
  // The config says no number of heads.
  EXPECT_EQ(shard(model, {.tp = 2}).error().message,
            fmt::format("--tp is 2; allowed: 1 for {}, because neither the name of attn.q_proj nor "
                        "a number of heads says how ranks divide it",
                        folder_.path()));
}

// One tensor of all experts may be [k, n]; the hidden size says so. A bias counts once, with its
// weight, and a block of scales is one even where it has a single column.
TEST_F(Checkpoint, ExpertsInOneTensorBiasesAndSmallBlocks) {
  write("config.json", R"({"model_type": "new_moe", "num_experts_per_tok": 1, "hidden_size": 32})");
  const std::string at = "model.layers.0.";
  write_tensors("a.safetensors", {{at + "mlp.experts.gate_up_proj", "BF16", 2, {4, 32, 96}},
                                  {at + "mlp.experts.gate_up_proj_bias", "BF16", 2, {4, 96}},
                                  {at + "mlp.experts.down_proj", "BF16", 2, {4, 48, 32}},
                                  {at + "attn.q_proj.weight", "F8_E4M3", 1, {256, 32}},
                                  {at + "attn.q_proj.weight_scale_inv", "F32", 4, {2, 1}},
                                  {at + "attn.q_proj.bias", "BF16", 2, {256}},
                                  {at + "linear_attn.in_proj_ba.weight", "BF16", 2, {8, 32}}});
  const Model model = read();
  EXPECT_THAT(
      lines_of(model),
      ElementsAre("attn.q_proj 1 256 32 0 blockwise:f32",
                  "linear_attn.in_proj_ba 1 8 32 0 gates of a head each, which stay in BF16",
                  "mlp.experts.down_proj 1 32 48 4 BF16 in the checkpoint",
                  "mlp.experts.gate_up_proj 1 96 32 4 BF16 in the checkpoint"));
  EXPECT_TRUE(model.weights[0].bias);
  EXPECT_TRUE(model.weights[3].bias);
  EXPECT_EQ(parameters_of(model), 256 * 33 + 8 * 32 + 4 * (96 * 33 + 32 * 48));
}

TEST_F(Checkpoint, MatricesOfTheConfigOrTheCheckpointAloneAreRemarks) {
  write("config.json", R"({"model_type": "deepseek_v3", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 3, "num_attention_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "vocab_size": 64,
    "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
    "n_shared_experts": 1, "first_k_dense_replace": 2, "num_nextn_predict_layers": 1})");
  Tensors tensors{{"model.embed_tokens.weight", "BF16", 2, {64, 32}},
                  {"lm_head.weight", "BF16", 2, {64, 32}},
                  {"model.layers.3.eh_proj.weight", "BF16", 2, {32, 64}},
                  {"model.layers.3.shared_head.head.weight", "BF16", 2, {64, 32}},
                  {"model.layers.1.extra.weight", "BF16", 2, {8, 32}},
                  {"model.layers.2.extra.weight", "BF16", 2, {8, 32}},
                  {"mtp.fc.weight", "BF16", 2, {32, 64}},
                  {"mtp.layers.0.mlp.gate.weight", "BF16", 2, {2, 32}},
                  {"model.layers.0.extra.mlp.experts.gate_up_proj", "BF16", 2, {4, 16, 32}}};
  for (const char* layer : {"0", "1", "2", "3"}) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    const bool is_dense = *layer < '2';
    tensors.push_back({at + "self_attn.q_a_proj.weight", "BF16", 2, {16, 32}});
    tensors.push_back({at + "self_attn.q_b_proj.weight", "BF16", 2, {64, 16}});
    tensors.push_back({at + "self_attn.kv_a_proj_with_mqa.weight", "BF16", 2, {32, 32}});
    tensors.push_back({at + "self_attn.kv_b_proj.weight", "BF16", 2, {64, 16}});
    if (*layer != '1') tensors.push_back({at + "self_attn.o_proj.weight", "BF16", 2, {32, 32}});
    const std::vector<std::string> mlps =
        is_dense ? std::vector<std::string>{"mlp"}
                 : std::vector<std::string>{"mlp.experts.0", "mlp.experts.1", "mlp.shared_experts"};
    const int width = is_dense ? 64 : 16;
    for (const std::string& mlp : mlps) {
      tensors.push_back({at + mlp + ".gate_proj.weight", "BF16", 2, {width, 32}});
      tensors.push_back({at + mlp + ".up_proj.weight", "BF16", 2, {width, 32}});
      tensors.push_back({at + mlp + ".down_proj.weight", "BF16", 2, {32, width}});
    }
    if (!is_dense) tensors.push_back({at + "mlp.gate.weight", "BF16", 2, {2, 32}});
  }
  write_tensors("model.safetensors", tensors);
  // Layers of multi-token prediction follow the others, also those with another first name.
  EXPECT_THAT(read().remarks,
              ::testing::UnorderedElementsAre(
                  missing("self_attn.o_proj [32, 32] of 1 of 3 layers, 1 first"),
                  unclaimed("mtp.fc [32, 64]"), unclaimed("shared_head.head [64, 32] of 1 layers"),
                  unclaimed("extra [8, 32] of 2 layers"),
                  unclaimed("extra.mlp.experts.gate_up_proj 4 x [16, 32] of 1 layers")));
}

// Rows, transformers and publishers have words of their own for the same parts.
TEST_F(Checkpoint, NamesOfOneMeaningAreNoRemarks) {
  const auto remarks = [&](const std::string& config, Tensors tensors) {
    write("config.json", config);
    tensors.push_back({"model.embed_tokens.weight", "BF16", 2, {64, 32}});
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      tensors.push_back(
          {fmt::format("model.layers.0.self_attn.{}.weight", name), "BF16", 2, {32, 32}});
    }
    write_tensors("model.safetensors", tensors);
    return read().remarks;
  };
  const std::string common = R"("hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 64,
    "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64,
    "tie_word_embeddings": true})";
  const std::string two = R"("num_local_experts": 2, "num_experts_per_tok": 1, )" + common;
  const std::string moe = "model.layers.0.block_sparse_moe.";
  EXPECT_THAT(remarks(R"({"model_type": "mixtral", )" + two,
                      {{moe + "gate.weight", "BF16", 2, {2, 32}},
                       {moe + "experts.0.w1.weight", "BF16", 2, {64, 32}},
                       {moe + "experts.0.w2.weight", "BF16", 2, {32, 64}},
                       {moe + "experts.0.w3.weight", "BF16", 2, {64, 32}}}),
              ElementsAre(HasSubstr("experts is 2 by the config and 1 in the checkpoint"),
                          HasSubstr("experts is 2 by the config and 1 in the checkpoint")));
  EXPECT_THAT(remarks(R"({"model_type": "granitemoe", "shared_intermediate_size": 0, )" + two,
                      {{moe + "router.layer.weight", "BF16", 2, {2, 32}},
                       {moe + "input_linear.weight", "BF16", 2, {2, 128, 32}},
                       {moe + "output_linear.weight", "BF16", 2, {2, 32, 64}}}),
              ::testing::IsEmpty());
  const std::string mlp = "model.layers.0.mlp.";
  EXPECT_THAT(remarks(R"({"model_type": "gpt_oss", "head_dim": 16, "quantization_config":
                          {"quant_method": "mxfp4"}, )" +
                          two,
                      {{mlp + "router.weight", "BF16", 2, {2, 32}},
                       {mlp + "experts.gate_up_proj_blocks", "U8", 1, {2, 128, 1, 16}},
                       {mlp + "experts.gate_up_proj_scales", "U8", 1, {2, 128, 1}},
                       {mlp + "experts.gate_up_proj_bias", "BF16", 2, {2, 128}},
                       {mlp + "experts.down_proj_blocks", "U8", 1, {2, 32, 2, 16}},
                       {mlp + "experts.down_proj_bias", "BF16", 2, {2, 32}}}),
              ::testing::IsEmpty());
  // Words of a packed format are in the checkpoint, and say nothing of n and k.
  EXPECT_THAT(
      remarks(
          R"({"model_type": "llama", "quantization_config": {"quant_method": "awq"}, )" + common,
          {{mlp + "gate_proj.qweight", "I32", 4, {32, 8}},
           {mlp + "gate_proj.qzeros", "I32", 4, {1, 8}},
           {mlp + "gate_proj.scales", "F16", 2, {1, 64}},
           {mlp + "up_proj.weight_packed", "I32", 4, {64, 4}},
           {mlp + "up_proj.weight_scale", "BF16", 2, {64, 1}},
           {mlp + "down_proj.qweight", "I32", 4, {64, 4}}}),
      ::testing::IsEmpty());
}

// A known type whose layers have other names: the headers are the list.
TEST_F(Checkpoint, ACheckpointOfAnotherModelIsReadByItsNames) {
  write("config.json", kLlama);
  write_tensors("model.safetensors", {{"fc.weight", "BF16", 2, {32, 96}},
                                      {"lm_head.weight", "BF16", 2, {16, 32}},
                                      {"midlayer.self_attn.q_proj.weight", "BF16", 2, {32, 64}}});
  const Model model = read();
  EXPECT_THAT(lines_of(model), ElementsAre("fc 1 32 96 0 blockwise",
                                           "lm_head 1 16 32 0 the output layer, kept in BF16",
                                           "midlayer.self_attn.q_proj 1 32 64 0 blockwise"));
  EXPECT_THAT(model.remarks, ::testing::Contains("the checkpoint has no weight of a layer of llama "
                                                 "by its name: it is of another model"));
}

// --- names alone ---

TEST_F(Checkpoint, EncoderAndDecoderHaveLayersOfTheirOwn) {
  write("config.json", R"({"model_type": "bart", "d_model": 32, "num_attention_heads": 2})");
  Tensors tensors{{"model.shared.weight", "BF16", 2, {64, 32}}};
  for (const char* layer : {"encoder.layers.0.", "encoder.layers.1.", "decoder.layers.0."}) {
    const std::string at = std::string("model.") + layer;
    tensors.push_back({at + "fc1.weight", "BF16", 2, {128, 32}});
    tensors.push_back({at + "fc2.weight", "BF16", 2, {32, 128}});
    tensors.push_back({at + "self_attn.q_proj.weight", "BF16", 2, {32, 32}});
  }
  for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
    tensors.push_back(
        {fmt::format("model.decoder.layers.0.encoder_attn.{}.weight", name), "BF16", 2, {32, 32}});
  }
  write_tensors("model.safetensors", tensors);
  const Model model = read();
  EXPECT_EQ(model.layers, 3);
  EXPECT_THAT(lines_of(model),
              ::testing::IsSupersetOf({"fc1 3 128 32 0 blockwise", "fc2 3 32 128 0 blockwise",
                                       "self_attn.q_proj 3 32 32 0 blockwise",
                                       "encoder_attn.q_proj 1 32 32 0 blockwise",
                                       "shared 1 64 32 0 a table: no GEMM"}));
  // Only keys and values read the encoder's states.
  const Model serving = laid_out(model, Layout::kServing);
  EXPECT_THAT(lines_of(serving),
              ::testing::IsSupersetOf({"encoder_attn.kv_proj 1 64 32 0 blockwise",
                                       "encoder_attn.q_proj 1 32 32 0 blockwise"}));
}

TEST_F(Checkpoint, NamesOfDeepSeekV4) {
  write("config.json", R"({"model_type": "new", "hidden_size": 512, "num_experts_per_tok": 1,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128],
                            "scale_fmt": "ue8m0"}})");
  const std::string at = "layers.0.";
  write_tensors("model.safetensors", {{"embed.weight", "BF16", 2, {64, 512}},
                                      {"head.weight", "BF16", 2, {64, 512}},
                                      {at + "attn.wq_a.weight", "F8_E4M3", 1, {256, 512}},
                                      {at + "attn.wq_a.scale", "F8_E8M0", 1, {2, 4}},
                                      {at + "attn.wo.weight", "F8_E4M3", 1, {512, 256}},
                                      {at + "attn.wo.weight_scale_inv", "F32", 4, {4, 2}},
                                      {at + "ffn.experts.0.w2.weight", "F8_E4M3", 1, {512, 256}},
                                      {at + "ffn.experts.0.w2.scale", "F8_E8M0", 1, {4, 2}},
                                      {at + "norm.scale", "F32", 4, {512}}});
  const Model model = read();
  EXPECT_THAT(lines_of(model),
              ElementsAre("attn.wo 1 512 256 0 blockwise", "attn.wq_a 1 256 512 0 blockwise",
                          "embed 1 64 512 0 a table: no GEMM",
                          "head 1 64 512 0 the output layer, kept in BF16",
                          "mlp.experts.down_proj 1 512 256 1 blockwise",
                          "vectors and convolutions 1 512 0 0 no GEMM"));
  // Scales in E8M0 are powers of two, also if the config is silent.
  write("config.json", R"({"model_type": "new", "hidden_size": 512})");
  EXPECT_THAT(lines_of(read()), ::testing::IsSupersetOf({"attn.wo 1 512 256 0 blockwise:f32",
                                                         "attn.wq_a 1 256 512 0 blockwise"}));
}

// GPT-2's Conv1D is [k, n]; its bias says so.
TEST_F(Checkpoint, AMatrixThatItsBiasTurns) {
  write("config.json", R"({"model_type": "gpt2", "n_embd": 32, "n_head": 2})");
  const std::string at = "h.0.";
  write_tensors("model.safetensors", {{"wte.weight", "F32", 4, {64, 32}},
                                      {"wpe.weight", "F32", 4, {16, 32}},
                                      {at + "attn.c_attn.weight", "F32", 4, {32, 96}},
                                      {at + "attn.c_attn.bias", "F32", 4, {96}},
                                      {at + "attn.c_proj.weight", "F32", 4, {32, 32}},
                                      {at + "attn.c_proj.bias", "F32", 4, {32}},
                                      {at + "mlp.c_fc.weight", "F32", 4, {32, 128}},
                                      {at + "mlp.c_fc.bias", "F32", 4, {128}},
                                      {at + "mlp.c_proj.weight", "F32", 4, {128, 32}},
                                      {at + "mlp.c_proj.bias", "F32", 4, {32}}});
  const Model model = read();
  EXPECT_THAT(lines_of(model),
              ElementsAre("attn.c_attn 1 96 32 0 blockwise", "attn.c_proj 1 32 32 0 blockwise",
                          "mlp.c_fc 1 128 32 0 blockwise", "mlp.c_proj 1 32 128 0 blockwise",
                          "wpe 1 16 32 0 a table: no GEMM", "wte 1 64 32 0 a table: no GEMM"));
  // No preset converts a table, under any name.
  Model all = *find_model(folder_.path());
  ASSERT_TRUE(assign_recipes(all, {.preset = "all", .convert = {"wpe"}}));
  EXPECT_EQ(lines_of(all), lines_of(model));
  const auto rank = shard(model, {.tp = 2});
  ASSERT_TRUE(rank) << rank.error().message;
  EXPECT_THAT(
      lines_of(*rank),
      ::testing::IsSupersetOf({"attn.c_attn 1 48 32 0 blockwise", "attn.c_proj 1 32 16 0 blockwise",
                               "mlp.c_fc 1 64 32 0 blockwise", "mlp.c_proj 1 32 64 0 blockwise"}));
}

// Weights of a checkpoint without a format of FP8 are converted, as without quantization_config.
TEST_F(Checkpoint, AnUnknownFormatOfAnUnknownModelIsThatOfItsTypes) {
  write("config.json", R"({"model_type": "new", "quantization_config": {"quant_method": "awq"}})");
  write_tensors("model.safetensors", {{"layers.0.mlp.up_proj.qweight", "I32", 4, {32, 8}},
                                      {"layers.0.mlp.down_proj.weight", "BF16", 2, {32, 64}}});
  const Model model = read();
  EXPECT_THAT(lines_of(model), ElementsAre("mlp.down_proj 1 32 64 0 blockwise",
                                           "mlp.up_proj 1 32 8 0 I32 in the checkpoint"));
  // It shares inputs by name; norms and activations of the model are unknown.
  EXPECT_EQ(model.weights[0].input, "mlp.activation, by its name");
  write("config.json", R"({"model_type": "new", "quantization_config": {"quant_method": 8}})");
  const auto refused = find_model(folder_.path());
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("quantization_config.quant_method is 8"));
}

// The experts of DBRX lie one behind the other in one matrix, those that go down as [k, n].
TEST_F(Checkpoint, ExpertsBehindEachOtherAreDivided) {
  write("config.json", R"({"model_type": "dbrx", "d_model": 32,
    "ffn_config": {"moe_num_experts": 4, "moe_top_k": 2}})");
  const std::string at = "transformer.blocks.0.ffn.experts.mlp.";
  write_tensors("model.safetensors", {{at + "w1", "BF16", 2, {4 * 48, 32}},
                                      {at + "v1", "BF16", 2, {4 * 48, 32}},
                                      {at + "w2", "BF16", 2, {4 * 48, 32}}});
  const Model model = read();
  EXPECT_THAT(lines_of(model), ElementsAre("mlp.experts.mlp.down_proj 1 32 48 4 blockwise",
                                           "mlp.experts.mlp.gate_up_proj 1 96 32 4 blockwise"));
  EXPECT_EQ(model.weights[0].per_token, 2);
}

TEST_F(Checkpoint, RanksDivideWhatNamesAndHeadsSay) {
  const auto rank = [&](const std::string& heads, std::int64_t ranks) {
    write("config.json", R"({"model_type": "new", "hidden_size": 32)" + heads + "}");
    const auto shared = shard(read(), {.tp = ranks});
    return shared ? lines_of(*shared) : std::vector{shared.error().message};
  };
  const std::string at = "model.layers.0.";
  write_tensors("model.safetensors", {{at + "attn.wqkv.weight", "BF16", 2, {64, 32}},
                                      {at + "attn.wo.weight", "BF16", 2, {32, 32}}});
  EXPECT_THAT(rank(R"(, "num_attention_heads": 4)", 2),
              ElementsAre(HasSubstr("neither the name of attn.wqkv nor a number of heads says")));
  write_tensors("model.safetensors", {{at + "attn.qkv_proj.weight", "BF16", 2, {64, 32}},
                                      {at + "attn.wo.weight", "BF16", 2, {32, 32}},
                                      {at + "mlp.w1.weight", "BF16", 2, {24, 32}},
                                      {at + "mlp.w2.weight", "BF16", 2, {32, 24}}});
  const std::string heads = R"(, "num_attention_heads": 4, "num_key_value_heads": 2)";
  // 4 heads of queries and 2 of keys and values, of 8 columns each; 4 ranks hold copies of these.
  EXPECT_THAT(rank(heads, 2),
              ElementsAre("attn.qkv_proj 1 32 32 0 blockwise", "attn.wo 1 32 16 0 blockwise",
                          "mlp.w1 1 12 32 0 blockwise", "mlp.w2 1 32 12 0 blockwise"));
  EXPECT_THAT(rank(heads, 4),
              ElementsAre("attn.qkv_proj 1 24 32 0 blockwise", "attn.wo 1 32 8 0 blockwise",
                          "mlp.w1 1 6 32 0 blockwise", "mlp.w2 1 32 6 0 blockwise"));
  EXPECT_THAT(rank(heads, 8), ElementsAre("--tp is 8; allowed are divisors of heads, 4, for "
                                          "attn.qkv_proj: 1, 2, 4"));
  EXPECT_THAT(rank("", 2), ElementsAre(HasSubstr("neither the name of attn.qkv_proj nor a")));
  // Heads that do not divide the weight are not its own.
  EXPECT_THAT(rank(R"(, "num_attention_heads": 3)", 3),
              ElementsAre(HasSubstr("neither the name of attn.qkv_proj nor a")));
  // The sizes of a row's weights are those of the checkpoint, and the heads those of the config.
  write("config.json", kLlama);
  write_tensors("model.safetensors", {{at + "self_attn.q_proj.weight", "BF16", 2, {96, 32}},
                                      {at + "self_attn.k_proj.weight", "BF16", 2, {48, 32}}});
  const auto half = shard(read(), {.tp = 2});
  ASSERT_TRUE(half) << half.error().message;
  EXPECT_THAT(lines_of(*half), ::testing::IsSupersetOf({"self_attn.q_proj 1 48 32 0 blockwise",
                                                        "self_attn.k_proj 1 24 32 0 blockwise"}));
  // A second weight that reads the hidden state by the name of one that is added to it.
  write_tensors("model.safetensors", {{at + "mlp.w2.weight", "BF16", 2, {24, 32}}});
  EXPECT_THAT(rank(heads, 2), ElementsAre(HasSubstr("neither the name of mlp.w2 nor a")));
}

TEST_F(Checkpoint, IndexesAreFollowedWithinTheFolderOnly) {
  write("config.json", R"({"model_type": "new"})");
  write_tensors("x.safetensors", {{"layers.0.up.weight", "BF16", 2, {16, 32}}});
  write("model.safetensors.index.json",
        R"({"weight_map": {"layers.0.up.weight": "x.safetensors"}})");
  EXPECT_THAT(lines_of(read()), ElementsAre("up 1 16 32 0 blockwise"));
  const auto error = [&](const std::string& index) {
    write("model.safetensors.index.json", index);
    const auto model = find_model(folder_.path());
    return model ? "accepted" : model.error().message;
  };
  EXPECT_THAT(error(R"({"weight_map": {"a": "../x.safetensors"}})"),
              HasSubstr("weight_map has '../x.safetensors' for 'a'; allowed: names"));
  EXPECT_THAT(error("{}"), HasSubstr("it has no weight_map"));
  // A partial download decides nothing.
  EXPECT_THAT(error(R"({"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}})"),
              AllOf(HasSubstr("model_type is 'new', which has no row here"),
                    HasSubstr("; 1 of the 2 files that model.safetensors.index.json names are "
                              "missing, y.safetensors first")));
  write("config.json", kLlama);
  EXPECT_THAT(read().remarks, ElementsAre(HasSubstr("are missing, y.safetensors first, so the")));
  write("config.json", R"({"model_type": "new"})");
  write("y.safetensors", "short");
  EXPECT_THAT(error(R"({"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}})"),
              HasSubstr("y.safetensors: it has 5 bytes; allowed: 8 and more"));
}

TEST_F(Checkpoint, AFifoIsRefusedAndNotWaitedFor) {
  write("config.json", kLlama);
  ASSERT_EQ(::mkfifo((folder_.path() + "/x.safetensors").c_str(), 0600), 0);
  const auto model = find_model(folder_.path());
  ASSERT_FALSE(model);
  EXPECT_THAT(model.error().message, HasSubstr("x.safetensors is a FIFO; allowed: a regular file"));
}

TEST_F(Checkpoint, ModeloptSaysMoreBesideTheConfig) {
  write("config.json", kLlama);
  write("hf_quant_config.json",
        R"({"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head", "*.up_proj"]}})");
  const Model model = read();
  EXPECT_THAT(lines_of(model),
              ::testing::IsSupersetOf({"mlp.gate_proj 1 64 32 0 tensorwise:f32",
                                       "mlp.up_proj 1 64 32 0 BF16 by quantization_config"}));
}

}  // namespace
}  // namespace octile::tools
