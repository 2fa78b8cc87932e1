// From a config.json to the weights of a rank: architectures, errors, splits, recipes.
// tests/python/test_shapes.py compares the weights of every architecture with transformers.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "tools/models/checkpoint/checkpoint.h"
#include "tools/models/config/architectures.h"
#include "tools/models/config/derive.h"
#include "tools/models/document.h"
#include "tools/models/layout.h"
#include "tools/models/parallel.h"
#include "tools/models/recipes.h"
#include "tools/models/source.h"

namespace octile::tools {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const Json kLlama = {{"model_type", "llama"},    {"hidden_size", 64},
                     {"intermediate_size", 128}, {"num_hidden_layers", 2},
                     {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                     {"vocab_size", 256}};

Json with(Json config, std::string_view key, const Json& value) {
  config.set(key, value);
  return config;
}

Json without(const Json& config, std::string_view key) {
  Json others = Json::object();
  for (const auto& [name, value] : config.items()) {
    if (name != key) others.add(name, value);
  }
  return others;
}

Json with_all(Json config, const Json& more) {
  for (const auto& [name, value] : more.items()) config.set(name, value);
  return config;
}

Json moe() {
  return with_all(kLlama, {{"model_type", "qwen3_moe"},
                           {"num_experts", 8},
                           {"num_experts_per_tok", 2},
                           {"moe_intermediate_size", 32}});
}

Model derived(const Json& config) {
  const auto model = model_of_config(config, "c.json", "c");
  EXPECT_TRUE(model) << model.error().message;
  return model.value_or(Model());
}

std::string error_of(const Json& config) {
  const auto model = model_of_config(config, "c.json", "c");
  if (model) return "accepted";
  EXPECT_EQ(model.error().code, ErrorCode::kInvalidArgument);
  return model.error().message;
}

// Returns "role layers n k" of the weights that no reason keeps out.
std::vector<std::string> lines_of(const Model& model) {
  std::vector<std::string> lines;
  for (const Weight& w : model.weights) {
    if (w.out.empty())
      lines.push_back(fmt::format("{} {} {} {}", w.role, w.layers, w.n.value, w.k.value));
  }
  return lines;
}

const Weight& weight_of(const Model& model, const std::string& role) {
  const auto found = std::ranges::find(model.weights, role, &Weight::role);
  EXPECT_NE(found, model.weights.end()) << role;
  return found == model.weights.end() ? model.weights.front() : *found;
}

std::vector<std::int32_t> layers_of(const Json& config, const std::string& role) {
  const Model model = derived(config);
  return weight_of(model, role).at;
}

TEST(ModelConfig, IsTheWeightsOfItsLayers) {
  EXPECT_THAT(
      lines_of(derived(kLlama)),
      ElementsAre("self_attn.q_proj 2 64 64", "self_attn.k_proj 2 32 64",
                  "self_attn.v_proj 2 32 64", "self_attn.o_proj 2 64 64", "mlp.gate_proj 2 128 64",
                  "mlp.up_proj 2 128 64", "mlp.down_proj 2 64 128"));
  EXPECT_EQ(parameters_of(derived(kLlama)),
            2 * (3 * 64 * 64 + 3 * 128 * 64 + 2 * 64) + 2 * 256 * 64 + 64);
  const Json inner = {{"model_type", "anything"}, {"text_config", kLlama}};
  EXPECT_EQ(lines_of(derived(inner)), lines_of(derived(kLlama)));
  const Json thinker = {{"model_type", "anything"}, {"thinker_config", {{"text_config", kLlama}}}};
  EXPECT_EQ(lines_of(derived(thinker)), lines_of(derived(kLlama)));
}

TEST(ModelConfig, NamesTheKeyItsValueAndWhatIsAllowed) {
  const std::string count = "; allowed: an integer from 1 to 2147483647";
  EXPECT_EQ(error_of(without(kLlama, "hidden_size")), "c.json: hidden_size is missing" + count);
  EXPECT_EQ(error_of(with(kLlama, "num_hidden_layers", 0)),
            "c.json: num_hidden_layers is 0; allowed: an integer from 1 to 10000");
  EXPECT_EQ(error_of(with(kLlama, "num_hidden_layers", 10001)),
            "c.json: num_hidden_layers is 10001; allowed: an integer from 1 to 10000");
  EXPECT_EQ(error_of(with(kLlama, "intermediate_size", -1)),
            "c.json: intermediate_size is -1" + count);
  EXPECT_EQ(error_of(with(kLlama, "intermediate_size", 1.5)),
            "c.json: intermediate_size is 1.5" + count);
  EXPECT_EQ(error_of(with(kLlama, "vocab_size", 18446744073709551615U)),
            "c.json: vocab_size is 18446744073709551615" + count);
  EXPECT_EQ(error_of(with(kLlama, "vocab_size", Json::array({1, 2}))),
            "c.json: vocab_size is [1,2]; allowed: one number for all layers");
  EXPECT_EQ(error_of(with(kLlama, "attention_bias", "yes")),
            "c.json: attention_bias is \"yes\"; allowed: true or false");
  EXPECT_EQ(error_of(with(kLlama, "num_key_value_heads", 3)),
            "c.json: num_key_value_heads is 3; allowed: divisors of num_attention_heads, 4");
  EXPECT_EQ(error_of(with(kLlama, "num_attention_heads", 6)),
            "c.json: hidden_size is 64, no multiple of num_attention_heads 6; allowed: a multiple, "
            "or head_dim besides");
  EXPECT_EQ(error_of(with(kLlama, "head_dim", 2147483647)),
            "c.json: self_attn.q_proj has n = num_attention_heads x head_dim, which is 2147483647 "
            "or more; allowed: less");
  EXPECT_EQ(error_of({{"text_config", without(kLlama, "hidden_size")}}),
            "c.json: text_config.hidden_size is missing" + count);
  EXPECT_EQ(error_of(with(kLlama, "model_type", 3)),
            "c.json: model_type is 3; allowed: a text such as \"llama\"");
  EXPECT_EQ(error_of(with(kLlama, "text_config", 3)),
            "c.json: text_config is 3; allowed: an object");
  EXPECT_EQ(error_of(Json::array({1, 2})), "c.json: it is [1,2]; allowed: an object");
  // A key that cannot be read is not the cause of a second error.
  EXPECT_EQ(error_of(with(kLlama, "hidden_size", nullptr)), "c.json: hidden_size is null" + count);
}

TEST(ModelConfig, NamesWhatContradictsItself) {
  EXPECT_EQ(error_of(with(moe(), "num_experts_per_tok", 9)),
            "c.json: num_experts_per_tok is 9; allowed: 1 to num_experts, 8");
  EXPECT_EQ(error_of(with(moe(), "mlp_layer_types", Json::array({"dense"}))),
            "c.json: mlp_layer_types has 1 entries; allowed: 2, one for each layer");
  EXPECT_EQ(error_of(with(moe(), "mlp_layer_types", "dense")),
            "c.json: mlp_layer_types is \"dense\"; allowed: a list");
  EXPECT_EQ(error_of(with(moe(), "mlp_layer_types", Json::array({1, 2}))),
            "c.json: mlp_layer_types[0] is 1; allowed: dense, sparse");
  EXPECT_EQ(error_of(with(moe(), "mlp_layer_types", Json::array({"dense", "thick"}))),
            "c.json: mlp_layer_types[1] is \"thick\"; allowed: dense, sparse");
  EXPECT_EQ(error_of(with(moe(), "mlp_only_layers", Json::array({2}))),
            "c.json: mlp_only_layers is [2]; allowed: layers from 0 to 1");
  EXPECT_EQ(error_of(with(moe(), "first_k_dense_replace", 3)),
            "c.json: first_k_dense_replace is 3; allowed: 0 to 2, the layers");
  EXPECT_EQ(error_of(with(moe(), "moe_layer_freq", Json::array({1}))),
            "c.json: moe_layer_freq has 1 entries; allowed: 2, one for each layer");
  EXPECT_EQ(error_of(with(moe(), "moe_layer_end_index", 2)),
            "c.json: moe_layer_end_index is 2; allowed: -1, or a layer from 0 to 1");
  Json minimax = moe();
  minimax.set("model_type", "minimax");
  EXPECT_EQ(error_of(minimax),
            "c.json: attn_type_list is missing; allowed: a list of 0 (linear "
            "attention) and 1, or layer_types");
  EXPECT_EQ(
      error_of(with(minimax, "layer_types", Json::array({"full_attention", "half_attention"}))),
      "c.json: layer_types[1] is \"half_attention\"; allowed: linear_attention, "
      "full_attention, attention");
  Json delta = moe();
  delta = with_all(delta, {{"model_type", "qwen3_next"},
                           {"linear_num_key_heads", 3},
                           {"linear_num_value_heads", 4},
                           {"linear_key_head_dim", 8},
                           {"linear_value_head_dim", 8}});
  EXPECT_EQ(error_of(delta),
            "c.json: linear_num_value_heads is 4; allowed: multiples of linear_num_key_heads, 3");
}

TEST(ModelConfig, ListsWithinAnObjectAreNamedByBothKeys) {
  Json kimi = moe();
  kimi.set("model_type", "kimi_linear");
  for (const int layer : {0, 3}) {
    kimi.set("linear_attn_config", {{"full_attn_layers", Json::array({1, layer})}});
    EXPECT_EQ(error_of(kimi), fmt::format("c.json: linear_attn_config.full_attn_layers is [1,{}]; "
                                          "allowed: layers from 1 to 2",
                                          layer));
  }
  kimi.set("linear_attn_config", {{"full_attn_layers", Json::array()}});
  EXPECT_THAT(error_of(kimi), HasSubstr("c.json: linear_attn_config.head_dim is missing; allowed"));
  kimi.at("linear_attn_config").set("num_heads", "many");
  EXPECT_THAT(error_of(kimi),
              HasSubstr("c.json: linear_attn_config.num_heads is \"many\"; allowed"));
  Json m3 = moe();
  m3.set("model_type", "minimax_m3_vl_text");
  m3.set("sparse_attention_config", {{"sparse_attention_freq", Json::array({1})}});
  EXPECT_EQ(error_of(m3),
            "c.json: sparse_attention_config.sparse_attention_freq has 1 entries; allowed: 2, one "
            "for each layer");
}

TEST(ModelConfig, AnUnknownTypeIsOneSentenceWithTwoWaysOut) {
  constexpr const char* kWays =
      "; allowed: the model's .safetensors files beside it, or what octile.torch.shapes writes in "
      "its place";
  EXPECT_EQ(error_of(with(kLlama, "model_type", "lama")),
            std::string("c.json: model_type is 'lama', which has no row here") + kWays);
  EXPECT_EQ(error_of({{"text_config", without(kLlama, "model_type")}}),
            std::string("c.json: text_config.model_type is missing") + kWays);
}

TEST(ModelConfig, AnotherClassThanTheRowsIsARemark) {
  const auto remarks = [](Json config, const char* type, const char* name) {
    config.set("model_type", type);
    return derived(with(std::move(config), "architectures", Json::array({name}))).remarks;
  };
  for (const auto& [type, name] : {std::pair("llama", "LlamaForCausalLM"),
                                   {"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"},
                                   {"hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM"},
                                   {"smollm3", "SmolLM3ForCausalLM"}}) {
    EXPECT_THAT(remarks(kLlama, type, name), IsEmpty()) << name;
  }
  EXPECT_THAT(remarks(moe(), "qwen3_moe", "Qwen3MoeForCausalLM"), IsEmpty());
  for (const char* name : {"LlamaForCausalLMEagle3", "LlamaForSequenceClassification",
                           "Llama4ForCausalLM", "ForCausalLM"}) {
    EXPECT_THAT(remarks(kLlama, "llama", name),
                ElementsAre(fmt::format("architectures[0] is \"{}\", and the weights are those of "
                                        "llama: compare them with the checkpoint's headers",
                                        name)));
  }
  // A wrapper's class, unless the language model has one of its own.
  Json wrapper = {{"architectures", Json::array({"KimiK3ForConditionalGeneration"})},
                  {"text_config", kLlama}};
  EXPECT_THAT(derived(wrapper).remarks, Contains(HasSubstr("KimiK3ForConditionalGeneration")));
  wrapper.at("text_config").set("architectures", Json::array({"LlamaForCausalLM"}));
  EXPECT_THAT(derived(wrapper).remarks, Not(Contains(HasSubstr("architectures"))));
}

TEST(ModelConfig, KeysThatNothingReadAreARemark) {
  const auto remarks = [](const Json& more) { return derived(with_all(kLlama, more)).remarks; };
  EXPECT_THAT(remarks({{"routed_expert_hidden_size", 256},
                       {"mla_use_output_gate", true},
                       {"off", false},
                       {"none", 0},
                       {"share", 0.5},
                       {"name", "x"},
                       {"rope_scaling", {{"factor", 8}}}}),
              ElementsAre("the row of llama reads none of these keys, which may change weights: "
                          "routed_expert_hidden_size (256), mla_use_output_gate (true)"));
  EXPECT_THAT(remarks({{"_x", 1},
                       {"use_cache", true},
                       {"image_token_id", 7},
                       {"rope_theta", 10000},
                       {"max_position_embeddings", 4096},
                       {"tie_word_embeddings", true},
                       {"head_dim", 16}}),
              IsEmpty());
  // An object of which a key is read; the second name of a key counts as read.
  Json linear = with_all(moe(), {{"model_type", "kimi_linear"},
                                 {"linear_attn_config",
                                  {{"full_attn_layers", Json::array()},
                                   {"num_heads", 2},
                                   {"head_dim", 16},
                                   {"short_conv_kernel_size", 4},
                                   {"use_full_rank_gate", true}}},
                                 {"num_experts_per_token", 2}});
  EXPECT_THAT(derived(linear).remarks,
              ElementsAre(HasSubstr(": linear_attn_config.use_full_rank_gate (true)")));
  EXPECT_THAT(derived({{"text_config", with(kLlama, "extra", 3)}}).remarks,
              Contains(HasSubstr("text_config.extra (3)")));
}

TEST(ModelConfig, LayersWithExpertsFollowTheKeys) {
  const auto sparse = [](const Json& more) {
    const Model model = derived(with_all(with(moe(), "num_hidden_layers", 6), more));
    const auto found = std::ranges::find(model.weights, "mlp.experts.down_proj", &Weight::role);
    return found == model.weights.end() ? std::vector<std::int32_t>() : found->at;
  };
  EXPECT_THAT(sparse(Json::object()), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(sparse({{"first_k_dense_replace", 2}}), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(sparse({{"first_k_dense_replace", 1}, {"moe_layer_freq", 2}}), ElementsAre(2, 4));
  EXPECT_THAT(sparse({{"moe_layer_freq", Json::array({0, 1, 1, 0, 0, 1})}}), ElementsAre(1, 2, 5));
  EXPECT_THAT(sparse({{"decoder_sparse_step", 2}, {"mlp_only_layers", Json::array({3})}}),
              ElementsAre(1, 5));
  EXPECT_THAT(sparse({{"moe_layers", Json::array({0, 4})}}), ElementsAre(0, 4));
  EXPECT_THAT(
      sparse(
          {{"moe_layer_start_index", 2}, {"moe_layer_end_index", -1}, {"moe_layer_interval", 2}}),
      ElementsAre(3, 5));
  EXPECT_THAT(sparse({{"mlp_layer_types",
                       Json::array({"dense", "dense", "sparse", "dense", "sparse", "dense"})}}),
              ElementsAre(2, 4));
}

TEST(ModelConfig, IndexersAreOnlyInTheirLayers) {
  Json config = *parse_document(R"({"model_type": "glm_moe_dsa", "hidden_size": 64,
    "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 2, "q_lora_rank": 32,
    "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "index_n_heads": 2, "index_head_dim": 16, "vocab_size": 256, "index_topk_freq": 4})",
                                "c.json");
  EXPECT_THAT(layers_of(config, "self_attn.indexer.wk"), ElementsAre(0, 1, 5));
  config.set("indexer_types",
             Json::array({"shared", "full", "shared", "shared", "full", "shared"}));
  EXPECT_THAT(layers_of(config, "self_attn.indexer.wk"), ElementsAre(1, 4));
}

TEST(ModelConfig, EveryRowHasAnOwnTypeAndEveryShippedModelIsOfOne) {
  std::vector<std::string_view> types;
  for (const Architecture& row : architectures()) {
    types.insert(types.end(), row.model_types.begin(), row.model_types.end());
  }
  std::ranges::sort(types);
  EXPECT_EQ(std::ranges::adjacent_find(types), types.end());
  // The list that a reader has.
  const auto page = read_regular(OCTILE_SOURCE_DIR "/docs/models.md");
  ASSERT_TRUE(page) << page.error().message;
  const std::size_t begin = page->find("\n\n", page->find("The types with a row"));
  std::string listed = page->substr(begin, page->find("\n\n", begin + 2) - begin);
  std::erase_if(listed, [](char c) { return c == '\n' || c == ' ' || c == '`' || c == '.'; });
  EXPECT_EQ(listed, fmt::format("{}", fmt::join(types, ",")));
  for (const std::string& name : shipped_model_names()) {
    const auto model = find_model(name);
    ASSERT_TRUE(model) << name << ": " << model.error().message;
    EXPECT_FALSE(hub_ids_of(name).empty());
    EXPECT_EQ(find_model(hub_ids_of(name).front())->name, name);
  }
  EXPECT_GE(shipped_model_names().size(), 40U);
}

// `octile inspect` prints a pattern that --keep takes for every name that checkpoints have for a
// module.
TEST(Models, NamesOfStoredModulesBecomeThoseThatKeepTakes) {
  const auto with_part = [](const std::string& role, std::string_view part) {
    return role.substr(0, role.rfind('.') + 1) + std::string(part);
  };
  for (const std::string& name : shipped_model_names()) {
    const Model model = *find_model(name);
    for (const Weight& weight : model.weights) {
      if (weight.is_vector()) continue;
      const bool of_experts = weight.groups > 0;
      std::vector<std::string> stored{weight.role};
      const auto add = [&](std::string_view end, std::vector<std::string_view> parts) {
        if (!weight.role.ends_with(end)) return;
        for (const std::string_view part : parts) stored.push_back(with_part(weight.role, part));
      };
      add(".gate_up_proj", {"gate_proj", "up_proj", "w1", "w3", "v1"});
      add(".gate_proj", {"w1"});
      add(".down_proj", {"w2"});
      for (std::size_t i = 0, count = stored.size(); i < count; ++i) {
        if (!stored[i].starts_with("mlp.")) continue;
        for (const char* around : {"block_sparse_moe.", "feed_forward.", "ffn."})
          stored.push_back(around + stored[i].substr(4));
      }
      for (const std::string& one : stored) {
        const std::string pattern = role_in_model(model, one, of_experts);
        Model again = model;
        const Status ok = assign_recipes(again, {.keep = {pattern}});
        EXPECT_TRUE(ok) << name << ": " << one << ": " << ok.error().message;
      }
    }
  }
  const Model mixtral = *find_model("mixtral-8x7b");
  EXPECT_EQ(role_in_model(mixtral, "block_sparse_moe.experts.w2", true), "mlp.experts.down_proj");
  EXPECT_EQ(role_in_model(mixtral, "nothing.known", false), "nothing.known");
}

TEST(Document, HasBounds) {
  const auto error = [](const std::string& text) {
    const auto document = parse_document(text, "d.json");
    return document ? "accepted" : document.error().message;
  };
  EXPECT_EQ(error(R"({"a": {"b": 1}, "b": 2})"), "accepted");
  EXPECT_EQ(error(R"({"a": {"b": 1, "c": {}, "b": 2}})"),
            "d.json: the key 'b' stands twice in one object; allowed: once");
  EXPECT_EQ(error(R"({"a": 1, "b": [{"c": 1}], "a": 2})"),
            "d.json: the key 'a' stands twice in one object; allowed: once");
  EXPECT_EQ(error(std::string(64, '[') + std::string(64, ']')), "accepted");
  EXPECT_EQ(error(std::string(70, '[') + std::string(70, ']')),
            "d.json: nested more than 64 deep; allowed is less");
  EXPECT_THAT(error("{\"a\": }"), HasSubstr("d.json: line 1, column 7: "));
}

// json.dumps() of Python writes them, and its json.loads() reads them.
TEST(Document, NumbersThatPythonWrites) {
  const auto document = parse_document(
      R"({"Infinity": "NaN", "a": Infinity, "b": [-Infinity,NaN, "N", "Infini", 1.5], "\"NaN": NaN})",
      "d.json");
  ASSERT_TRUE(document) << document.error().message;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(document->at("Infinity"), "NaN");
  EXPECT_EQ(document->at("a"), kInfinity);
  EXPECT_EQ(document->at("b").at(0), -kInfinity);
  EXPECT_TRUE(std::isnan(*document->at("b").at(1).number()));
  EXPECT_EQ(document->at("b").at(2), "N");
  EXPECT_EQ(document->at("b").at(3), "Infini");
  EXPECT_TRUE(std::isnan(*document->at("\"NaN").number()));
  EXPECT_EQ(excerpt(document->at("a")), "Infinity");
  EXPECT_EQ(excerpt(document->at("b").at(0)), "-Infinity");
  EXPECT_EQ(excerpt(document->at("b").at(1)), "NaN");
  const auto error_of_text = [](const char* text) {
    const auto read = parse_document(text, "d.json");
    return read ? "accepted" : read.error().message;
  };
  for (const char* text :
       {"{NaN: 1}", "{\"a\": Infinity1}", "{\"a\": +Infinity}", "{\"a\": nan}", "{\"a\": NaNNaN}"})
    EXPECT_THAT(error_of_text(text), HasSubstr("d.json: line 1, column ")) << text;
  EXPECT_THAT(error_of(with(kLlama, "hidden_size", kInfinity)),
              HasSubstr("hidden_size is Infinity; allowed"));
}

// A parser that walks all siblings at the end of each value would take minutes.
TEST(Document, TakesLinearTime) {
  const std::clock_t begin = std::clock();
  std::string text = R"({"a": [)";
  constexpr int kCount = 400'000;
  for (int i = 0; i < kCount; ++i) text += "{},";
  text += "0]";
  for (int i = 0; i < kCount / 4; ++i) text += fmt::format(R"(,"k{}":[{{}}])", i);
  const auto document = parse_document(text + "}", "d.json");
  ASSERT_TRUE(document) << document.error().message;
  EXPECT_EQ(document->at("a").size(), kCount + 1U);
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 20) << "seconds of the processor";
}

// --- what a rank holds ---

Model with_recipes(const Json& config, const RecipeOptions& options = {}) {
  Model model = derived(config);
  const Status ok = assign_recipes(model, options);
  EXPECT_TRUE(ok) << ok.error().message;
  return model;
}

TEST(Parallel, HeadsAndWidthsAreDividedKeysAndValuesCopied) {
  const auto rank = shard(with_recipes(kLlama), {.tp = 4});
  ASSERT_TRUE(rank) << rank.error().message;
  EXPECT_THAT(lines_of(*rank),
              ElementsAre("self_attn.q_proj 2 16 64", "self_attn.k_proj 2 16 64",
                          "self_attn.v_proj 2 16 64", "self_attn.o_proj 2 64 16",
                          "mlp.gate_proj 2 32 64", "mlp.up_proj 2 32 64", "mlp.down_proj 2 64 32"));
  EXPECT_THAT(lines_of(laid_out(*rank, Layout::kServing)),
              ElementsAre("self_attn.qkv_proj 2 48 64", "self_attn.o_proj 2 64 16",
                          "mlp.gate_up_proj 2 64 64", "mlp.down_proj 2 64 32"));
  const auto attention_whole = shard(with_recipes(kLlama), {.tp = 4, .dp_attention = true});
  EXPECT_EQ(weight_of(*attention_whole, "self_attn.q_proj").n.value, 64);
  EXPECT_EQ(weight_of(*attention_whole, "mlp.up_proj").n.value, 32);
}

// Ranks hold as many columns of the output layer, a multiple of 64, padded behind the vocabulary.
TEST(Parallel, TheVocabularyIsPadded) {
  for (const auto& [vocabulary, ranks, columns] :
       {std::tuple(128256, 8, 16064), std::tuple(128256, 1, 128256), std::tuple(256, 4, 64),
        std::tuple(257, 4, 128)}) {
    Model model = derived(with(with(kLlama, "vocab_size", vocabulary), "num_attention_heads", 8));
    ASSERT_TRUE(assign_recipes(model, {.convert = {"lm_head"}}));
    const auto rank = shard(std::move(model), {.tp = ranks});
    ASSERT_TRUE(rank) << rank.error().message;
    EXPECT_EQ(weight_of(*rank, "lm_head").n.value, columns) << vocabulary << " " << ranks;
  }
}

// The shards of DeepSeek-V3 that serving engines run, and tuned files are named after.
TEST(Parallel, ShardsOfDeepSeekV3) {
  Model model = *find_model("deepseek-v3");
  ASSERT_TRUE(assign_recipes(model, {}));
  const auto rank = shard(std::move(model), {.tp = 16});
  ASSERT_TRUE(rank) << rank.error().message;
  EXPECT_THAT(
      lines_of(laid_out(*rank, Layout::kServing)),
      ElementsAre("self_attn.qkv_a_proj 61 2112 7168", "self_attn.q_b_proj 61 1536 1536",
                  "self_attn.kv_b_proj 61 2048 512", "self_attn.o_proj 61 7168 1024",
                  "mlp.gate_up_proj 3 2304 7168", "mlp.down_proj 3 7168 1152",
                  "mlp.experts.gate_up_proj 58 256 7168", "mlp.experts.down_proj 58 7168 128",
                  "mlp.shared_experts.gate_up_proj 58 256 7168",
                  "mlp.shared_experts.down_proj 58 7168 128"));
}

TEST(Parallel, ExpertsAreDividedByEpThenByWhatIsLeft) {
  const auto experts = [](const Parallel& parallel) {
    const auto rank = shard(with_recipes(moe()), parallel);
    EXPECT_TRUE(rank) << rank.error().message;
    const Weight& up = weight_of(*rank, "mlp.experts.gate_up_proj");
    return std::pair(up.groups, up.n.value);
  };
  EXPECT_EQ(experts({.tp = 4}), std::pair(8L, 16L));
  EXPECT_EQ(experts({.tp = 4, .ep = 2}), std::pair(4L, 32L));
  EXPECT_EQ(experts({.tp = 4, .ep = 4}), std::pair(2L, 64L));
  EXPECT_EQ(experts({.tp = 2, .ep = 8}), std::pair(1L, 64L));
  EXPECT_EQ(experts({.tp = 2, .ep = 4, .moe_tp = 2}), std::pair(2L, 32L));
  // Each owner has 100 tokens, of two rows each.
  EXPECT_EQ(*expert_rows({.tp = 1, .ep = 8}, 2, 100), 200);
  EXPECT_EQ(*expert_rows({.tp = 8, .ep = 8}, 2, 100), 25);
  EXPECT_EQ(*expert_rows({.tp = 8, .ep = 8, .dp_attention = true}, 2, 100), 200);
  EXPECT_EQ(*expert_rows({.tp = 8}, 2, 100), 200);
  EXPECT_EQ(expert_rows({.ep = 2}, 2, 1073741824).error().message,
            "--tokens is 1073741824; allowed are 1 to 1073741823: a rank's experts receive 4 rows "
            "for each / 2, below 2^31 in all");
}

TEST(Parallel, WhatDoesNotDivideIsNamedWithItsDivisors) {
  const auto error = [](const Parallel& parallel) {
    const auto rank = shard(with_recipes(moe()), parallel);
    return rank ? "accepted" : rank.error().message;
  };
  EXPECT_EQ(
      error({.tp = 3}),
      "--tp is 3; allowed are divisors of num_attention_heads, 4, for self_attn.q_proj: 1, 2, 4");
  EXPECT_EQ(error({.ep = 3}), "--ep is 3; allowed are divisors of the model's 8 experts");
  EXPECT_EQ(error({.tp = 4, .ep = 8, .moe_tp = 3}),
            "--moe-tp is 3; allowed are divisors of moe_intermediate_size, 32, for "
            "mlp.experts.gate_up_proj: 1, 2, 4, 8, 16, 32");
  EXPECT_EQ(error({.tp = 2, .ep = 3}),
            "--ep is 3 with --tp 2; allowed: divisors and multiples of 2, or --moe-tp besides");
  EXPECT_EQ(error({.tp = 0}), "--tp is 0; allowed: 1 to 100000");
}

TEST(Parallel, ACutInsideABlockIsARemark) {
  const auto remarks = [](const char* name, const Parallel& parallel) {
    Model model = *find_model(name);
    EXPECT_TRUE(assign_recipes(model, {}));
    return shard(std::move(model), parallel)->remarks;
  };
  EXPECT_THAT(
      remarks("minimax-m2", {.tp = 8}),
      ElementsAre(HasSubstr("mlp.experts.gate_up_proj: 1536 / 8 = 192 is not a multiple of 128"),
                  HasSubstr("mlp.experts.down_proj: 1536 / 8 = 192")));
  EXPECT_THAT(remarks("minimax-m2", {.tp = 8, .ep = 8}), IsEmpty());
  EXPECT_THAT(remarks("deepseek-v3", {.tp = 8}), IsEmpty());
  EXPECT_THAT(remarks("llama-3-8b", {.ep = 8}),
              ElementsAre("--ep is 8, and the model has no experts that it divides"));
  EXPECT_THAT(remarks("qwen3-235b-a22b", {.tp = 8}), IsEmpty())
      << "BF16 is quantised after the cut";
}

// --- which weights are FP8 ---

std::string recipe_of(const Json& quantization, const std::string& role = "mlp.up_proj",
                      const RecipeOptions& options = {}) {
  const Model model = with_recipes(with(kLlama, "quantization_config", quantization), options);
  const Weight& weight = weight_of(model, role);
  return weight.recipe.empty() ? weight.out : weight.recipe;
}

TEST(Quantization, MethodsAreRecipes) {
  const Json block = {{"quant_method", "fp8"}, {"weight_block_size", Json::array({128, 128})}};
  EXPECT_EQ(recipe_of(block), "blockwise:f32");
  EXPECT_EQ(recipe_of(with(block, "scale_fmt", "ue8m0")), "blockwise");
  EXPECT_EQ(recipe_of({{"quant_method", "fp8"}}), "tensorwise:f32");
  EXPECT_EQ(recipe_of({{"quant_method", "fbgemm_fp8"}}), "rowwise:f32");
  EXPECT_EQ(recipe_of({{"quant_method", "mxfp8"}}), "mxfp8");
  EXPECT_EQ(recipe_of({{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}), "tensorwise:f32");
  EXPECT_EQ(recipe_of({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}),
            "modelopt NVFP4 in the checkpoint: no kernel");
  EXPECT_EQ(recipe_of({{"quant_method", "awq"}, {"bits", 4}}), "awq in the checkpoint: no kernel");
  const auto compressed = [](const char* strategy, int bits) {
    const Json part = {{"type", "float"}, {"num_bits", bits}, {"strategy", strategy}};
    return Json{{"quant_method", "compressed-tensors"},
                {"config_groups",
                 {{"group_0",
                   {{"targets", Json::array({"Linear"})},
                    {"weights", part},
                    {"input_activations", part}}}}}};
  };
  EXPECT_EQ(recipe_of(compressed("channel", 8)), "rowwise:f32");
  EXPECT_EQ(recipe_of(compressed("tensor", 8)), "tensorwise:f32");
  EXPECT_EQ(recipe_of(compressed("block", 8)), "blockwise:f32");
  EXPECT_EQ(recipe_of(compressed("group", 4)), "float4 in the checkpoint: no kernel");
  EXPECT_EQ(recipe_of(compressed("other", 8)),
            "float8 with scales by other in the checkpoint: no kernel");
  EXPECT_EQ(recipe_of(block, "mlp.up_proj", {.recipe = "rowwise"}), "rowwise");
}

// A format that no recipe has is named and not planned as a similar one.
TEST(Quantization, TypesAndBlocksOfNoRecipeAreNamed) {
  EXPECT_EQ(recipe_of({{"quant_method", "fp8"}, {"fmt", "e4m3"}}), "tensorwise:f32");
  EXPECT_EQ(recipe_of({{"quant_method", "fp8"}, {"fmt", "e5m2"}}),
            "fp8 e5m2 in the checkpoint: no kernel");
  const auto compressed = [](const Json& weights, const Json& activations) {
    const Json part = {{"type", "float"}, {"num_bits", 8}};
    Json group = {{"targets", Json::array({"Linear"})}, {"weights", with_all(part, weights)}};
    if (!activations.is_null()) group.add("input_activations", with_all(part, activations));
    return Json{{"quant_method", "compressed-tensors"}, {"config_groups", {{"group_0", group}}}};
  };
  const Json token = {{"strategy", "token"}, {"dynamic", true}};
  const auto of = [&](const Json& weights) { return recipe_of(compressed(weights, token)); };
  EXPECT_EQ(of({{"strategy", "block"}, {"block_structure", Json::array({128, 128})}}),
            "blockwise:f32");
  EXPECT_EQ(of({{"strategy", "block"}, {"block_structure", Json::array({64, 64})}}),
            "float8 in blocks of [64,64] in the checkpoint: no kernel");
  EXPECT_EQ(of({{"strategy", "group"}, {"group_size", 32}, {"scale_dtype", "torch.uint8"}}),
            "mxfp8");
  EXPECT_EQ(of({{"strategy", "group"}, {"group_size", 32}}),
            "float8 in groups of 32, whose scales are not E8M0 in the checkpoint: no kernel");
  EXPECT_EQ(of({{"strategy", "group"}, {"group_size", 128}, {"scale_dtype", "torch.uint8"}}),
            "float8 in groups of 128 in the checkpoint: no kernel");
  EXPECT_EQ(recipe_of(compressed({{"strategy", "channel"}}, Json())),
            "float8 weights for activations in BF16 in the checkpoint: no kernel");
  // The scales of the two operands need not be of one kind.
  const auto remarks = [&](const Json& weights, const Json& activations) {
    return with_recipes(with(kLlama, "quantization_config", compressed(weights, activations)))
        .remarks;
  };
  EXPECT_THAT(remarks({{"strategy", "tensor"}}, token),
              ElementsAre(HasSubstr("a scale for each token, and tensorwise one for all")));
  EXPECT_THAT(remarks({{"strategy", "channel"}}, {{"strategy", "tensor"}, {"dynamic", false}}),
              ElementsAre(HasSubstr("one scale for all activations, and rowwise one for each")));
  EXPECT_THAT(remarks({{"strategy", "channel"}}, token), IsEmpty());
}

TEST(Quantization, EachModuleHasItsAlgorithm) {
  const Json mixed = {{"quant_method", "modelopt"},
                      {"quant_algo", "MIXED_PRECISION"},
                      {"quantized_layers",
                       {{"model.layers.0.mlp.up_proj", {{"quant_algo", "FP8"}}},
                        {"model.layers.1.mlp.up_proj", {{"quant_algo", "FP8"}}},
                        {"model.layers.0.mlp.down_proj", {{"quant_algo", "W4A8_AWQ"}}},
                        {"model.layers.1.mlp.down_proj", {{"quant_algo", "W4A8_AWQ"}}}}}};
  EXPECT_EQ(recipe_of(mixed), "tensorwise:f32");
  EXPECT_EQ(recipe_of(mixed, "mlp.down_proj"), "modelopt W4A8_AWQ in the checkpoint: no kernel");
  EXPECT_EQ(recipe_of(mixed, "mlp.gate_proj"), "BF16 by quantization_config");
  // A checkpoint of which only the cache of keys and values is quantised.
  const Json cache = {{"quant_method", "compressed-tensors"}, {"config_groups", Json::object()}};
  EXPECT_EQ(recipe_of(cache), "blockwise");
}

TEST(Quantization, ListsLeaveModulesOut) {
  const Json block = {{"quant_method", "fp8"}, {"weight_block_size", Json::array({128, 128})}};
  const auto up = [&](const char* key, const Json& names) {
    return recipe_of(with(block, key, names));
  };
  constexpr const char* kOut = "BF16 by quantization_config";
  EXPECT_EQ(up("modules_to_not_convert", Json::array({"lm_head"})), "blockwise:f32");
  EXPECT_EQ(up("modules_to_not_convert", Json::array({"up_proj"})), kOut);
  EXPECT_EQ(up("ignored_layers", Json::array({"model.layers.*.mlp"})), kOut);
  EXPECT_EQ(up("ignore", Json::array({"re:.*mlp.(up|gate)_proj"})), kOut);
  EXPECT_EQ(up("ignore", Json::array({"re:.*self_attn.*"})), "blockwise:f32");
  EXPECT_EQ(up("exclude_modules", Json::array({"model.language_model.layers.0.mlp",
                                               "model.language_model.layers.1.mlp"})),
            kOut);
  // One layer of two: a weight in two parts.
  const Model model = with_recipes(
      with(kLlama, "quantization_config",
           with(block, "modules_to_not_convert", Json::array({"model.layers.1.mlp.up_proj"}))));
  EXPECT_EQ(std::ranges::count(model.weights, "mlp.up_proj", &Weight::role), 2);
  EXPECT_THAT(weight_of(model, "mlp.up_proj").at, ElementsAre(0));
  EXPECT_EQ(parameters_of(model), parameters_of(derived(kLlama)));
}

TEST(Quantization, NamesWhatIsWrong) {
  const auto error = [](const Json& quantization) {
    return error_of(with(kLlama, "quantization_config", quantization));
  };
  EXPECT_EQ(error({{"quant_method", "fp8"}, {"weight_block_size", Json::array({64, 64})}}),
            "c.json: quantization_config.weight_block_size is [64,64]; allowed: [128, 128] or "
            "[1, 32], or none for a scale a tensor");
  EXPECT_EQ(error("fp8"), "c.json: quantization_config is \"fp8\"; allowed: an object");
  EXPECT_EQ(error({{"quant_method", 8}}),
            "c.json: quantization_config.quant_method is 8; allowed: a method such as fp8");
  EXPECT_EQ(
      error({{"quant_method", "fp8"}, {"ignore", "lm_head"}}),
      "c.json: quantization_config.ignore is \"lm_head\"; allowed: a list of names of modules");
  EXPECT_EQ(error({{"quant_method", "compressed-tensors"}}),
            "c.json: quantization_config.config_groups is null; allowed: an object of groups");
  EXPECT_THAT(error({{"quant_method", "fp8"}, {"ignore", Json::array({"re:("})}}),
              HasSubstr("the pattern 're:(' is not a regular expression"));
  EXPECT_THAT(error({{"quant_method", "fp8"}, {"ignore", Json::array({"re:(a*)*b"})}}),
              HasSubstr("is not simple; allowed: "));
}

TEST(Quantization, FourBitExpertsStayOutAndTheRestIsConverted) {
  Model model = *find_model("gpt-oss-120b");
  ASSERT_TRUE(assign_recipes(model, {}));
  EXPECT_EQ(weight_of(model, "mlp.experts.down_proj").out, "mxfp4 in the checkpoint: no kernel");
  EXPECT_EQ(weight_of(model, "self_attn.q_proj").recipe, "blockwise");
}

TEST(Recipes, PresetsAndPatterns) {
  const auto in = [](const RecipeOptions& options, const std::string& name = "qwen3-8b") {
    Model model = *find_model(name);
    const Status ok = assign_recipes(model, options);
    EXPECT_TRUE(ok) << ok.error().message;
    std::vector<std::string> roles;
    for (const Weight& weight : model.weights) {
      if (!weight.recipe.empty()) roles.push_back(weight.role.substr(weight.role.rfind('.') + 1));
    }
    return roles;
  };
  EXPECT_THAT(in({}), ElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                                  "down_proj"));
  EXPECT_THAT(in({.preset = "torchao"}),
              ElementsAre("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"));
  EXPECT_THAT(in({.preset = "all"}), Contains("lm_head"));
  EXPECT_THAT(in({.keep = {"self_attn"}}), ElementsAre("gate_proj", "up_proj", "down_proj"));
  EXPECT_THAT(in({.convert = {"lm_head"}}), Contains("lm_head"));
  EXPECT_THAT(in({.convert = {"mlp.gat?"}}, "deepseek-v3"), Contains("gate"));
}

TEST(Recipes, NameTheOption) {
  const auto error = [](const char* name, const RecipeOptions& options) {
    Model model = *find_model(name);
    const Status ok = assign_recipes(model, options);
    return ok ? "accepted" : ok.error().message;
  };
  EXPECT_THAT(error("qwen3-8b", {.recipe = "best"}),
              HasSubstr("--recipe is 'best'; allowed: auto, "));
  EXPECT_EQ(error("qwen3-8b", {.preset = "al"}),
            "--preset is 'al'; did you mean 'all'?; allowed: deepseek-v3, torchao, all");
  EXPECT_THAT(error("deepseek-v3", {.preset = "all"}),
              HasSubstr("--preset is all, and the quantization_config of deepseek-v3 says"));
  EXPECT_EQ(
      error("qwen3-8b", {.keep = {"q_porj"}}),
      "--keep has 'q_porj', which no weight of qwen3-8b matches; allowed: names of modules as "
      "`octile shapes` prints them, with *");
}

}  // namespace
}  // namespace octile::tools
