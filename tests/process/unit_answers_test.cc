// The known-answer tests of matrix units on cards that the GPU suite has not run on, with the fake
// driver and the fake NVRTC: which unit serves if one computes wrong, and what is said of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/engine/library.h"
#include "runtime/engine/unit_answers.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"

namespace octile::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A device of which kernels whose name holds `wrong` compute a wrong element, and sums have
// `sum_bits`.
struct Card {
  std::string wrong = "nothing is wrong";
  int sum_bits = 25;
  int gemms = 0;  // launches
};

// The probes of the test: D[62][63] and D[63][63].
constexpr std::int64_t kProbedRows[] = {62, 63};

CUresult run(const fake_cuda_launch* launch, void* user) {
  Card& card = *static_cast<Card*>(user);
  const CUresult result = execute(launch, nullptr);
  const std::string_view kernel = launch->kernel;
  if (result != CUDA_SUCCESS || !kernel.starts_with("octile_gemm")) return result;
  ++card.gemms;
  const GemmKernelArgs args = gemm_args(*launch);
  auto* d = static_cast<float*>(args.d);
  if (kernel.find(card.wrong) != std::string_view::npos) d[5 * args.ldd + 7] += 1;
  for (const std::int64_t row : kProbedRows) {
    float& probed = d[row * args.ldd + 63];
    probed =
        std::bit_cast<float>(std::bit_cast<std::uint32_t>(probed) &
                             ~std::uint32_t{0} << (card.sum_bits < 23 ? 23 - card.sum_bits : 0));
  }
  return result;
}

class UnitAnswersTest : public ::testing::Test {
 protected:
  UnitAnswersTest() { ::setenv("OCTILE_LIBNVRTC", OCTILE_FAKE_NVRTC_PATH, 1); }

  // Returns the warnings about units.
  static std::vector<std::string> warnings(const LibraryHandle& library) {
    std::vector<std::string> all = library.log.of(OCTILE_LOG_WARNING);
    std::erase_if(
        all, [](const std::string& text) { return text.find("matrix unit") == std::string::npos; });
    return all;
  }
  static std::string config_of(const PlanHandle& plan) {
    return describe(plan.get()).at("kernels").at(0).at("config").get<std::string>();
  }

  TempFolder cache;
  Card card;
};

TEST_F(UnitAnswersTest, AreFoundOnceAndTheDefaultUnitServes) {
  const FakeDevice device("rtx5090,h200");
  device.fake.set_executor(run, &card);
  const LibraryHandle library(cache.path());
  const PlanHandle hopper = make_plan(library, "cuda:1", kGemmText);
  ASSERT_EQ(octile_plan_prepare(hopper.get(), 1, 1, 0), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(card.gemms, 0);
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 64, 0), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(card.gemms, 3);  // one of each unit, and one with scales in the instruction
  EXPECT_THAT(config_of(plan), HasSubstr("unit=mma_scaled"));
  ASSERT_EQ(octile_plan_prepare(plan.get(), 4096, 4096, 0), OCTILE_OK) << octile_last_error();
  const PlanHandle other = make_plan(library, "cuda:0", kGemmText);
  ASSERT_EQ(octile_plan_prepare(other.get(), 1, 1, 0), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(card.gemms, 3);
  EXPECT_THAT(warnings(library), IsEmpty());
  EXPECT_EQ(device.fake.live_allocations(), 0U);
}

TEST_F(UnitAnswersTest, TheNextUnitServesIfOneIsWrong) {
  const FakeDevice device("rtx5090");
  device.fake.set_executor(run, &card);
  card.wrong = "_mma_scaled";
  const LibraryHandle library(cache.path());
  for (int i = 0; i < 2; ++i) {
    const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
    ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 64, 0), OCTILE_OK) << octile_last_error();
    EXPECT_THAT(config_of(plan), AllOf(HasSubstr("unit=mma"), Not(HasSubstr("unit=mma_scaled"))));
  }
  EXPECT_THAT(
      warnings(library),
      ElementsAre(AllOf(HasSubstr("(compute capability 12.0) does not pass the known-answer "
                                  "test of its matrix unit mma_scaled: D[5][7] is "),
                        HasSubstr("; no GEMM uses it"))));
}

// A unit that multiplies scales of other rows is left out as one that multiplies wrong, and a
// problem of which no other unit has kernels is refused.
TEST_F(UnitAnswersTest, ScalesInTheInstructionAreTestedToo) {
  const FakeDevice device("rtx5090");
  device.fake.set_executor(run, &card);
  card.wrong = "_pnone_";
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 64, 0), OCTILE_OK) << octile_last_error();
  EXPECT_THAT(config_of(plan), AllOf(HasSubstr("unit=mma"), Not(HasSubstr("unit=mma_scaled"))));
  EXPECT_THAT(warnings(library),
              ElementsAre(HasSubstr("does not pass the known-answer test of its matrix unit "
                                    "mma_scaled: with scales in the instruction D[5][7] is ")));
  const PlanHandle inside = make_plan(
      library, "cuda:0",
      "gemm m=? n=256 k=512 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=bf16 acc=0 promote=none");
  expect_refused(octile_plan_prepare(inside.get(), 1, 1, 0), OCTILE_UNSUPPORTED,
                 {"no instruction multiplies scales of blocks here"});
}

TEST_F(UnitAnswersTest, NoGemmIsHandedOutIfAllAreWrong) {
  const FakeDevice device("rtx5090");
  device.fake.set_executor(run, &card);
  card.wrong = "octile_gemm";
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  expect_refused(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_DEVICE_ERROR,
                 {"matrix unit mma_scaled: D[5][7] is ", "no GEMM is handed out for it"});
}

TEST_F(UnitAnswersTest, FewerBitsThanDescribedAreWrong) {
  const FakeDevice device("rtx5090");
  device.fake.set_executor(run, &card);
  card.sum_bits = 13;
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  expect_refused(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_DEVICE_ERROR,
                 {"it keeps 13 bits of a sum, and 25 are taken for granted"});
}

TEST_F(UnitAnswersTest, ProbesReadOffTheBits) {
  const FakeDevice device("rtx5090");
  device.fake.set_executor(run, &card);
  Library library(LibraryOptions{});
  const auto target = resolve_target("cuda:0");
  ASSERT_TRUE(target);
  for (const auto& [bits, read] : {std::pair(13, 13), std::pair(18, 14), std::pair(25, 25)}) {
    card.sum_bits = bits;
    const std::vector<UnitAnswer> answers = test_units(library, *target);
    ASSERT_EQ(answers.size(), 2U);
    for (const UnitAnswer& answer : answers) EXPECT_EQ(answer.sum_bits, read);
  }
}

}  // namespace
}  // namespace octile::test
