// The problems of a model's layers: passes, users, modes, experts, layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/families/families.h"
#include "tools/models/recipes.h"
#include "tools/models/source.h"
#include "tools/models/workload.h"

namespace octile::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// A list of shapes as a model, all of it by one recipe.
Model list_of(const std::vector<std::array<std::int64_t, 2>>& shapes,
              const std::vector<std::int64_t>& tokens, const std::string& recipe = "blockwise") {
  Model model{.name = "tiny", .origin = "this test", .layers = 1, .tokens = tokens};
  for (const auto& [n, k] : shapes) {
    model.weights.push_back({.role = model.weights.empty() ? "up" : "down",
                             .layers = 1,
                             .n = plain(n),
                             .k = plain(k),
                             .recipe = recipe});
  }
  return model;
}

Model shipped(const std::string& name, const RecipeOptions& options = {}) {
  auto model = find_model(name);
  EXPECT_TRUE(model) << model.error().message;
  EXPECT_TRUE(assign_recipes(*model, options));
  return *model;
}

ModelUse with_passes(std::vector<Pass> passes, LayerUser user = LayerUser::kLibrary) {
  ModelUse use;
  use.passes = std::move(passes);
  use.user = user;
  return use;
}

TEST(Workload, ALayerIsAGemmAndTwoQuantisers) {
  Model model = list_of({{256, 512}}, {64, 128});
  const auto works = works_of_model(model, {});
  ASSERT_TRUE(works);
  ASSERT_EQ(works->size(), 3);
  EXPECT_EQ(to_text((*works)[0].problem),
            "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
  EXPECT_EQ(to_text((*works)[1].problem),
            "quantize rows=? cols=512 x=bf16 q=e4m3:1x128:pow2 out=row");
  EXPECT_EQ(to_text((*works)[2].problem),
            "quantize rows=256 cols=512 x=bf16 q=e4m3:128x128:pow2 out=row");
  ASSERT_EQ((*works)[0].tokens.size(), 2);
  EXPECT_EQ((*works)[0].tokens[1].lo, 128);
  EXPECT_EQ((*works)[2].tokens.at(0).hi, 256);
  ModelUse seven;
  seven.counts = {7};
  const auto asked = works_of_model(model, seven);
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->at(0).tokens.at(0).lo, 7);
}

std::vector<std::string> texts_of(const std::vector<Work>& works) {
  std::vector<std::string> texts;
  for (const Work& work : works) texts.push_back(to_text(work.problem));
  return texts;
}

TEST(Workload, ExpertsOfARankAreGroupsWithTheRowsThatTheyReceive) {
  ModelUse use = with_passes({Pass::kFprop, Pass::kWgrad});
  use.parallel.ep = 2;
  use.counts = {64};
  use.layout = Layout::kServing;
  const auto rank = shard(shipped("mixtral-8x7b"), use.parallel);
  ASSERT_TRUE(rank) << rank.error().message;
  const auto works = works_of_model(*rank, use);
  ASSERT_TRUE(works) << works.error().message;
  std::vector<Work> experts;
  for (const Work& work : *works) {
    if (work.name.find("experts") != std::string::npos) experts.push_back(work);
  }
  ASSERT_EQ(experts.size(), 10);
  EXPECT_EQ(to_text(experts[0].problem),
            "gemm m=? n=28672 k=4096 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 "
            "group=contiguous groups=4");
  EXPECT_EQ(experts[0].tokens, (std::vector<TokenRange>{{128, 128}}));
  EXPECT_EQ(to_text(experts[1].problem),
            "gemm m=28672 n=4096 k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128 "
            "group=contiguous groups=4");
  EXPECT_EQ(to_text(experts[2].problem),
            "quantize rows=? cols=4096 x=bf16 q=e4m3:1x128:pow2 out=both group=contiguous");
  EXPECT_EQ(to_text(experts[3].problem),
            "quantize rows=28672 cols=4096 x=bf16 q=e4m3:128x128:pow2 out=row");
}

TEST(Workload, RanksDivideTheExpertsOfAModelThatHasSome) {
  const auto none = share_of_experts(find_model("llama-3-8b").value(), "llama-3-8b", 8);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message, HasSubstr("--model is 'llama-3-8b', which has no experts"));
  const auto seven = share_of_experts(find_model("mixtral-8x7b").value(), "mixtral-8x7b", 7);
  ASSERT_FALSE(seven);
  EXPECT_EQ(seven.error().message, "--ep is 7; allowed are divisors of the model's 8 experts");
}

// In decode experts are masked groups of the rows that they may expect, and kv_b_proj is two
// batched products; both are whole in prefill.
TEST(Workload, DecodeAndPrefillOfDeepSeekV3) {
  ModelUse use;
  use.parallel = {.tp = 8, .ep = 8};
  const auto rank = shard(shipped("deepseek-v3"), use.parallel);
  ASSERT_TRUE(rank) << rank.error().message;
  const auto works = works_of_model(*rank, use);
  ASSERT_TRUE(works) << works.error().message;
  std::map<std::string, std::vector<TokenRange>> of;
  for (const Work& work : *works) {
    const auto [place, is_new] = of.try_emplace(to_text(work.problem), work.tokens);
    if (!is_new) place->second.insert(place->second.end(), work.tokens.begin(), work.tokens.end());
  }
  const std::string types = " a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";
  EXPECT_EQ(of.at("gemm m=? n=2112 k=7168" + types).size(), 9 + 6);
  EXPECT_EQ(of.at("gemm m=? n=512 k=128" + types + " batch=16").size(), 9);
  EXPECT_EQ(of.at("gemm m=? n=128 k=512" + types + " batch=16").size(), 9);
  EXPECT_EQ(of.at("gemm m=? n=4096 k=512" + types).size(), 6);
  // 1 to 256 tokens of 8 ranks are 1 to 256 rows of a rank's 32 experts: 1, 2, 4 and 8 each.
  EXPECT_EQ(of.at("gemm m=? n=4096 k=7168" + types + " group=masked groups=32"),
            (std::vector<TokenRange>{{1, 1}, {2, 2}, {4, 4}, {8, 8}}));
  EXPECT_EQ(of.at("gemm m=? n=4096 k=7168" + types + " group=contiguous groups=32").size(), 6);
}

TEST(Workload, TrainingHasThreePassesOfSeparateLayers) {
  ModelUse use;
  use.modes = {Mode::kTraining};
  use.modes_given = true;
  std::set<std::string> names;
  const auto works = works_of_model(shipped("llama-3-8b"), use);
  ASSERT_TRUE(works) << works.error().message;
  for (const Work& work : *works) {
    names.insert(work.name);
    const std::size_t counts = work.name.ends_with("weight") ? 1 : 4;
    EXPECT_EQ(work.tokens.size(), counts) << work.name;
  }
  EXPECT_EQ(names.count("self_attn.qkv_proj"), 0);
  for (const char* name : {"self_attn.k_proj", "mlp.up_proj, dgrad", "mlp.up_proj, wgrad"}) {
    EXPECT_EQ(names.count(name), 1) << name;
  }
}

TEST(Workload, BothLayoutsAreTheProblemsOfEach) {
  ModelUse use;
  use.layout = Layout::kBoth;
  use.counts = {64};
  std::set<std::string> names;
  const auto works = works_of_model(shipped("deepseek-v3"), use);
  ASSERT_TRUE(works) << works.error().message;
  for (const Work& work : *works) names.insert(work.name);
  for (const char* name : {"self_attn.qkv_a_proj", "self_attn.q_a_proj", "mlp.gate_up_proj",
                           "mlp.up_proj", "self_attn.o_proj"}) {
    EXPECT_EQ(names.count(name), 1) << name;
  }
}

TEST(Workload, ACountIsOfDecodeOrOfPrefillUnlessOneIsNamed) {
  const Model model = shipped("mixtral-8x7b");
  const auto grouping = [&](std::int64_t tokens, std::vector<Mode> modes) {
    ModelUse use;
    use.counts = {tokens};
    use.modes_given = !modes.empty();
    if (use.modes_given) use.modes = std::move(modes);
    std::set<Grouping> found;
    const std::vector<Work> works = works_of_model(model, use).value();
    for (const Work& work : works) {
      const auto* gemm = problem_as<GemmProblem>(work.problem);
      if (gemm != nullptr && is_grouped(*gemm)) found.insert(gemm->grouping);
    }
    return found;
  };
  EXPECT_THAT(grouping(256, {}), ElementsAre(Grouping::kMasked));
  EXPECT_THAT(grouping(257, {}), ElementsAre(Grouping::kContiguous));
  EXPECT_THAT(grouping(64, {Mode::kPrefill}), ElementsAre(Grouping::kContiguous));
  EXPECT_THAT(grouping(512, {Mode::kDecode}), ElementsAre(Grouping::kMasked));
  // As --mode serving names both.
  for (const std::vector<Mode>& both :
       {std::vector{Mode::kDecode, Mode::kPrefill},
        std::vector{Mode::kPrefill, Mode::kTraining, Mode::kDecode}}) {
    EXPECT_THAT(counts_in(Mode::kDecode, both, {1, 256, 257, 4096}), ElementsAre(1, 256));
    EXPECT_THAT(counts_in(Mode::kPrefill, both, {1, 256, 257, 4096}), ElementsAre(257, 4096));
    EXPECT_THAT(counts_in(Mode::kTraining, both, {1, 4096}), ElementsAre(1, 4096));
  }
  EXPECT_THAT(grouping(64, {Mode::kDecode, Mode::kPrefill}), ElementsAre(Grouping::kMasked));
  EXPECT_THAT(grouping(4096, {Mode::kDecode, Mode::kPrefill}), ElementsAre(Grouping::kContiguous));
}

TEST(Workload, ALayerThatTrainsHasThreeGemmsAndReadsItsOperandsInBothDirections) {
  Model model = list_of({{256, 512}}, {64, 128});
  model.weights.front().recipe = "blockwise_hybrid";
  const auto works = works_of_model(model, with_passes({Pass::kFprop, Pass::kDgrad, Pass::kWgrad}));
  ASSERT_TRUE(works);
  EXPECT_THAT(
      texts_of(*works),
      ElementsAre(
          "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
          "gemm m=? n=512 k=256 a=e5m2:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
          "gemm m=256 n=512 k=? a=e5m2:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128",
          "quantize rows=? cols=512 x=bf16 q=e4m3:1x128:pow2 out=both",
          "quantize rows=256 cols=512 x=bf16 q=e4m3:128x128:pow2 out=both",
          "quantize rows=? cols=256 x=bf16 q=e5m2:1x128:pow2 out=both"));
  const std::vector<TokenRange> of_model{{64, 64}, {128, 128}};
  const std::vector<TokenRange> of_weight{{256, 256}};
  for (const Work& work : *works) {
    EXPECT_EQ(work.tokens, work.name == "up, weight" ? of_weight : of_model) << work.name;
  }
  EXPECT_EQ(works->at(2).name, "up, wgrad");
}

// tests/python/test_problems.py compares them with the package's.
TEST(Workload, LayersOfTorchQuantiseInEveryWayThatAPassMayNeed) {
  Model model = list_of({{256, 512}}, {64});
  const auto works = works_of_model(
      model, with_passes({Pass::kFprop, Pass::kDgrad, Pass::kWgrad}, LayerUser::kTorch));
  ASSERT_TRUE(works) << works.error().message;
  EXPECT_THAT(
      texts_of(*works),
      UnorderedElementsAre(
          "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
          "gemm m=? n=512 k=256 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
          "gemm m=256 n=512 k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128",
          "gemm m=256 n=512 k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=bf16 acc=0 promote=128",
          "quantize rows=? cols=512 x=bf16 q=e4m3:1x128:pow2 out=row",
          "quantize rows=? cols=512 x=bf16 q=e4m3:1x128:pow2 out=both",
          "quantize rows=? cols=512 x=bf16 q=e4m3:1x128:pow2 out=col",
          "quantize rows=? cols=256 x=bf16 q=e4m3:1x128:pow2 out=row",
          "quantize rows=? cols=256 x=bf16 q=e4m3:1x128:pow2 out=col",
          "quantize rows=? cols=256 x=bf16 q=e4m3:1x128:pow2 out=both",
          "quantize rows=? cols=512 x=bf16 q=e4m3:128x128:pow2 out=row",
          "quantize rows=? cols=512 x=bf16 q=e4m3:128x128:pow2 out=row skip=unchanged",
          "quantize rows=? cols=512 x=bf16 q=e4m3:128x128:pow2 out=col",
          "quantize rows=? cols=512 x=bf16 q=e4m3:128x128:pow2 out=both",
          "quantize rows=? cols=512 x=bf16 q=e4m3:128x128:pow2 out=both skip=unchanged"));
  const std::vector<TokenRange> of_model{{64, 64}};
  const std::vector<TokenRange> of_weight{{256, 256}};
  for (const Work& work : *works)
    EXPECT_EQ(work.tokens, work.name == "up, weight" ? of_weight : of_model) << work.name;
  const auto inference = works_of_model(model, with_passes({Pass::kFprop}, LayerUser::kTorch));
  ASSERT_TRUE(inference);
  EXPECT_EQ(inference->size(), 4);
  EXPECT_EQ(layer_user_of_option("jax").error().message,
            "--for is 'jax'; allowed: torch, vllm, sglang, or no --for");
}

// tests/python/test_serving_cache.py compares them with the problems of the plug-ins. A range has
// every bucket between its counts; counts that double leave some out.
TEST(Workload, PlugInsOfEnginesMultiplyDenseLayersAtAllCounts) {
  Model model = list_of({{264, 512}, {256, 512}}, {64, 2048});
  const std::vector<TokenRange> up_to_2048{{1, 2048}};
  ModelUse use;
  use.user = LayerUser::kVllm;
  const auto of_vllm = works_of_model(model, use);
  ASSERT_TRUE(of_vllm) << of_vllm.error().message;
  EXPECT_THAT(
      texts_of(*of_vllm),
      ElementsAre("gemm m=? n=264 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
                  "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128"));
  for (const Work& work : *of_vllm) EXPECT_EQ(work.tokens, up_to_2048);
  use.user = LayerUser::kSglang;  // whose plug-in leaves n = 264 to SGLang
  EXPECT_THAT(
      texts_of(works_of_model(model, use).value()),
      ElementsAre("gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
                  "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row"));
  const std::vector<TokenRange> up_to_16384{{1, 16384}};
  const auto of_deepseek = works_of_model(shipped("deepseek-v3"), use);
  ASSERT_TRUE(of_deepseek);
  for (const Work& work : *of_deepseek) {
    EXPECT_EQ(work.tokens, up_to_16384);
    EXPECT_THAT(to_text(work.problem), ::testing::Not(HasSubstr("group")));
    EXPECT_THAT(to_text(work.problem), ::testing::Not(HasSubstr("batch")));
  }
  use.modes = {Mode::kDecode};
  const auto decoded = works_of_model(shipped("deepseek-v3"), use);
  ASSERT_TRUE(decoded);
  for (const Work& work : *decoded) EXPECT_EQ(work.tokens, (std::vector<TokenRange>{{1, 256}}));
  const auto of_rows = works_of_model(list_of({{256, 512}}, {64}, "rowwise"), use);
  ASSERT_FALSE(of_rows);
  EXPECT_EQ(of_rows.error().message,
            "'up' has recipe rowwise; allowed for serving: recipes of 128x128 blocks");
}

TEST(Workload, APassReadsItsOwnOperandsOnly) {
  Model model = list_of({{256, 512}}, {64});
  EXPECT_THAT(
      texts_of(works_of_model(model, with_passes({Pass::kWgrad})).value()),
      ElementsAre(
          "gemm m=256 n=512 k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128",
          "quantize rows=? cols=512 x=bf16 q=e4m3:1x128:pow2 out=col",
          "quantize rows=? cols=256 x=bf16 q=e4m3:1x128:pow2 out=col"));
  EXPECT_THAT(
      texts_of(works_of_model(model, with_passes({Pass::kDgrad})).value()),
      ElementsAre("gemm m=? n=512 k=256 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
                  "quantize rows=256 cols=512 x=bf16 q=e4m3:128x128:pow2 out=col",
                  "quantize rows=? cols=256 x=bf16 q=e4m3:1x128:pow2 out=row"));
}

// The dgrad of a layer whose weight is [n,k] is the fprop of one whose weight is [k,n].
TEST(Workload, ProblemsOfSeveralPassesStandOnce) {
  const Model model = list_of({{256, 512}, {512, 256}}, {64});
  const auto works = works_of_model(model, with_passes({Pass::kFprop, Pass::kDgrad}));
  ASSERT_TRUE(works);
  EXPECT_EQ(works->size(), 10);
  EXPECT_THAT(
      texts_of(distinct(*works)),
      ElementsAre("gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
                  "gemm m=? n=512 k=256 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
                  "quantize rows=? cols=512 x=bf16 q=e4m3:1x128:pow2 out=row",
                  "quantize rows=256 cols=512 x=bf16 q=e4m3:128x128:pow2 out=both",
                  "quantize rows=? cols=256 x=bf16 q=e4m3:1x128:pow2 out=row",
                  "quantize rows=512 cols=256 x=bf16 q=e4m3:128x128:pow2 out=both"));
  const Problem gemm = works->front().problem;
  const auto merged = distinct({{"a", gemm, {{1, 1}, {2, 2}}}, {"b", gemm, {{2, 2}, {3, 3}}}});
  ASSERT_EQ(merged.size(), 1);
  EXPECT_EQ(merged[0].tokens, (std::vector<TokenRange>{{1, 1}, {2, 2}, {3, 3}}));
}

}  // namespace
}  // namespace octile::tools
