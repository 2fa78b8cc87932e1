// The tuner on a real device: a small search ends in time, its winner is right, wrong candidates
// are caught, and searches repeat themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/reference/metrics.h"
#include "runtime/tuner/gemm_decider.h"
#include "tests/gpu/gemm_case.h"
#include "tests/gpu/session.h"
#include "tests/support/api_handles.h"

namespace octile::tests {
namespace {

using ::testing::HasSubstr;
using namespace tuner;  // NOLINT(google-build-using-namespace): what this file is about

class TunerTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    LibraryOptions options;
    options.engine.writable_root = cache.path();
    library = std::make_unique<Library>(std::move(options));
    session = std::move(*octile::GpuSession::open("cuda:0"));
    shop = std::move(*GpuWorkshop::open(*library, *session));
  }

  static Question question(std::int64_t m, std::int64_t n, std::int64_t k) {
    Question q;
    q.problem.n = n;
    q.problem.k = k;
    q.tokens = m;
    return q;
  }

  test::TempFolder cache;
  std::unique_ptr<Library> library;
  std::unique_ptr<octile::GpuSession> session;
  std::unique_ptr<GpuWorkshop> shop;
};

TEST_F(TunerTest, ASmallSearchEndsInTimeWithARightWinner) {
  constexpr double kBudgetSeconds = 20;
  GemmDecider decider(*shop, {});
  const cache::TuningFile file(cache.path(), true);
  CampaignOptions options;
  options.budget_seconds = kBudgetSeconds;
  const Clock clock = steady_clock();
  const double began = clock();
  const auto result = run_campaign({question(64, 2112, 7168), question(4096, 7168, 2048)},
                                   session->spec(), decider, &file, options);
  ASSERT_TRUE(result) << result.error().message;
  // A product's check may be under way when time is up.
  EXPECT_LE(clock() - began, kBudgetSeconds + 2);
  EXPECT_EQ(result->undecided, 0);
  const auto kept = file.read();
  ASSERT_EQ(kept->records.size(), 2);
  for (const cache::TuningRecord& record : kept->records) {
    EXPECT_EQ(record.counts.failed_gate, 0);
    EXPECT_GE(record.gain, 1);
    EXPECT_GT(record.winner.median_us, 0);
    ASSERT_TRUE(record.default_config);
    EXPECT_LE(record.winner.median_us, record.default_config->median_us * (1 + record.noise));
    const auto config = parse_gemm_config(record.winner.config);
    ASSERT_TRUE(config) << record.winner.config;
    const auto problem = parse_problem(record.problem);
    ASSERT_TRUE(problem);
    const auto& gemm = std::get<GemmProblem>(*problem);
    GemmCase product(gpu(), gemm, {record.tokens, gemm.n, gemm.k}, 5);
    product.run_config(*config, gpu().stream());
    product.judge(reference::tolerance_c(gemm.promote));
  }
}

// A bench whose candidate 1 gets one element in the middle of the output wrong.
class SabotagedBench final : public Bench {
 public:
  SabotagedBench(GpuWorkshop& shop, GemmBench& bench, const Question& question, GemmGate gate)
      : shop_(shop), bench_(bench), question_(question), gate_(std::move(gate)) {}

  int candidates() const override { return bench_.candidates(); }
  std::string name(int candidate) const override { return bench_.name(candidate); }
  void start_builds(std::span<const int> candidates) override { bench_.start_builds(candidates); }
  std::optional<Result<BuildReport>> build(int candidate, double seconds) override {
    return bench_.build(candidate, seconds);
  }
  Result<tuner::Verdict> gate(int candidate) override {
    const auto honest = bench_.gate(candidate);
    if (candidate != 1 || !honest) return honest;
    return gate_.check([&](const octile_gemm_args& args, CUstream stream) -> Status {
      if (Status ok = bench_.kernel(candidate).run(args, stream); !ok) return ok;
      const std::int64_t middle = question_.tokens / 3 * args.ldd + question_.problem.n / 3;
      auto* element = static_cast<std::uint16_t*>(args.d) + middle;
      const Driver& driver = *shop_.gpu.driver();
      return driver.check(driver->cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(element), 0x47,
                                                  sizeof *element, stream),
                          "cuMemsetD8Async");
    });
  }
  Result<double> time(int candidate) override {
    timed.push_back(candidate);
    return bench_.time(candidate);
  }
  DeviceTelemetry state() override { return bench_.state(); }

  std::vector<int> timed;

 private:
  GpuWorkshop& shop_;
  GemmBench& bench_;
  const Question question_;
  GemmGate gate_;
};

TEST_F(TunerTest, AWrongCandidateIsCaughtAndNeverTimed) {
  const Question q = question(200, 2112, 1152);
  const auto exploration = explore(q, session->spec(), {.liked = 4, .different = 2});
  auto bench = GemmBench::create(*shop, q.problem, q.tokens, exploration.shortlist, 7);
  ASSERT_TRUE(bench) << bench.error().message;
  const GemmSlot& slot = (*bench)->slots().front();
  auto gate = GemmGate::create(*session, shop->inspect_bf16, q.problem, slot.a, slot.b, 7);
  ASSERT_TRUE(gate) << gate.error().message;
  // What every element is compared with has to be there first.
  const std::vector<int> first{0};
  (*bench)->start_builds(first);
  while (!(*bench)->build(0, 1)) {
  }
  ASSERT_TRUE((*bench)->gate(0)->right);
  const auto accepted = gate->check([&](const octile_gemm_args& args, CUstream stream) {
    return (*bench)->kernel(0).run(args, stream);
  });
  ASSERT_TRUE(accepted && accepted->right);

  SabotagedBench sabotaged(*shop, **bench, q, std::move(*gate));
  const auto result = search(sabotaged, Budget(steady_clock(), 30));
  ASSERT_TRUE(result) << result.error().message;
  ASSERT_EQ(result->dropped.size(), 1);
  EXPECT_EQ(result->dropped[0].candidate, 1);
  EXPECT_EQ(result->dropped[0].stage, Stage::kGate);
  EXPECT_NE(result->winner, 1);
  EXPECT_THAT(sabotaged.timed, ::testing::Not(::testing::Contains(1)));
}

TEST_F(TunerTest, TheDeviceSaysItsClocks) {
  if (!shop->telemetry.missing().empty()) GTEST_SKIP() << shop->telemetry.missing();
  const DeviceTelemetry state = shop->telemetry.read();
  EXPECT_GT(state.sm_clock_mhz, 100);
  EXPECT_GT(state.memory_clock_mhz, 100);
  EXPECT_GT(state.power_watts, 10);
}

}  // namespace
}  // namespace octile::tests
