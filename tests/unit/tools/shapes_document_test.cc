// The output of `octile shapes --json`, as a model again.
#include "tools/models/shapes_document.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tools/models/document.h"
#include "tools/models/layout.h"
#include "tools/models/parallel.h"
#include "tools/models/recipes.h"
#include "tools/models/source.h"
#include "tools/shapes/report.h"

namespace octile::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

Json good() {
  return *parse_document(R"({"models": [{"model": "tiny", "layers": 3, "weights": [
    {"role": "q", "layers": 3, "mtp": 1, "n": 64, "k": 32, "bias": true, "split": "n",
     "recipe": "rowwise", "bytes_per_token": 7, "heads": 4},
    {"role": "experts", "layers": 2, "n": 64, "k": 32, "groups": 8, "per_token": 2}],
    "left_out": [{"role": "norm", "layers": 3, "n": 32, "why": "a vector"}]}]})",
                         "f.json");
}

TEST(ShapesDocument, IsTheModelThatWasPrinted) {
  ASSERT_TRUE(is_shapes_document(good()));
  auto model = model_of_shapes_document(good(), "f.json");
  ASSERT_TRUE(model) << model.error().message;
  ASSERT_TRUE(assign_recipes(*model, {}));
  ASSERT_EQ(model->weights.size(), 3);
  const Weight& q = model->weights[0];
  EXPECT_EQ(model->name, "tiny");
  EXPECT_EQ(q.recipe, "rowwise");
  EXPECT_EQ(q.layers, 3);
  EXPECT_EQ(q.mtp, 1);
  EXPECT_TRUE(q.bias);
  EXPECT_EQ(q.cut, Cut::kN);
  EXPECT_EQ(q.units.value, 4);
  EXPECT_EQ(model->weights[1].groups, 8);
  EXPECT_EQ(model->weights[1].per_token, 2);
  EXPECT_EQ(model->weights[1].recipe, "blockwise") << "without a recipe as a BF16 checkpoint";
  EXPECT_EQ(model->weights[2].out, "a vector");
  EXPECT_TRUE(model->weights[2].is_vector());
}

// "role n k" of a rank's weights, or why it cannot be one.
std::vector<std::string> rank_of(Model model, std::int64_t ranks) {
  if (const Status ok = assign_recipes(model, {}); !ok) return {ok.error().message};
  const auto rank = shard(std::move(model), {.tp = ranks});
  if (!rank) return {rank.error().message.substr(rank.error().message.find(" divi"))};
  std::vector<std::string> lines;
  for (const Weight& w : rank->weights) {
    lines.push_back(fmt::format("{} {} {}", w.role, w.n.value, w.k.value));
  }
  return lines;
}

// Ranks divide a document as they divide the model that it was printed from.
TEST(ShapesDocument, IsDividedAsTheModelIs) {
  for (const char* name : {"llama-3-8b", "deepseek-v3", "mimo-v2-flash", "qwen3.5-35b-a3b"}) {
    Model model = *find_model(name);
    ASSERT_TRUE(assign_recipes(model, {}));
    for (const Layout layout : {Layout::kSeparate, Layout::kServing}) {
      const ModelShapes whole{model, laid_out(model, layout), {}};
      const auto again =
          model_of_shapes_document({{"models", Json::array({to_json(whole)})}}, "f.json");
      ASSERT_TRUE(again) << again.error().message;
      for (const std::int64_t ranks : {2, 4, 8, 16, 32}) {
        const auto rank = shard(model, {.tp = ranks});
        if (!rank) {
          EXPECT_THAT(rank_of(*again, ranks), ElementsAre(HasSubstr("divisors of"))) << ranks;
          continue;
        }
        EXPECT_THAT(rank_of(*again, ranks),
                    UnorderedElementsAreArray(rank_of(laid_out(*rank, layout), 1)))
            << name << " " << ranks;
      }
    }
  }
}

TEST(ShapesDocument, NamesAndHeadsOfTheModelSayWhatIsDivided) {
  Json document = *parse_document(R"({"models": [{"model": "m", "heads": 4, "kv_heads": 2,
    "weights": [{"role": "attn.q_proj", "layers": 1, "n": 64, "k": 32, "split": "?"},
                {"role": "attn.k_proj", "layers": 1, "n": 32, "k": 32},
                {"role": "mlp.gate_up_proj", "layers": 1, "n": 48, "k": 32, "split": "?"},
                {"role": "mlp.own", "layers": 1, "n": 64, "k": 32, "split": "-"}]}]})",
                                  "f.json");
  const auto rank = [&](std::int64_t ranks) {
    return rank_of(*model_of_shapes_document(document, "f.json"), ranks);
  };
  EXPECT_THAT(rank(4), ElementsAre("attn.q_proj 16 32", "attn.k_proj 16 32",
                                   "mlp.gate_up_proj 12 32", "mlp.own 64 32"));
  EXPECT_THAT(rank(3), ElementsAre(HasSubstr("divisors of heads, 4, for attn.q_proj")));
  Json& weights = document.at("models").at(0).at("weights");
  const Json own = weights.at(3);
  weights.at(3).set("split", "?");
  EXPECT_THAT(rank(2), ElementsAre(HasSubstr(" divide it")));
  EXPECT_EQ(rank(1).size(), 4);
  // The document may say how to divide an unknown name, and needs the heads of a known one.
  weights.at(3).set("split", "k");
  EXPECT_EQ(rank(2).back(), "mlp.own 64 16");
  document.at("models").at(0).set("heads", 0);
  EXPECT_THAT(rank(2), ElementsAre(HasSubstr(" divide it")));
  const Model unknown = *model_of_shapes_document(document, "f.json");
  const Json again = to_json({unknown, unknown, {}}).at("weights").at(0);
  EXPECT_EQ(again.at("split"), "?");
  EXPECT_FALSE(again.contains("heads"));
  // A rank's document says nothing of further ranks.
  document.at("models").at(0).set("heads", 4);
  document.at("models").at(0).set("parallel", {{"tp", 2}});
  EXPECT_THAT(rank(2), ElementsAre(HasSubstr(" divide it")));
  EXPECT_EQ(rank(1).size(), 4);
}

TEST(ShapesDocument, NamesWhatIsWrong) {
  const auto error = [](const Json& document) {
    const auto model = model_of_shapes_document(document, "f.json");
    return model ? "accepted" : model.error().message;
  };
  const auto with = [&](std::size_t weight, const char* field, const Json& value) {
    Json document = good();
    document.at("models").at(0).at("weights").at(weight).set(field, value);
    return error(document);
  };
  const std::string q = "f.json: models[0].weights[0].";
  EXPECT_EQ(with(0, "n", 0), q + "n is 0; allowed: an integer from 1 to 2147483647");
  EXPECT_EQ(with(0, "k", 1.5), q + "k is 1.5; allowed: an integer from 1 to 2147483647");
  EXPECT_EQ(with(0, "layers", 18446744073709551615U),
            q + "layers is 18446744073709551615; allowed: an integer from 0 to 2147483647");
  EXPECT_EQ(with(0, "role", ""), q + "role is \"\"; allowed: the name of a module");
  EXPECT_EQ(with(0, "split", "m"), q + "split is \"m\"; allowed: n, k, - or ?");
  EXPECT_EQ(with(0, "heads", 5), q + "heads is 5; allowed: divisors of the 64 columns of heads");
  EXPECT_EQ(with(0, "heads", 0), q + "heads is 0; allowed: an integer from 1 to 2147483647");
  EXPECT_EQ(with(0, "kv_heads", 3),
            q + "kv_heads is 3; allowed: divisors of the 64 columns of keys "
                "and values");
  Json document = good();
  document.at("models").at(0).at("weights").at(0).set("kv_heads", 2).set("kv_n", 65);
  EXPECT_EQ(error(document), q + "kv_n is 65; allowed: at most n, 64");
  EXPECT_EQ(with(0, "bias", 1), q + "bias is 1; allowed: true or false");
  EXPECT_EQ(with(0, "recipe", "fp4").substr(0, 64), q + "recipe is \"fp4\"; allowed: blockwise");
  EXPECT_EQ(with(1, "per_token", 9),
            "f.json: models[0].weights[1].per_token is 9; allowed: at most groups, 8");
  EXPECT_EQ(error({{"models", Json::array({Json{{"weights", 3}}})}}),
            "f.json: models[0].weights is 3; allowed: an array");
  EXPECT_EQ(error({{"models", Json::array({3})}}), "f.json: models[0] is 3; allowed: an object");
  EXPECT_EQ(error({{"models", Json::array()}}),
            "f.json: models has 0 entries; allowed: one model a file");
}

}  // namespace
}  // namespace octile::tools
