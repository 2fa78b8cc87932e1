// Code shared by the subcommands: workloads, tables, statistics, reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/api/boundary.h"
#include "runtime/prove/gemm/check.h"
#include "tests/support/host_quantized.h"
#include "tools/common/text_table.h"
#include "tools/compile/kernel_report.h"
#include "tools/compile/needed_kernels.h"
#include "tools/models/workload.h"

namespace octile::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(Workload, EveryShippedModelParsesAndIsFoundByName) {
  const std::string names = model_names();
  for (const char* name : {"deepseek-v3", "llama-3-70b", "qwen3-235b-a22b"}) {
    EXPECT_THAT(names, HasSubstr(name));
    EXPECT_TRUE(find_model(name)) << name;
  }
  const auto unknown = find_model("gpt-9");
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr(names));
}

TEST(Workload, ALayerIsAGemmAndTwoQuantisers) {
  ModelFile model{"tiny", "this test", {{"up", 256, 512, TensorSplit::kN}}, {64, 128}};
  const auto works = work_of_layers(model, "blockwise", {Pass::kFprop}, {});
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
  const auto asked = work_of_layers(model, "blockwise", {Pass::kFprop}, {7});
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->at(0).tokens.at(0).lo, 7);
}

std::vector<std::string> texts_of(const std::vector<Work>& works) {
  std::vector<std::string> texts;
  for (const Work& work : works) texts.push_back(to_text(work.problem));
  return texts;
}

TEST(Workload, ExpertsOfARankAreGroupsWithTheRowsThatTheyReceive) {
  const auto model = find_model("mixtral-8x7b");
  ASSERT_TRUE(model);
  const auto share = share_of_experts(*model, "mixtral-8x7b", 2);
  ASSERT_TRUE(share);
  const auto works =
      work_of_experts(*model, *share, "blockwise", {Pass::kFprop, Pass::kWgrad}, {64});
  ASSERT_TRUE(works);
  ASSERT_EQ(works->size(), 10);
  EXPECT_EQ(to_text((*works)[0].problem),
            "gemm m=? n=28672 k=4096 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 "
            "group=contiguous groups=4");
  EXPECT_EQ((*works)[0].tokens.at(0).lo, 128);
  EXPECT_EQ(to_text((*works)[1].problem),
            "gemm m=28672 n=4096 k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128 "
            "group=contiguous groups=4");
  EXPECT_EQ(to_text((*works)[2].problem),
            "quantize rows=? cols=4096 x=bf16 q=e4m3:1x128:pow2 out=both group=contiguous");
  EXPECT_EQ(to_text((*works)[3].problem),
            "quantize rows=28672 cols=4096 x=bf16 q=e4m3:128x128:pow2 out=row");
}

TEST(Workload, RanksDivideTheExpertsOfAModelThatHasSome) {
  const auto dense = share_of_experts(find_model("llama-3-8b").value(), "llama-3-8b", 8);
  ASSERT_FALSE(dense);
  EXPECT_THAT(dense.error().message,
              HasSubstr("--model is 'llama-3-8b', whose file has no experts"));
  const auto seven = share_of_experts(find_model("mixtral-8x7b").value(), "mixtral-8x7b", 7);
  ASSERT_FALSE(seven);
  EXPECT_EQ(seven.error().message, "--ep is 7; allowed are divisors of the model's 8 experts");
}

TEST(Workload, ALayerThatTrainsHasThreeGemmsAndReadsItsOperandsInBothDirections) {
  ModelFile model{"tiny", "this test", {{"up", 256, 512, TensorSplit::kN}}, {64, 128}};
  const auto works =
      work_of_layers(model, "blockwise_hybrid", {Pass::kFprop, Pass::kDgrad, Pass::kWgrad}, {});
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

// tests/python/test_problems.py compares them with what the package asks.
TEST(Workload, LayersOfTorchQuantiseInEveryWayThatAPassMayNeed) {
  ModelFile model{"tiny", "this test", {{"up", 256, 512, TensorSplit::kN}}, {64}};
  const auto works = work_of_layers(model, "blockwise", {Pass::kFprop, Pass::kDgrad, Pass::kWgrad},
                                    {}, LayerUser::kTorch);
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
  const auto inference = work_of_layers(model, "blockwise", {Pass::kFprop}, {}, LayerUser::kTorch);
  ASSERT_TRUE(inference);
  EXPECT_EQ(inference->size(), 4);
  EXPECT_EQ(layer_user_of_option("jax").error().message,
            "--for is 'jax'; allowed: torch, or no --for");
}

TEST(Workload, APassReadsItsOwnOperandsOnly) {
  ModelFile model{"tiny", "this test", {{"up", 256, 512, TensorSplit::kN}}, {64}};
  EXPECT_THAT(
      texts_of(work_of_layers(model, "blockwise", {Pass::kWgrad}, {}).value()),
      ElementsAre(
          "gemm m=256 n=512 k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128",
          "quantize rows=? cols=512 x=bf16 q=e4m3:1x128:pow2 out=col",
          "quantize rows=? cols=256 x=bf16 q=e4m3:1x128:pow2 out=col"));
  EXPECT_THAT(
      texts_of(work_of_layers(model, "blockwise", {Pass::kDgrad}, {}).value()),
      ElementsAre("gemm m=? n=512 k=256 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
                  "quantize rows=256 cols=512 x=bf16 q=e4m3:128x128:pow2 out=col",
                  "quantize rows=? cols=256 x=bf16 q=e4m3:1x128:pow2 out=row"));
}

TEST(Workload, AShapesTokensFollowThePass) {
  const auto stated = gemms_of_shape("64x256x512", "blockwise", {Pass::kDgrad, Pass::kWgrad}, {});
  ASSERT_TRUE(stated) << stated.error().message;
  ASSERT_EQ(stated->size(), 2);
  EXPECT_EQ(to_text(stated->at(0).problem),
            "gemm m=64 n=512 k=256 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
  EXPECT_TRUE(stated->at(0).counts.empty());
  EXPECT_EQ(to_text(stated->at(1).problem),
            "gemm m=256 n=512 k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128");
  EXPECT_EQ(stated->at(1).counts, std::vector<std::int64_t>{64});
  const auto open = gemms_of_shape("?x256x512", "blockwise", {Pass::kWgrad}, {1, 77});
  ASSERT_TRUE(open) << open.error().message;
  EXPECT_EQ(open->at(0).problem, stated->at(1).problem);
  EXPECT_EQ(open->at(0).counts, (std::vector<std::int64_t>{1, 77}));
  EXPECT_THAT(gemms_of_shape("64x256x512", "blockwise", {Pass::kWgrad}, {7}).error().message,
              HasSubstr("the problem states m=64"));
}

// The dgrad of a layer whose weight is [n,k] is the fprop of one whose weight is [k,n].
TEST(Workload, ProblemsOfSeveralPassesStandOnce) {
  ModelFile model{"tiny",
                  "this test",
                  {{"up", 256, 512, TensorSplit::kN}, {"down", 512, 256, TensorSplit::kK}},
                  {64}};
  const auto works = work_of_layers(model, "blockwise", {Pass::kFprop, Pass::kDgrad}, {});
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

TEST(Workload, AProblemsOwnCountWins) {
  const auto fixed = work_of_problem(
      parse_problem("quantize rows=5 cols=512 x=bf16 q=e4m3:1x128 out=row").value(), {});
  ASSERT_TRUE(fixed);
  EXPECT_EQ(fixed->at(0).tokens.at(0).lo, 5);
  EXPECT_EQ(fixed->at(0).tokens.at(0).hi, 5);
  const auto open = work_of_problem(
      parse_problem("quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row").value(), {});
  ASSERT_TRUE(open);
  EXPECT_EQ(open->at(0).tokens.at(0).lo, 1);
  EXPECT_EQ(open->at(0).tokens.at(0).hi, 16384);
}

TEST(TextTable, AlignsWordsLeftAndNumbersRight) {
  TextTable table({"<name", "us"});
  table.add_row({"a", "10.5"});
  table.add_row({"longer", "9"});
  EXPECT_EQ(table.render(),
            "  name      us\n"
            "  a       10.5\n"
            "  longer     9\n");
}

TEST(NeededKernels, AKernelOfSeveralProblemsStandsOnce) {
  const auto library = LibraryHandle::create(1);
  ASSERT_TRUE(library);
  const auto work_of = [](const char* text, std::int64_t tokens) {
    return work_of_problem(parse_problem(text).value(), {tokens}).value().front();
  };
  const char* few_columns = "quantize rows=? cols=4096 x=bf16 q=e4m3:1x128 out=row";
  const char* many_columns = "quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row";
  Engine& engine = library->get()->library.engine;
  const auto kernels = needed_kernels({work_of(few_columns, 4096), work_of(many_columns, 4096),
                                       work_of(few_columns, 4096), work_of(few_columns, 3900)},
                                      *find_device("h200"), engine);
  ASSERT_TRUE(kernels) << kernels.error().message;
  ASSERT_EQ(kernels->size(), 1);
  const NeededKernel& kernel = kernels->begin()->second;
  ASSERT_EQ(kernel.uses.size(), 2);
  EXPECT_EQ(to_text(kernel.uses[0].problem), few_columns);
  EXPECT_EQ(to_text(kernel.uses[1].problem), many_columns);
  EXPECT_EQ(kernel.uses[0].buckets, std::vector<std::int64_t>{4096});
  EXPECT_EQ(kernel.uses[0].chosen_by.size(), 1);
}

// Buckets of a weight gradient are those of its tokens, which are in k.
TEST(NeededKernels, FollowTheTokensOfAWeightGradient) {
  const auto library = LibraryHandle::create(1);
  ASSERT_TRUE(library);
  const auto requests = gemms_of_shape("?x512x768", "blockwise", {Pass::kWgrad}, {1, 77, 4097});
  ASSERT_TRUE(requests);
  const Request& request = requests->front();
  const auto kernels = needed_kernels(work_of_problem(request.problem, request.counts).value(),
                                      *find_device("h200"), library->get()->library.engine);
  ASSERT_TRUE(kernels) << kernels.error().message;
  std::vector<std::int64_t> buckets;
  for (const auto& [digest, kernel] : *kernels) {
    for (const KernelUse& use : kernel.uses) {
      EXPECT_EQ(use.problem, request.problem);
      buckets.insert(buckets.end(), use.buckets.begin(), use.buckets.end());
    }
  }
  EXPECT_THAT(buckets, ::testing::UnorderedElementsAre(1, 128, 5120));
}

TEST(KernelReport, SizesHaveTheirUnit) {
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
}

class CheckProduct : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRows = 6, kCols = 72, kDepth = 144;

  CheckProduct() {
    problem_.n = kCols;
    problem_.k = kDepth;
  }

  // Returns an operand in which every element has the bf16 bits `bits`.
  HostTensor operand(const TensorType& type, std::int64_t rows, std::uint16_t bits) const {
    const std::vector<std::uint16_t> x(static_cast<std::size_t>(rows * kDepth), bits);
    QuantizeProblem problem;
    problem.cols = kDepth;
    problem.q = type;
    tests::HostQuantized q = tests::quantize_on_host(problem, rows, x.data()).first;
    return {type, rows, kDepth, std::move(q.codes), std::move(q.scales)};
  }

  GemmCheck check(std::uint16_t a_bits, std::uint16_t d_bits, std::size_t wrong_at) const {
    std::vector<std::uint16_t> d(kRows * kCols, d_bits);
    if (wrong_at < d.size()) d[wrong_at] = 0x4300;  // 128
    const auto result = check_gemm(problem_, operand(problem_.a, kRows, a_bits),
                                   operand(problem_.b, kCols, 0x3f80), d.data());
    EXPECT_TRUE(result);
    return *result;
  }

  static constexpr std::uint16_t kOne = 0x3f80;
  static constexpr std::uint16_t k144 = 0x4310;
  static constexpr std::size_t kNowhere = ~std::size_t{0};
  GemmProblem problem_;
};

TEST_F(CheckProduct, AcceptsTheRightResultAndSeesOneWrongElement) {
  EXPECT_TRUE(check(kOne, k144, kNowhere).ok);
  EXPECT_FALSE(check(kOne, k144, kRows * kCols - 1).ok) << "the last element is sampled";
  EXPECT_FALSE(check(kOne, k144, 0).ok) << "the first element is sampled";
  EXPECT_GT(check(kOne, k144, kNowhere).elements, 0);
}

// Zero operands from a broken quantiser agree with the result of a broken GEMM.
TEST_F(CheckProduct, IsNotFooledByOperandsThatSayNothing) {
  EXPECT_FALSE(check(0x0000, 0x0000, kNowhere).ok);
  EXPECT_FALSE(check(0x7fc0, 0x7fff, kNowhere).ok) << "NaN";
}

}  // namespace
}  // namespace octile::tools
