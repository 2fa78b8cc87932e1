// The check of quantise candidates and a whole search on the fake device, whose executor is the
// host's reference, and a wrong kernel where a test wants one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "runtime/compiler/nvrtc.h"
#include "runtime/engine/reference_arguments.h"
#include "runtime/tuner/gpu_decider.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"

namespace octile::tuner {
namespace {

using test::parameter;
using ::testing::HasSubstr;

constexpr std::int64_t kRows = 40;

// The numerics the fake device's executor knows.
QuantizeProblem problem(std::int64_t cols = 300) {
  QuantizeProblem p;
  p.cols = cols;
  return p;
}

// What a kernel does after the right codes.
using Sabotage = std::function<void(const octile_quantize_args& args)>;

class QuantizeGateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    gpu = std::move(*GpuSession::open("cuda:0"));
    open(problem());
  }

  void open(const QuantizeProblem& p) {
    gate.reset();
    tested = p;
    slots = std::move(*make_quantize_slots(*gpu, p, kRows, 1, 3));
    gate.emplace(std::move(*QuantizeGate::create(*gpu, p, slots.front(), 5)));
  }

  // The fake's memory is the host's: the reference executor is the kernel.
  Verdict check(const Sabotage& sabotage = nullptr) {
    const auto verdict = gate->check([&](const octile_quantize_args& args, CUstream) -> Status {
      const Status ok = reference::quantize(tested, reference_args(args));
      if (sabotage) sabotage(args);
      return ok;
    });
    EXPECT_TRUE(verdict) << verdict.error().message;
    return *verdict;
  }
  void expect_wrong(const Sabotage& sabotage, const std::string& says) {
    const Verdict verdict = check(sabotage);
    EXPECT_FALSE(verdict.right);
    EXPECT_THAT(verdict.why, HasSubstr(says));
  }

  test::FakeDevice device;
  std::unique_ptr<GpuSession> gpu;
  QuantizeProblem tested;
  std::vector<QuantizeSlot> slots;
  std::optional<QuantizeGate> gate;
};

std::uint8_t* codes(const octile_quantize_args& args) { return static_cast<std::uint8_t*>(args.q); }

TEST_F(QuantizeGateTest, TakesTheRightCodesOfEveryKindAgainAndAgain) {
  for (const char* text :
       {"quantize rows=? cols=300 x=bf16 q=e4m3:1x128 out=both",
        "quantize rows=? cols=300 x=fp32 q=e5m2:row out=row",
        "quantize rows=? cols=300 x=fp16 q=e4m3:tensor out=col policy=delayed",
        "quantize rows=? cols=300 x=bf16 q=e4m3:tensor out=both",
        "quantize rows=? cols=384 x=bf16 q=e4m3:1x32 out=row scales=swizzled",
        "quantize rows=? cols=384 x=bf16 q=e4m3:1x128 out=both group=packed",
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
        [](const octile_quantize_args& args) {
          auto* q = static_cast<std::uint8_t*>(args.q != nullptr ? args.q : args.q_transposed);
          q[0] ^= 1U;
        },
        "byte 0 of q");
  }
}

TEST_F(QuantizeGateTest, SeesWritesOutsideTheOutputs) {
  const auto outside = "1 bytes differ from the host reference; the first, outside of the outputs";
  expect_wrong([](const octile_quantize_args& args) { codes(args)[-1] = 0; }, outside);
  expect_wrong([](const octile_quantize_args& args) { codes(args)[args.rows * 300] = 0; }, outside);
}

TEST_F(QuantizeGateTest, SeesWhatWasNotWritten) {
  expect_wrong([](const octile_quantize_args& args) { codes(args)[7 * 300 + 3] = 0xA5; },
               "1 bytes differ from the host reference; the first, byte 2103 of q, is 0xa5");
  expect_wrong([](const octile_quantize_args& args) { static_cast<float*>(args.scale)[1] += 1; },
               "of scale, is");
}

TEST_F(QuantizeGateTest, SeesInfinitiesAndNaNsThatWereNotCounted) {
  expect_wrong(
      [](const octile_quantize_args& args) {
        if (*args.nonfinite > 0) --*args.nonfinite;
      },
      "byte 0 of nonfinite");
}

TEST_F(QuantizeGateTest, SeesResultsThatChangeFromLaunchToLaunch) {
  expect_wrong(
      [calls = std::make_shared<int>(0)](const octile_quantize_args& args) {
        if (++*calls == 2) codes(args)[5] ^= 1U;
      },
      "byte 5 of q");
}

// The reference was not asked about the tensor that is timed.
TEST_F(QuantizeGateTest, SeesTheTimedTensorOnceOneCandidatePassed) {
  const auto at_timed_rows = [](const octile_quantize_args& args) {
    if (args.rows == kRows) codes(args)[args.rows * 300 - 1] ^= 1U;
  };
  ASSERT_TRUE(check().right);
  expect_wrong(at_timed_rows, "byte 11999 of q");
}

TEST_F(QuantizeGateTest, FindsOutAFirstCandidateThatWasWrong) {
  const auto at_timed_rows = [](const octile_quantize_args& args) {
    if (args.rows == kRows) codes(args)[17] ^= 1U;
  };
  ASSERT_TRUE(check(at_timed_rows).right) << "there is nothing to compare it with yet";
  const Verdict verdict = check();
  EXPECT_TRUE(verdict.right);
  EXPECT_THAT(verdict.first_is_wrong, HasSubstr("byte 17 of q"));
  expect_wrong(at_timed_rows, "byte 17 of q");
  EXPECT_EQ(check().first_is_wrong, "");
}

TEST_F(QuantizeGateTest, ARefusedLaunchIsTheCandidatesFault) {
  const auto verdict = gate->check([](const octile_quantize_args&, CUstream) -> Status {
    return fail(ErrorCode::kDeviceError, "cuLaunchKernelEx failed: too many resources");
  });
  ASSERT_TRUE(verdict);
  EXPECT_FALSE(verdict->right);
  EXPECT_THAT(verdict->why, HasSubstr("too many resources"));
}

TEST_F(QuantizeGateTest, ABrokenDeviceIsNot) {
  device.fake.fail("cuStreamSynchronize", CUDA_ERROR_ILLEGAL_ADDRESS, 1);
  const auto verdict =
      gate->check([](const octile_quantize_args&, CUstream) -> Status { return {}; });
  ASSERT_FALSE(verdict);
  EXPECT_THAT(verdict.error().message, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST_F(QuantizeGateTest, WhatHasNoOperandsIsRefused) {
  QuantizeProblem range = problem();
  range.shard = ShardStep::kAmax;
  const auto refused = make_quantize_slots(*gpu, range, kRows, 1, 3);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("no operands for a range of a tensor"));
}

// Graphs replay thousands of launches whose results nobody looks at.
std::string g_wrong_kernel;
CUresult execute(const fake_cuda_launch* launch, void*) {
  if (launch->replayed != 0) return CUDA_SUCCESS;
  const CUresult result = test::execute(launch, nullptr);
  if (result == CUDA_SUCCESS && launch->kernel == g_wrong_kernel)
    static_cast<std::uint8_t*>(parameter<QuantizeKernelArgs>(*launch, 0).q)[11] ^= 1U;
  return result;
}

// Compile, launch by configuration, gate, race, record: all of it, with one wrong candidate.
TEST(QuantizeSearch, LeavesTheWrongCandidateOut) {
  if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
  test::FakeDevice device;
  device.fake.set_executor(execute, nullptr);
  const auto gpu = std::move(*GpuSession::open("cuda:0"));
  const test::TempFolder cache;
  LibraryOptions options;
  options.engine.writable_root = cache.path();
  Library library(std::move(options));
  const auto shop = GpuWorkshop::open(library, *gpu);
  ASSERT_TRUE(shop) << shop.error().message;
  GpuDeciderOptions how;
  how.shortlist = {.liked = 3, .different = 1};
  const Question question{problem(), kRows};
  const auto list = explore(question, gpu->spec(), how.shortlist).shortlist;
  ASSERT_EQ(list.size(), 4);
  const auto& wrong = std::get<QuantizeConfig>(list[1].config);
  g_wrong_kernel = kernel_name(problem(), wrong);
  GpuDecider decider(**shop, how);
  const cache::TuningFile file(cache.path(), true);
  CampaignOptions campaign;
  campaign.budget_seconds = 120;  // on a busy machine; a few are needed
  const auto result = run_campaign({question}, gpu->spec(), decider, &file, campaign);
  ASSERT_TRUE(result) << result.error().message;
  const Decision& decision = result->decisions.front();
  ASSERT_TRUE(decision.decided()) << name_of(decision.outcome);
  ASSERT_EQ(decision.wrong.size(), 1);
  EXPECT_EQ(decision.wrong[0].config, to_text(wrong));
  EXPECT_THAT(decision.wrong[0].why, HasSubstr("byte 11 of q"));
  const auto kept = file.read();
  ASSERT_EQ(kept->records.size(), 1);
  EXPECT_EQ(kept->records[0], decision.record);
  EXPECT_EQ(kept->records[0].family, "quantize");
  EXPECT_NE(kept->records[0].winner.config, to_text(wrong));
  EXPECT_THAT(kept->records[0].toolchain.compiler, HasSubstr("nvrtc"));
  EXPECT_EQ(kept->records[0].baselines_us.front().first, "floor");
}

}  // namespace
}  // namespace octile::tuner
