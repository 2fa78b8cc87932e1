// The tuner on a real device: a small search ends in time, its winner is right, wrong candidates
// are caught, and searches repeat themselves.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/prove/fixed_kernel.h"
#include "runtime/prove/gemm/bench.h"
#include "runtime/prove/gemm/tolerance.h"
#include "runtime/prove/quantize/bench.h"
#include "runtime/prove/quantize/operands.h"
#include "runtime/tuner/gpu_decider.h"
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
    session = std::move(*octile::GpuSession::open(*library, "cuda:0"));
    context = std::make_unique<TunerContext>(*library, *session);
  }

  static TuningTask task(std::int64_t m, std::int64_t n, std::int64_t k) {
    GemmProblem problem;
    problem.n = n;
    problem.k = k;
    return {problem, m};
  }

  test::TempFolder cache;
  std::unique_ptr<Library> library;
  std::unique_ptr<octile::GpuSession> session;
  std::unique_ptr<TunerContext> context;
};

TEST_F(TunerTest, ASmallSearchEndsInTimeWithARightWinner) {
  constexpr double kBudgetSeconds = 20;
  GpuDecider decider(*context, {});
  cache::SharedTuning shared(cache.path(), {.rank = "test"});
  RunOptions options;
  options.shared = &shared;
  options.budget_seconds = kBudgetSeconds;
  const Clock clock = steady_clock();
  const double began = clock();
  const auto result =
      run_tasks({task(64, 2112, 7168), task(4096, 7168, 2048)}, session->spec(), decider, options);
  ASSERT_TRUE(result) << result.error().message;
  // A candidate may still be verified when time is up.
  EXPECT_LE(clock() - began, kBudgetSeconds + 2);
  EXPECT_EQ(result->undecided, 0);
  const auto kept = shared.folder().read();
  ASSERT_EQ(kept->records.size(), 2);
  for (const cache::TuningRecord& record : kept->records) {
    EXPECT_EQ(record.counts.failed_verify, 0);
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

// The record's kernel, built anew and run on operands of its own.
void expect_right(TunerContext& context, const cache::TuningRecord& record) {
  const QuantizeProblem problem = std::get<QuantizeProblem>(*parse_problem(record.problem));
  const auto config = parse_quantize_config(record.winner.config);
  ASSERT_TRUE(config) << record.winner.config;
  const octile::GpuSession& gpu = context.gpu;
  auto built = context.library.engine.build(Problem(problem), *config, gpu.spec());
  ASSERT_TRUE(built) << built.error().message;
  const auto kernel =
      FixedKernel<QuantizeProblem>::load(context.library, gpu.driver(), gpu.ordinal(), gpu.spec(),
                                         problem, *config, std::move(*built));
  ASSERT_TRUE(kernel) << kernel.error().message;
  const auto slots = make_slots(gpu, problem, record.tokens, 1, 77);
  ASSERT_TRUE(slots) << slots.error().message;
  const Status ran = kernel->run(args_of(slots->front()), gpu.stream());
  ASSERT_TRUE(ran) << ran.error().message;
  ASSERT_TRUE(gpu.synchronize());
  const auto equal = equals_reference(gpu, problem, slots->front());
  ASSERT_TRUE(equal) << equal.error().message;
  EXPECT_TRUE(*equal) << record.problem << " / " << record.winner.config;
}

TEST_F(TunerTest, AQuantiserSearchEndsInTimeWithARightWinner) {
  constexpr double kBudgetSeconds = 5;
  const std::vector<const char*> covering{
      "quantize rows=? cols=2048 x=bf16 q=e4m3:128x128 out=both",
      "quantize rows=? cols=2048 x=bf16 q=e4m3:1x128 out=row src=silu_mul",
      "quantize rows=? cols=2048 x=bf16 q=e4m3:1x128 out=both group=contiguous"};
  std::vector<const char*> all{
      "quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row",
      "quantize rows=? cols=5120 x=fp32 q=e5m2:row out=row",
      "quantize rows=? cols=3000 x=bf16 q=e4m3:tensor out=both policy=delayed",
      "dequantize rows=? cols=2048 x=e4m3:1x128 q=bf16 out=row"};
  all.insert(all.end(), covering.begin(), covering.end());
  for (const char* text : choose_cases(all, covering)) {
    SCOPED_TRACE(text);
    GpuDecider decider(*context, {});
    const test::TempFolder folder;
    cache::SharedTuning shared(folder.path(), {.rank = "test"});
    RunOptions options;
    options.shared = &shared;
    options.budget_seconds = kBudgetSeconds;
    const Clock clock = steady_clock();
    const double began = clock();
    const auto result = run_tasks({{*parse_problem(text), 512}}, session->spec(), decider, options);
    ASSERT_TRUE(result) << result.error().message;
    // A candidate's check may be under way when time is up.
    EXPECT_LE(clock() - began, kBudgetSeconds + 2);
    const Decision& decision = result->decisions.front();
    ASSERT_TRUE(decision.decided()) << name_of(decision.outcome);
    for (const WrongCandidate& wrong : decision.wrong) ADD_FAILURE() << to_text(wrong);
    const auto kept = shared.folder().read();
    ASSERT_EQ(kept->records.size(), 1);
    const cache::TuningRecord& record = kept->records.front();
    EXPECT_EQ(record.family, "quantize");
    EXPECT_GT(record.winner.median_us, 0);
    EXPECT_GT(record.counts.timed, 2);
    fmt::print("{}: {} of {} compiled, {} spilled, {:.2f} s: {:.2f} us by {}, gain {:.3f}\n", text,
               record.counts.compiled, record.counts.admitted, decision.spilled, decision.seconds,
               record.winner.median_us, record.winner.config, record.gain);
    expect_right(*context, record);
  }
}

// A bench whose candidate 1 is the fastest, and gets one element in the middle of the output wrong.
class SabotagedBench final : public Bench {
 public:
  SabotagedBench(TunerContext& context, GemmBench& bench, std::int64_t m, std::int64_t n,
                 GemmVerifier verifier)
      : shop_(context), bench_(bench), m_(m), n_(n), verifier_(std::move(verifier)) {}

  int candidates() const override { return bench_.candidates(); }
  std::optional<int> variant_of(int candidate) const override {
    return bench_.variant_of(candidate);
  }
  std::string name(int candidate) const override { return bench_.name(candidate); }
  bool take_device() override { return bench_.take_device(); }
  void give_device_back() override { bench_.give_device_back(); }
  void start_builds(std::span<const int> candidates) override { bench_.start_builds(candidates); }
  std::optional<Result<BuildReport>> build(int candidate, double seconds) override {
    return bench_.build(candidate, seconds);
  }
  Result<tuner::Verdict> spot_check(int candidate) override { return bench_.spot_check(candidate); }
  Result<tuner::Verdict> verify(int candidate) override {
    const auto honest = bench_.verify(candidate);
    if (candidate != 1 || !honest) return honest;
    return verifier_.check([&](const GemmArguments& args, CUstream stream) -> Status {
      if (Status ok = bench_.kernel(candidate).run(args, stream); !ok) return ok;
      const std::int64_t middle = m_ / 3 * args.ldd + n_ / 3;
      auto* element = static_cast<std::uint16_t*>(args.d) + middle;
      const Driver& driver = *shop_.gpu.driver();
      return driver.check(driver->cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(element), 0x47,
                                                  sizeof *element, stream),
                          "cuMemsetD8Async");
    });
  }
  Result<double> time(int candidate) override {
    const auto us = bench_.time(candidate);
    return candidate == 1 ? us.map([](double honest) { return honest / 2; }) : us;
  }
  DeviceTelemetry state() override { return bench_.state(); }

 private:
  TunerContext& shop_;
  GemmBench& bench_;
  const std::int64_t m_, n_;
  GemmVerifier verifier_;
};

TEST_F(TunerTest, AWrongCandidateIsCaughtAndNeverWins) {
  const TuningTask q = task(200, 2112, 1152);
  const auto& product = std::get<GemmProblem>(q.problem);
  const auto exploration = explore(q, session->spec(), {.liked = 4, .different = 2});
  auto bench = GemmBench::create(*context, product, q.tokens, exploration.shortlist, 7);
  ASSERT_TRUE(bench) << bench.error().message;
  const GemmSlot& slot = (*bench)->slots().front();
  auto verifier = GemmVerifier::create(*session, context->templates, product, slot, 7);
  ASSERT_TRUE(verifier) << verifier.error().message;
  // The kernel that every element is compared with has to be there first.
  const std::vector<int> first{0};
  (*bench)->start_builds(first);
  while (!(*bench)->build(0, 1)) {
  }
  ASSERT_TRUE((*bench)->verify(0)->right);
  const auto accepted = verifier->check([&](const GemmArguments& args, CUstream stream) {
    return (*bench)->kernel(0).run(args, stream);
  });
  ASSERT_TRUE(accepted && accepted->right);

  SabotagedBench sabotaged(*context, **bench, q.tokens, product.n, std::move(*verifier));
  const auto result = search(sabotaged, Budget(steady_clock(), 30));
  ASSERT_TRUE(result) << result.error().message;
  ASSERT_EQ(result->dropped.size(), 1);
  EXPECT_EQ(result->dropped[0].candidate, 1);
  EXPECT_EQ(result->dropped[0].stage, Stage::kVerify);
  EXPECT_NE(result->winner, 1);
}

TEST_F(TunerTest, TheDeviceSaysItsClocks) {
  if (!context->telemetry.missing().empty()) GTEST_SKIP() << context->telemetry.missing();
  const DeviceTelemetry state = context->telemetry.read();
  EXPECT_GT(state.sm_clock_mhz, 100);
  EXPECT_GT(state.memory_clock_mhz, 100);
  EXPECT_GT(state.power_watts, 10);
}

}  // namespace
}  // namespace octile::tests
