// The check of candidates and a whole search on the fake device, whose executor is the host's
// reference, and a wrong kernel where a test wants one. The inspector is the template's own text,
// run on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "runtime/compiler/nvrtc.h"
#include "runtime/tuner/gpu_decider.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"

namespace {

// What templates/bench/inspect.cu needs of CUDA, for one thread that is the whole grid.
// NOLINTBEGIN: these names are CUDA's.
struct Dim {
  unsigned x = 0;
};
const Dim threadIdx{0}, blockIdx{0}, gridDim{1};
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using i64 = std::int64_t;
inline float __uint_as_float(u32 bits) { return std::bit_cast<float>(bits); }
inline void atomicMax(unsigned long long* to, unsigned long long value) {
  *to = *to > value ? *to : value;
}
inline void atomicAdd(unsigned long long* to, unsigned long long value) { *to += value; }
using std::fabs;
using std::fmax;
#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define OCTILE_EMITTED
#define OCTILE_KERNEL_NAME inspect_on_host
namespace cfg {
constexpr int kThreads = 1;
constexpr int kElementBytes = 2;
}  // namespace cfg
#include "templates/bench/inspect.cu"
#undef OCTILE_KERNEL_NAME
#undef OCTILE_EMITTED
#undef __launch_bounds__
#undef __global__
#undef __forceinline__
#undef __device__
// NOLINTEND

}  // namespace

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

// What a kernel does to D after the right product, [m][ldd] in bf16; D lies between guard zones.
using Sabotage = std::function<void(std::uint16_t* d, std::int64_t ldd)>;
Sabotage g_sabotage;
std::string g_sabotaged_kernel;

CUresult run_inspect(const fake_cuda_launch& launch) {
  inspect_on_host(parameter<const void*>(launch, 0), parameter<const void*>(launch, 1),
                  parameter<i64>(launch, 2), parameter<i64>(launch, 3), parameter<i64>(launch, 4),
                  parameter<i64>(launch, 5), parameter<i64>(launch, 6),
                  parameter<double>(launch, 7), parameter<unsigned long long*>(launch, 8));
  return CUDA_SUCCESS;
}

// Graphs replay thousands of launches whose results nobody looks at.
CUresult execute(const fake_cuda_launch* launch, void*) {
  const std::string_view kernel = launch->kernel;
  if (launch->replayed != 0) return CUDA_SUCCESS;
  if (kernel == "octile_bench_inspect") return run_inspect(*launch);
  const CUresult result = test::execute(launch, nullptr);
  if (result == CUDA_SUCCESS && g_sabotage && kernel == g_sabotaged_kernel)
    g_sabotage(parameter<std::uint16_t*>(*launch, 5), parameter<std::int64_t>(*launch, 8));
  return result;
}

class GateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
    device.fake.set_executor(execute, nullptr);
    g_sabotage = nullptr;
    gpu = std::move(*GpuSession::open("cuda:0"));
    inspect.emplace(std::move(*GemmGate::compile_inspector(*gpu, DType::kBF16)));
    a.emplace(std::move(*random_tensor(*gpu, problem().a, kM, kK, 1)));
    b.emplace(std::move(*random_tensor(*gpu, problem().b, kN, kK, 2)));
    gate.emplace(std::move(*GemmGate::create(*gpu, *inspect, problem(), *a, *b, 3)));
  }

  // The fake's memory is the host's: the reference executor is the kernel.
  Verdict check(const Sabotage& sabotage = nullptr) {
    const auto verdict = gate->check([&](const octile_gemm_args& args, CUstream) -> Status {
      reference::GemmArgs host;
      host.m = args.m;
      host.a = args.a;
      host.a_scale = args.a_scale;
      host.b = args.b;
      host.b_scale = args.b_scale;
      host.d = args.d;
      host.ldd = args.ldd;
      const Status ok = reference::gemm(problem(), host);
      if (sabotage) sabotage(static_cast<std::uint16_t*>(args.d), args.ldd);
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
  std::optional<LoadedTemplate> inspect;
  std::optional<DeviceTensor> a, b;
  std::optional<GemmGate> gate;
};

TEST_F(GateTest, TakesTheRightProductAgainAndAgain) {
  for (int i = 0; i < 3; ++i) {
    const Verdict verdict = check();
    EXPECT_TRUE(verdict.right) << verdict.why;
  }
}

TEST_F(GateTest, SeesWritesOutsideTheOutput) {
  expect_wrong([](std::uint16_t* d, std::int64_t) { d[-1] = 0; }, "1 elements outside");
  expect_wrong([](std::uint16_t* d, std::int64_t ldd) { d[kM * ldd] = 0; }, "1 elements outside");
  expect_wrong([](std::uint16_t* d, std::int64_t) { d[kN] = 0; }, "1 elements outside");
}

TEST_F(GateTest, SeesWhatWasNotWritten) {
  expect_wrong([](std::uint16_t* d, std::int64_t ldd) { d[101 * ldd + 77] = 0xFFFF; },
               "1 elements of the output were not written");
}

TEST_F(GateTest, SeesResultsThatChangeFromLaunchToLaunch) {
  expect_wrong(
      [calls = std::make_shared<int>(0)](std::uint16_t* d, std::int64_t ldd) {
        if (++*calls == 2) d[5 * ldd + 5] ^= 1U;
      },
      "1 elements differ between two launches");
}

TEST_F(GateTest, SeesTheLastRowAndColumnAgainstFp64) {
  expect_wrong([](std::uint16_t* d, std::int64_t ldd) { d[(kM - 1) * ldd + kN - 1] = 0x4700; },
               "worst element (199, 199)");
  expect_wrong([](std::uint16_t* d, std::int64_t ldd) { d[(kM - 1) * ldd + kN - 1] = 0x7FFF; },
               "worst element (199, 199)");
}

// Every element between the samples is compared with a candidate that passed.
TEST_F(GateTest, SeesEveryElementOnceOneCandidatePassed) {
  ASSERT_TRUE(check().right);
  for (const std::int64_t row : {1, 50, 99, 150})
    for (const std::int64_t col : {65, 99, 135})
      EXPECT_FALSE(check([&](std::uint16_t* d, std::int64_t ldd) {
                     std::fill_n(d + row * ldd + col, 16, std::uint16_t{0});
                   }).right)
          << row << ", " << col;
  // Another order of summation is off by a unit in the last place.
  EXPECT_TRUE(check([](std::uint16_t* d, std::int64_t ldd) { d[50 * ldd + 99] ^= 1U; }).right);
}

// Where they disagree, FP64 decides; the right one is what is compared with from then on.
TEST_F(GateTest, FindsOutAFirstCandidateThatWasWrongBetweenTheSamples) {
  const auto in_between = [](std::uint16_t* d, std::int64_t ldd) {
    std::fill_n(d + 50 * ldd + 70, 16, std::uint16_t{0});
  };
  ASSERT_TRUE(check(in_between).right) << "no sample is there";
  const Verdict verdict = check();
  EXPECT_TRUE(verdict.right);
  EXPECT_THAT(verdict.first_is_wrong, HasSubstr("OUT OF TOLERANCE: worst element (50, "));
  expect_wrong(in_between, "worst element (50, ");
  EXPECT_EQ(check().first_is_wrong, "");
}

TEST_F(GateTest, ARefusedLaunchIsTheCandidatesFault) {
  const auto verdict = gate->check([](const octile_gemm_args&, CUstream) -> Status {
    return fail(ErrorCode::kDeviceError, "cuLaunchKernelEx failed: too many resources");
  });
  ASSERT_TRUE(verdict);
  EXPECT_FALSE(verdict->right);
  EXPECT_THAT(verdict->why, HasSubstr("too many resources"));
}

TEST_F(GateTest, ABrokenDeviceIsNot) {
  device.fake.fail("cuStreamSynchronize", CUDA_ERROR_ILLEGAL_ADDRESS, 1);
  const auto verdict = gate->check([](const octile_gemm_args&, CUstream) -> Status { return {}; });
  ASSERT_FALSE(verdict);
  EXPECT_THAT(verdict.error().message, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST_F(GateTest, AccumulationIsRefused) {
  GemmProblem adds = problem();
  adds.accumulate = true;
  const auto refused = GemmGate::create(*gpu, *inspect, adds, *a, *b, 3);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("adds to its output"));
}

// Compile, gate, race, record: all of it, with one candidate that is wrong in one element.
TEST_F(GateTest, ASearchLeavesTheWrongCandidateOut) {
  const test::TempFolder cache;
  LibraryOptions options;
  options.engine.writable_root = cache.path();
  Library library(std::move(options));
  const auto shop = GpuWorkshop::open(library, *gpu);
  ASSERT_TRUE(shop);
  GpuDeciderOptions how;
  how.shortlist = {.liked = 3, .different = 1};
  const Question question{problem(), kM};
  const auto exploration = explore(question, gpu->spec(), how.shortlist);
  const auto& wrong = std::get<GemmConfig>(exploration.shortlist[1].config);
  g_sabotaged_kernel = kernel_name(problem(), wrong);
  g_sabotage = [](std::uint16_t* d, std::int64_t ldd) {
    std::fill_n(d + 50 * ldd + 70, 16, std::uint16_t{0});
  };
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
  EXPECT_NE(decision.record.winner.config, to_text(wrong));
  const auto kept = file.read();
  ASSERT_EQ(kept->records.size(), 1);
  EXPECT_EQ(kept->records[0], decision.record);
  EXPECT_THAT(kept->records[0].toolchain.compiler, HasSubstr("nvrtc"));
  EXPECT_EQ(kept->records[0].baselines_us.front().first, "floor");
}

}  // namespace
}  // namespace octile::tuner
