// The verifier and a whole search on the fake device. The host's reference executes launches, and a
// kernel is wrong if a test requests it. The inspector is the template's own text, run on the host.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>

#include "runtime/compiler/nvrtc.h"
#include "runtime/families/gemm/complete.h"
#include "runtime/measure/random_operands.h"
#include "runtime/prove/gemm/bench.h"
#include "runtime/reference/cast.h"
#include "tests/support/inspect_on_host.h"
#include "tests/support/verifier_testing.h"

namespace octile::tuner {
namespace {

using test::parameter;
using ::testing::HasSubstr;

constexpr std::int64_t kM = 200, kN = 200, kK = 384;

GemmProblem problem() {
  GemmProblem p;
  p.n = kN;
  p.k = kK;
  return p;
}

// Completes arguments of one problem and computes another one on the host.
Status run_as_plan(const GemmProblem& asked, const GemmProblem& computed,
                   const GemmArguments& args) {
  const auto call = complete(asked, args);
  if (!call) return tl::unexpected<Error>(call.error());
  return run_on_host(computed, *call);
}

// Returns an element of D, which is bf16 and lies between guard zones.
using Args = GemmArguments;
std::uint16_t& at(const Args& args, std::int64_t row, std::int64_t col) {
  return static_cast<std::uint16_t*>(args.d)[row * args.ldd + col];
}
// Sets elements to zero that no sample contains.
void zero_between_the_samples(const Args& args) {
  std::fill_n(&at(args, 50, 70), 16, std::uint16_t{0});
}

// The kernel whose launches spoil their result.
std::string g_wrong_kernel;

// The inspector of the problem's D.
constexpr auto* kInspect = &inspect_on_host;
decltype(&inspect_on_host) g_inspect = kInspect;

// Graphs replay thousands of launches whose results nobody reads. The kernel that spoils its result
// is the fastest by far, because only possible winners are looked at between the samples.
CUresult execute(const fake_cuda_launch* launch, void*) {
  const std::string_view kernel = launch->kernel;
  if (launch->replayed != 0) {
    if (!g_wrong_kernel.empty() && kernel != g_wrong_kernel)
      test::spin(std::chrono::microseconds(15));
    return CUDA_SUCCESS;
  }
  if (kernel == "octile_bench_inspect") {
    return run_inspect(*launch, g_inspect);
  }
  for (const OperandQuantizer& quantizer : operand_quantizers({problem(), kM})) {
    const auto& [of, rows] = quantizer.task;
    if (kernel == kernel_name(of, default_config(of, rows, *find_device("h200"))))
      return test::run_quantize(*launch, *problem_as<QuantizeProblem>(of));
  }
  const CUresult result = test::execute(launch, nullptr);
  if (result == CUDA_SUCCESS && kernel == g_wrong_kernel) {
    Args args{};
    args.d = test::gemm_args(*launch).d;
    args.ldd = test::gemm_args(*launch).ldd;
    zero_between_the_samples(args);
  }
  return result;
}

// An element that is added to counts as unwritten together with its neighbour only.
TEST(Inspector, ASumOfZeroIsWritten) {
  std::array<std::uint16_t, 16> d{};  // two rows of six elements in a stride of eight
  d.fill(0xFFFF);
  const auto unwritten = [&] {
    std::array<unsigned long long, 6> report{};
    sums::inspect_sums_on_host(d.data(), nullptr, 16, 0, 2, 6, 8, 0.0, report.data());
    EXPECT_EQ(report[0], 0U);
    return report[1];
  };
  for (const std::size_t row : {0U, 8U}) std::fill_n(d.begin() + row, 6, std::uint16_t{0x4000});
  EXPECT_EQ(unwritten(), 0U);
  d[1] = d[2] = d[13] = 0x0101;  // none of them neighbours
  EXPECT_EQ(unwritten(), 0U);
  d[3] = 0x0101;
  EXPECT_EQ(unwritten(), 2U);
}

class GemmVerifierTest : public test::VerifierFixture<GemmVerifier, Args> {
 protected:
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
    device.fake.set_executor(execute, nullptr);
    templates.emplace(*gpu);
    slots = std::move(*make_slots(*gpu, problem(), kM, 1, 1));
    verifier.emplace(std::move(*GemmVerifier::create(*gpu, *templates, problem(), slots[0], 3)));
  }

  Status compute(const Args& args) override { return run_as_plan(problem(), problem(), args); }

  std::optional<LoadedTemplates> templates;
  std::vector<GemmSlot> slots;
};

TEST_F(GemmVerifierTest, TakesTheRightProductAgainAndAgain) {
  for (int i = 0; i < 3; ++i) {
    const Verdict verdict = check();
    EXPECT_TRUE(verdict.right) << verdict.why;
  }
}

// Only the rows that samples read are copied to the host, of the weights of many experts.
TEST_F(GemmVerifierTest, SamplesReadTheRowsOfTheirGroups) {
  for (const char* grouping : {"contiguous", "masked"}) {
    SCOPED_TRACE(grouping);
    const auto grouped = std::get<GemmProblem>(*parse_problem(
        fmt::format("gemm m=? n={} k={} a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 "
                    "group={} groups=3",
                    kN, kK, grouping)));
    const auto own = make_slots(*gpu, grouped, 40, 1, 1);
    ASSERT_TRUE(own) << own.error().message;
    auto made = GemmVerifier::create(*gpu, *templates, grouped, own->front(), 3);
    ASSERT_TRUE(made) << made.error().message;
    const auto run = [&](const Args& args, CUstream) {
      return run_as_plan(grouped, grouped, args);
    };
    const auto verdict = made->check(run);
    ASSERT_TRUE(verdict) << verdict.error().message;
    EXPECT_TRUE(verdict->right) << verdict->why;
  }
}

// Two of three groups have no tokens: their D, which is added to, has to stay as it is.
TEST_F(GemmVerifierTest, GroupsWithoutTokensKeepWhatIsAddedTo) {
  const auto grouped = std::get<GemmProblem>(*parse_problem(
      fmt::format("gemm m={} n={} k=? a=e4m3:1x128 b=e4m3:1x128 d=bf16 acc=1 promote=128 "
                  "group=contiguous groups=3",
                  kM, kN)));
  const auto own = make_slots(*gpu, grouped, 128, 1, 1);
  ASSERT_TRUE(own) << own.error().message;
  const std::vector<std::int32_t>& starts = own->front().groups.host;
  const auto empty = std::ranges::adjacent_find(starts) - starts.begin();
  ASSERT_LT(empty, 3);
  g_inspect = &sums::inspect_sums_on_host;
  auto made = GemmVerifier::create(*gpu, *templates, grouped, own->front(), 3);
  ASSERT_TRUE(made) << made.error().message;
  const auto check_with = [&](int spoilt_elements) {
    const auto verdict = made->check([&](const Args& args, CUstream) {
      const Status ok = run_as_plan(grouped, grouped, args);
      for (int i = 0; i < spoilt_elements; ++i) at(args, empty * kM + 50, 70 + i) = 0x4000;
      return ok;
    });
    g_inspect = kInspect;
    return *verdict;
  };
  const Verdict wrong = check_with(2);
  EXPECT_FALSE(wrong.right);
  EXPECT_EQ(wrong.why, "2 elements of groups without tokens were written");
  g_inspect = &sums::inspect_sums_on_host;
  const Verdict right = check_with(0);
  EXPECT_TRUE(right.right) << right.why;
}

TEST_F(GemmVerifierTest, RowsOnTheHostAreThoseThatWereFetched) {
  const DeviceTensor& b = slots[0].b;
  const auto whole = download(*gpu, b);
  auto rows = HostRows::of(*gpu, b);
  ASSERT_TRUE(whole && rows);
  ASSERT_TRUE(rows->fetch(3, 2));
  const HostOperand operand = rows->operand();
  EXPECT_TRUE(std::equal(operand.data + 3 * operand.ld, operand.data + 5 * operand.ld,
                         whole->data.begin() + 3 * operand.ld));
  EXPECT_EQ(operand.ld, kK);
  EXPECT_TRUE(std::ranges::equal(whole->scales, std::span(operand.scales, whole->scales.size())));
}

TEST_F(GemmVerifierTest, SeesWritesOutsideTheOutput) {
  expect_wrong_at_a_glance([](const Args& args) { at(args, 0, -1) = 0; }, "1 elements outside");
  expect_wrong_at_a_glance([](const Args& args) { at(args, kM, 0) = 0; }, "1 elements outside");
  expect_wrong_at_a_glance([](const Args& args) { at(args, 0, kN) = 0; }, "1 elements outside");
}

TEST_F(GemmVerifierTest, SeesWhatWasNotWritten) {
  expect_wrong_at_a_glance([](const Args& args) { at(args, 101, 77) = 0xFFFF; },
                           "1 elements of the output were not written");
}

TEST_F(GemmVerifierTest, SeesResultsThatChangeFromLaunchToLaunch) {
  expect_wrong(
      [calls = std::make_shared<int>(0)](const Args& args) {
        if (++*calls == 2) at(args, 5, 5) ^= 1U;
      },
      "1 elements differ between two launches");
}

TEST_F(GemmVerifierTest, SeesTheLastRowAndColumnAgainstFp64) {
  expect_wrong_at_a_glance([](const Args& args) { at(args, kM - 1, kN - 1) = 0x4700; },
                           "worst element (199, 199)");
  expect_wrong_at_a_glance([](const Args& args) { at(args, kM - 1, kN - 1) = 0x7FFF; },
                           "worst element (199, 199)");
}

// One launch: neither what changes from launch to launch nor what lies between the samples.
TEST_F(GemmVerifierTest, ASpotCheckLooksAtSamplesAndAtWhatWasWritten) {
  ASSERT_TRUE(check().right);
  EXPECT_TRUE(spot_check().right);
  EXPECT_TRUE(spot_check(zero_between_the_samples).right);
  expect_wrong(zero_between_the_samples, "worst element (50, ");
}

// Every element between the samples is compared with a candidate that passed.
TEST_F(GemmVerifierTest, SeesEveryElementOnceOneCandidatePassed) {
  ASSERT_TRUE(check().right);
  for (const std::int64_t row : {1, 50, 99, 150})
    for (const std::int64_t col : {65, 99, 135})
      EXPECT_FALSE(check([&](const Args& args) {
                     std::fill_n(&at(args, row, col), 16, std::uint16_t{0});
                   }).right)
          << row << ", " << col;
  // Another order of summation differs by one unit in the last place.
  EXPECT_TRUE(check([](const Args& args) { at(args, 50, 99) ^= 1U; }).right);
}

// If two candidates disagree, FP64 decides, and later ones are compared with the right one.
TEST_F(GemmVerifierTest, FindsOutAFirstCandidateThatWasWrongBetweenTheSamples) {
  ASSERT_TRUE(check(zero_between_the_samples).right) << "no sample is there";
  const Verdict verdict = check();
  EXPECT_TRUE(verdict.right);
  EXPECT_THAT(verdict.first_is_wrong, HasSubstr("OUT OF TOLERANCE: worst element (50, "));
  expect_wrong(zero_between_the_samples, "worst element (50, ");
  EXPECT_EQ(check().first_is_wrong, "");
}

TEST_F(GemmVerifierTest, ARefusedLaunchIsTheCandidatesFault) {
  expect_a_refused_launch_to_be_wrong();
}

TEST_F(GemmVerifierTest, ABrokenDeviceIsNot) { expect_a_broken_device_to_be_an_error(); }

// A GEMM that adds to D, with a bias. A candidate that forgets either is wrong.
TEST_F(GemmVerifierTest, WhatIsAddedIsVerified) {
  GemmProblem adds = problem();
  adds.accumulate = true;
  adds.bias = DType::kFP32;
  const auto own = make_slots(*gpu, adds, kM, 1, 1);
  ASSERT_TRUE(own) << own.error().message;
  auto made = GemmVerifier::create(*gpu, *templates, adds, (*own)[0], 3);
  ASSERT_TRUE(made) << made.error().message;
  const auto verdict_of = [&](const GemmProblem& computed) {
    return *made->check(
        [&](const Args& args, CUstream) -> Status { return run_as_plan(adds, computed, args); });
  };
  const Verdict right = verdict_of(adds);
  EXPECT_TRUE(right.right) << right.why;
  GemmProblem overwrites = adds;
  overwrites.accumulate = false;
  EXPECT_THAT(verdict_of(overwrites).why, HasSubstr("OUT OF TOLERANCE"));
  GemmProblem without_bias = adds;
  without_bias.bias.reset();
  EXPECT_THAT(verdict_of(without_bias).why, HasSubstr("OUT OF TOLERANCE"));
}

class Fp8VerifierTest : public test::VerifierFixture<GemmVerifier, Args> {
 protected:
  static constexpr std::int64_t kRows = 198;  // two scales of padding

  static GemmProblem quantised() {
    GemmProblem p = problem();
    p.d = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
    return p;
  }
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
    g_inspect = &codes::inspect_codes_on_host;
    device.fake.set_executor(execute, nullptr);
    templates.emplace(*gpu);
    slots = std::move(*make_slots(*gpu, quantised(), kRows, 1, 1));
    verifier.emplace(std::move(*GemmVerifier::create(*gpu, *templates, quantised(), slots[0], 3)));
  }
  void TearDown() override { g_inspect = kInspect; }
  Status compute(const Args& args) override { return run_as_plan(quantised(), quantised(), args); }
  static std::uint8_t& code(const Args& args, std::int64_t row, std::int64_t col) {
    return static_cast<std::uint8_t*>(args.d)[row * args.ldd + col];
  }

  std::optional<LoadedTemplates> templates;
  std::vector<GemmSlot> slots;
};

TEST_F(Fp8VerifierTest, TakesTheRightCodesAgain) {
  for (int i = 0; i < 2; ++i) {
    const Verdict verdict = check();
    EXPECT_TRUE(verdict.right) << verdict.why;
    EXPECT_EQ(verdict.first_is_wrong, "");
  }
  const auto checked =
      run_and_check(*gpu, quantised(), slots[0], [&] { return compute(args_of(slots[0])); });
  ASSERT_TRUE(checked) << checked.error().message;
  EXPECT_TRUE(checked->ok) << checked->worst.to_text();
  EXPECT_GT(checked->elements, 500);
}

TEST_F(Fp8VerifierTest, SeesWrongCodes) {
  expect_wrong([](const Args& args) { code(args, 0, kN) = 0; }, "1 elements outside");
  expect_wrong([](const Args& args) { code(args, 101, 77) = 0xFF; }, "1 elements of the output");
  expect_wrong([](const Args& args) { code(args, kRows - 1, kN - 1) ^= 0x80U; },
               "worst element (197, 199)");
  ASSERT_TRUE(check().right);
  const Verdict verdict = check([](const Args& args) { code(args, 50, 70) ^= 0x80U; });
  EXPECT_FALSE(verdict.right);
  EXPECT_THAT(verdict.why, HasSubstr("1 elements, OUT OF TOLERANCE: worst element (50, 70)"));
}

TEST_F(Fp8VerifierTest, SeesWrongScales) {
  expect_wrong([](const Args& args) { args.d_scales.scale[-1] = 1; }, "memory -1 scales after");
  expect_wrong([](const Args& args) { args.d_scales.scale[200] = 1; }, "memory 200 scales after");
  expect_wrong([](const Args& args) { args.d_scales.scale[199] = 2; },
               "which is padding, is 2, not 1");
  expect_wrong([](const Args& args) { args.d_scales.scale[args.d_scales.scale_ld + 7] = 0; },
               "of D is 0");
  expect_wrong([](const Args& args) { args.d_scales.scale[197] *= 2; }, "OUT OF TOLERANCE");
  expect_wrong(
      [calls = std::make_shared<int>(0)](const Args& args) {
        if (++*calls == 2) args.d_scales.scale[5] *= 2;
      },
      "scale 5 of D differs between two launches");
}

// Codes of half the size under twice the scale are as near to the sums, and lose a bit of each.
TEST_F(Fp8VerifierTest, SeesAScaleThatLeavesCodesUnused) {
  expect_wrong(
      [](const Args& args) {
        for (std::int64_t col = 0; col < 128; ++col) {
          const float x = reference::from_fp8(code(args, 0, col), DType::kE4M3);
          code(args, 0, col) = reference::to_fp8(x / 2, DType::kE4M3);
        }
        args.d_scales.scale[0] *= 2;
      },
      "the largest code of row 0 from column 0 on is 224; allowed is 448 to 448");
}

TEST_F(GemmVerifierTest, ASearchLeavesTheWrongCandidateOut) {
  test::expect_search_to_leave_out_the_wrong(
      *gpu, {problem(), kM},
      [](const KernelConfig& wrong) {
        g_wrong_kernel = kernel_name(problem(), std::get<GemmConfig>(wrong));
      },
      "worst element (50, ");
}

}  // namespace
}  // namespace octile::tuner
