#include "generator/core/recipe.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "generator/families.h"
#include "generator/gemm/passes.h"

namespace octile {
namespace {

std::string product(std::string_view recipe, Pass pass) {
  return to_text(gemm_problem(*find_recipe(recipe), pass, 64, 256, 512));
}

// A layer of 256 outputs and 512 inputs on 64 tokens has the shapes of its three GEMMs in
// docs/numerics.md.
TEST(Recipe, BlockwiseProductsOfALinearLayer) {
  EXPECT_EQ(product("blockwise", Pass::kFprop),
            "gemm m=64 n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
  EXPECT_EQ(product("blockwise", Pass::kDgrad),
            "gemm m=64 n=512 k=256 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
  EXPECT_EQ(product("blockwise", Pass::kWgrad),
            "gemm m=256 n=512 k=64 a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128");
}

TEST(Recipe, GradientsGoFirstAndKeepTheirFormat) {
  EXPECT_EQ(product("blockwise_hybrid", Pass::kFprop), product("blockwise", Pass::kFprop));
  EXPECT_EQ(product("blockwise_hybrid", Pass::kDgrad),
            "gemm m=64 n=512 k=256 a=e5m2:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
  EXPECT_EQ(product("blockwise_hybrid", Pass::kWgrad),
            "gemm m=256 n=512 k=64 a=e5m2:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128");
}

TEST(Recipe, CoarseScalesAccumulateFastForwardOnly) {
  EXPECT_EQ(product("tensorwise", Pass::kFprop),
            "gemm m=64 n=256 k=512 a=e4m3:tensor b=e4m3:tensor d=bf16 acc=0 promote=none");
  EXPECT_EQ(product("tensorwise", Pass::kDgrad),
            "gemm m=64 n=512 k=256 a=e5m2:tensor b=e4m3:tensor d=bf16 acc=0 promote=128");
  EXPECT_EQ(product("delayed", Pass::kWgrad), product("tensorwise", Pass::kWgrad));
  EXPECT_EQ(product("rowwise", Pass::kFprop),
            "gemm m=64 n=256 k=512 a=e4m3:row b=e4m3:row d=bf16 acc=0 promote=none");
}

TEST(Recipe, Mxfp8PromotesEachBlock) {
  EXPECT_EQ(product("mxfp8", Pass::kWgrad),
            "gemm m=256 n=512 k=64 a=e4m3:1x32 b=e4m3:1x32 d=fp32 acc=1 promote=32");
}

TEST(Recipe, TokenCountIsDynamicInEveryPass) {
  for (const Recipe& r : recipes()) {
    for (const Pass pass : {Pass::kFprop, Pass::kDgrad, Pass::kWgrad}) {
      const GemmProblem p = gemm_problem(r, pass, kDynamic, 256, 512);
      EXPECT_TRUE(check_well_formed(p)) << to_text(p) << check_well_formed(p).error().message;
      EXPECT_EQ(pass == Pass::kWgrad ? p.k : p.m, kDynamic);
      const auto back = parse_problem(to_text(p));
      ASSERT_TRUE(back) << back.error().message;
      EXPECT_EQ(std::get<GemmProblem>(*back), p);
    }
  }
}

TEST(Passes, HaveNames) {
  EXPECT_EQ(pass_names(), "fprop, dgrad, wgrad");
  for (const Pass pass : {Pass::kFprop, Pass::kDgrad, Pass::kWgrad}) {
    EXPECT_EQ(find_pass(name_of(pass)), pass);
  }
  EXPECT_EQ(find_pass("bprop"), std::nullopt);
  EXPECT_EQ(find_pass(""), std::nullopt);
}

// octile.torch sends the index in this table to its operators, and a compiled model may keep it.
TEST(Recipe, OrderIsKept) {
  std::vector<std::string_view> names;
  for (const Recipe& r : recipes()) names.push_back(r.name);
  EXPECT_EQ(names, (std::vector<std::string_view>{"blockwise", "blockwise_hybrid", "tensorwise",
                                                  "delayed", "rowwise", "mxfp8", "blockwise:f32",
                                                  "blockwise_hybrid:f32", "tensorwise:f32",
                                                  "delayed:f32", "rowwise:f32"}));
}

// One tuned configuration and one kernel of a GEMM serve both, but for weight gradients with a
// scale for each column, whose kernels know that scales are powers of two.
TEST(Recipe, F32ChangesTheScalesThatQuantisersWriteAndFewGemms) {
  for (const Recipe& r : recipes()) {
    const Recipe* other = find_recipe(std::string(r.name) + ":f32");
    if (other == nullptr) continue;
    for (const Pass pass : {Pass::kFprop, Pass::kDgrad, Pass::kWgrad}) {
      const bool knows = pass == Pass::kWgrad && r.activation.granularity == Granularity::k1x128;
      EXPECT_EQ(product(r.name, pass) == product(other->name, pass), !knows) << r.name;
    }
    EXPECT_EQ(r.weight.scale, ScaleFormat::kF32Pow2) << r.name;
    EXPECT_EQ(other->weight.scale, ScaleFormat::kF32) << r.name;
    EXPECT_EQ(r.delayed, other->delayed);
  }
}

TEST(Recipe, TableIsComplete) {
  std::set<std::string_view> names;
  for (const Recipe& r : recipes()) {
    EXPECT_TRUE(names.insert(r.name).second) << r.name << " appears twice";
    EXPECT_EQ(find_recipe(r.name), &r);
    EXPECT_FALSE(r.source.empty()) << r.name;
  }
  EXPECT_EQ(recipe_names(),
            "blockwise, blockwise_hybrid, tensorwise, delayed, rowwise, mxfp8, and NAME:f32 for "
            "scales that are not powers of two");
  EXPECT_EQ(find_recipe("Blockwise"), nullptr);
  EXPECT_EQ(find_recipe(""), nullptr);
}

}  // namespace
}  // namespace octile
