// The output of `octile shapes --json`, as a model again.
#include "tools/models/shapes_document.h"

#include <gtest/gtest.h>

#include <string>

#include "tools/models/document.h"
#include "tools/models/recipes.h"

namespace octile::tools {
namespace {

Json good() {
  return *parse_document(R"({"models": [{"model": "tiny", "layers": 3, "weights": [
    {"role": "q", "layers": 3, "mtp": 1, "n": 64, "k": 32, "bias": true, "split": "n",
     "recipe": "rowwise", "bytes_per_token": 7},
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
  EXPECT_EQ(model->weights[1].groups, 8);
  EXPECT_EQ(model->weights[1].per_token, 2);
  EXPECT_EQ(model->weights[1].recipe, "blockwise") << "without a recipe as a BF16 checkpoint";
  EXPECT_EQ(model->weights[2].out, "a vector");
  EXPECT_TRUE(model->weights[2].is_vector());
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
  EXPECT_EQ(with(0, "split", "m"), q + "split is \"m\"; allowed: n, k or -");
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
