// Code shared by the subcommands: workloads, tables, statistics, reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "runtime/api/boundary.h"
#include "runtime/prove/gemm/check.h"
#include "tests/support/host_quantized.h"
#include "tools/common/text_table.h"
#include "tools/compile/kernel_report.h"
#include "tools/compile/needed_kernels.h"
#include "tools/models/workload.h"

namespace octile::tools {
namespace {

using ::testing::HasSubstr;

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

// A cache that is made without the card serves it whether tcgen05 passes its tests there or not.
TEST(NeededKernels, AreThoseOfBothOutcomesOfTheTestsOfAUnit) {
  const auto library = LibraryHandle::create(1);
  ASSERT_TRUE(library);
  Engine& engine = library->get()->library.engine;
  const DeviceSpec untested = *find_device("b200");
  const auto entries = [&](const char* text, const DeviceSpec& device) {
    std::set<std::string> names;
    const auto work = work_of_problem(parse_problem(text).value(), {4096}).value();
    const NeededKernels kernels = needed_kernels(work, device, engine).value();
    for (const auto& [digest, kernel] : kernels) {
      const bool serves = std::ranges::any_of(
          kernel.uses, [](const KernelUse& use) { return !use.buckets.empty(); });
      EXPECT_TRUE(serves || kernel.is_tested) << kernel.identity.entry_name;
      if (serves) names.insert(kernel.identity.entry_name);
    }
    return names;
  };
  const char* bf16 = "gemm m=? n=4096 k=4096 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";
  std::set<std::string> both = entries(bf16, untested);
  EXPECT_EQ(both.size(), 2);
  for (const std::string& name : entries(bf16, untested.with_all_units())) both.erase(name);
  EXPECT_EQ(both.size(), 1);
  // FP8 D has kernels of tcgen05 alone, quantisers have no unit.
  const char* fp8 =
      "gemm m=? n=4096 k=4096 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128";
  EXPECT_EQ(entries(fp8, untested), entries(fp8, untested.with_all_units()));
  EXPECT_EQ(entries("quantize rows=? cols=4096 x=bf16 q=e4m3:1x128 out=row", untested).size(), 1);
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
