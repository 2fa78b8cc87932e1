// The verifier of quantise candidates and a whole search on the fake device. The host's reference
// executes launches, and a kernel is wrong if a test requests it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "generator/quantize/kernel_name.h"
#include "runtime/compiler/nvrtc.h"
#include "runtime/families/quantize/complete.h"
#include "runtime/prove/quantize/bench.h"
#include "tests/support/inspect_on_host.h"
#include "tests/support/verifier_testing.h"

namespace octile::tuner {
namespace {

using test::parameter;
using ::testing::HasSubstr;

constexpr std::int64_t kRows = 40;

// Returns the numerics that the fake device's executor implements.
QuantizeProblem problem(std::int64_t cols = 300) {
  QuantizeProblem p;
  p.cols = cols;
  return p;
}

// Graphs replay thousands of launches whose results nobody reads.
std::string g_wrong_kernel;
CUresult execute(const fake_cuda_launch* launch, void*) {
  if (launch->replayed != 0) return CUDA_SUCCESS;
  if (launch->kernel == std::string_view("octile_bench_inspect"))
    return run_inspect(*launch, words::inspect_words_on_host);
  const CUresult result = test::execute(launch, nullptr);
  if (result == CUDA_SUCCESS && launch->kernel == g_wrong_kernel)
    static_cast<std::uint8_t*>(parameter<QuantizeKernelArgs>(*launch, 0).q)[11] ^= 1U;
  return result;
}

class QuantizeVerifierTest : public test::VerifierFixture<QuantizeVerifier, QuantizeArguments> {
 protected:
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
    device.fake.set_executor(execute, nullptr);
    templates.emplace(*gpu);
    open(problem());
  }

  void open(const QuantizeProblem& p) {
    verifier.reset();
    tested = p;
    slots = std::move(*make_slots(*gpu, p, kRows, 1, 3));
    verifier.emplace(std::move(*QuantizeVerifier::create(*gpu, *templates, p, slots.front(), 5)));
  }

  Status compute(const QuantizeArguments& args) override {
    return run_on_host(tested, *complete(tested, args));
  }

  std::optional<LoadedTemplates> templates;
  QuantizeProblem tested;
  std::vector<QuantizeSlot> slots;
};

std::uint8_t* codes(const QuantizeArguments& args) { return static_cast<std::uint8_t*>(args.q); }

TEST_F(QuantizeVerifierTest, TakesTheRightCodesOfEveryKindAgainAndAgain) {
  for (const char* text :
       {"quantize rows=? cols=300 x=bf16 q=e4m3:1x128 out=both",
        "quantize rows=? cols=300 x=fp32 q=e5m2:row out=row",
        "quantize rows=? cols=300 x=fp16 q=e4m3:tensor out=col policy=delayed",
        "quantize rows=? cols=300 x=bf16 q=e4m3:tensor out=both",
        "quantize rows=? cols=384 x=bf16 q=e4m3:1x32 out=row scales=swizzled",
        "quantize rows=? cols=384 x=bf16 q=e4m3:1x128 out=both group=contiguous",
        "quantize rows=? cols=384 x=bf16 q=e4m3:1x128 out=both src=silu_mul",
        "quantize rows=? cols=384 x=fp16 q=e4m3:1x128 out=row src=dsilu_mul",
        "quantize rows=? cols=384 x=e4m3:1x128 q=e4m3:1x128 out=col",
        "dequantize rows=? cols=384 x=e4m3:1x32 q=bf16 out=row",
        "transpose rows=? cols=384 x=e4m3:128x128 q=e4m3:128x128 out=col",
        "quantize rows=? cols=384 x=bf16 q=e4m3:tensor out=row policy=delayed group=masked"}) {
    SCOPED_TRACE(text);
    open(std::get<QuantizeProblem>(*parse_problem(text)));
    for (int i = 0; i < 2; ++i) {
      const Verdict verdict = check();
      EXPECT_TRUE(verdict.right) << verdict.why;
    }
    expect_wrong(
        [](const QuantizeArguments& args) {
          auto* q = static_cast<std::uint8_t*>(args.q != nullptr ? args.q : args.q_transposed);
          q[0] ^= 1U;
        },
        "byte 0 of q");
  }
}

TEST_F(QuantizeVerifierTest, SeesWritesOutsideTheOutputs) {
  const auto outside = "1 bytes differ from the host reference; the first, outside of the outputs";
  expect_wrong_at_a_glance([](const QuantizeArguments& args) { codes(args)[-1] = 0; }, outside);
  expect_wrong_at_a_glance([](const QuantizeArguments& args) { codes(args)[args.rows * 304] = 0; },
                           outside);
  // The columns that round a row of codes up are nobody's to write.
  expect_wrong_at_a_glance([](const QuantizeArguments& args) { codes(args)[300] = 0; },
                           "byte 300 of q");
}

TEST_F(QuantizeVerifierTest, SeesWhatWasNotWritten) {
  expect_wrong_at_a_glance(
      [](const QuantizeArguments& args) { codes(args)[7 * 300 + 3] = 0xA5; },
      "1 bytes differ from the host reference; the first, byte 2103 of q, is 0xa5");
  expect_wrong_at_a_glance(
      [](const QuantizeArguments& args) { static_cast<float*>(args.scale)[1] += 1; },
      "of scale, is");
}

TEST_F(QuantizeVerifierTest, SeesInfinitiesAndNaNsThatWereNotCounted) {
  expect_wrong_at_a_glance(
      [](const QuantizeArguments& args) {
        if (*args.monitor.nonfinite > 0) --*args.monitor.nonfinite;
      },
      "byte 0 of nonfinite");
}

TEST_F(QuantizeVerifierTest, SeesResultsThatChangeFromLaunchToLaunch) {
  expect_wrong(
      [calls = std::make_shared<int>(0)](const QuantizeArguments& args) {
        if (++*calls == 2) codes(args)[5] ^= 1U;
      },
      "byte 5 of q");
}

// The verifier does not compare the timed tensor with the reference.
TEST_F(QuantizeVerifierTest, SeesTheTimedTensorOnceOneCandidatePassed) {
  const auto at_timed_rows = [](const QuantizeArguments& args) {
    if (args.rows == kRows) codes(args)[args.rows * 300 - 1] ^= 1U;
  };
  ASSERT_TRUE(check().right);
  expect_wrong(at_timed_rows, "byte 11999 of q");
}

TEST_F(QuantizeVerifierTest, FindsOutAFirstCandidateThatWasWrong) {
  const auto at_timed_rows = [](const QuantizeArguments& args) {
    if (args.rows == kRows) codes(args)[17] ^= 1U;
  };
  ASSERT_TRUE(check(at_timed_rows).right) << "there is nothing to compare it with yet";
  const Verdict verdict = check();
  EXPECT_TRUE(verdict.right);
  EXPECT_THAT(verdict.first_is_wrong, HasSubstr("byte 17 of q"));
  expect_wrong(at_timed_rows, "byte 17 of q");
  EXPECT_EQ(check().first_is_wrong, "");
}

TEST_F(QuantizeVerifierTest, ARefusedLaunchIsTheCandidatesFault) {
  expect_a_refused_launch_to_be_wrong();
}

TEST_F(QuantizeVerifierTest, ABrokenDeviceIsNot) { expect_a_broken_device_to_be_an_error(); }

TEST_F(QuantizeVerifierTest, WhatHasNoOperandsIsRefused) {
  QuantizeProblem amax = problem();
  amax.operation = QuantizeOperation::kAmax;
  const auto refused = make_slots(*gpu, amax, kRows, 1, 3);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("no operands for a maximum alone"));
}

TEST_F(QuantizeVerifierTest, ASearchLeavesTheWrongCandidateOut) {
  test::expect_search_to_leave_out_the_wrong(
      *gpu, {problem(), kRows},
      [](const KernelConfig& wrong) {
        g_wrong_kernel = kernel_name(problem(), std::get<QuantizeConfig>(wrong));
      },
      "byte 11 of q");
}

}  // namespace
}  // namespace octile::tuner
