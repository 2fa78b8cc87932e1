// Shared by tests of the tuner's verifiers: a verifier on the fake device, and candidates that
// compute the right result and then spoil it. Also runs a search with one wrong candidate.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/tuner/gpu_decider.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"

namespace octile::test {

// `Args`: the public arguments of the calls that `Verifier` checks.
template <typename Verifier, typename Args>
class VerifierFixture : public ::testing::Test {
 protected:
  // Called after a kernel has computed the right result, to spoil it.
  using Sabotage = std::function<void(const Args&)>;

  // Computes the right result; the fake's memory is the host's.
  virtual Status compute(const Args& args) = 0;

  // A launch that computes the right result and then spoils it.
  auto spoilt(const Sabotage& sabotage) {
    return [this, sabotage](const Args& args, CUstream) -> Status {
      const Status ok = compute(args);
      if (sabotage) sabotage(args);
      return ok;
    };
  }
  tuner::Verdict check(const Sabotage& sabotage = nullptr) {
    const auto verdict = verifier->check(spoilt(sabotage));
    EXPECT_TRUE(verdict) << verdict.error().message;
    return *verdict;
  }
  tuner::Verdict spot_check(const Sabotage& sabotage = nullptr) {
    const auto verdict = verifier->spot_check(spoilt(sabotage));
    EXPECT_TRUE(verdict) << verdict.error().message;
    return *verdict;
  }
  // The whole check sees every error that a spot check sees.
  void expect_wrong_at_a_glance(const Sabotage& sabotage, const std::string& says) {
    const tuner::Verdict verdict = spot_check(sabotage);
    EXPECT_FALSE(verdict.right);
    EXPECT_THAT(verdict.why, ::testing::HasSubstr(says));
    expect_wrong(sabotage, says);
  }
  void expect_wrong(const Sabotage& sabotage, const std::string& says) {
    const tuner::Verdict verdict = check(sabotage);
    EXPECT_FALSE(verdict.right);
    EXPECT_THAT(verdict.why, ::testing::HasSubstr(says));
  }

  void expect_a_refused_launch_to_be_wrong() {
    const auto verdict = verifier->check([](const Args&, CUstream) -> Status {
      return fail(ErrorCode::kDeviceError, "cuLaunchKernelEx failed: too many resources");
    });
    ASSERT_TRUE(verdict);
    EXPECT_FALSE(verdict->right);
    EXPECT_THAT(verdict->why, ::testing::HasSubstr("too many resources"));
  }
  void expect_a_broken_device_to_be_an_error() {
    device.fake.fail("cuStreamSynchronize", CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    const auto verdict = verifier->check([](const Args&, CUstream) -> Status { return {}; });
    ASSERT_FALSE(verdict);
    EXPECT_THAT(verdict.error().message, ::testing::HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  }

  FakeDevice device;
  Library library{LibraryOptions{}};
  std::unique_ptr<GpuSession> gpu = std::move(*GpuSession::open(library, "cuda:0"));
  std::optional<Verifier> verifier;
};

inline void spin(std::chrono::nanoseconds duration) {
  const auto end = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < end) {
  }
}

// Runs a search that compiles, checks, races and records. The shortlist's second candidate is
// wrong: `spoil` receives it before any launch. `says`: the verifier's objection to it.
inline void expect_search_to_leave_out_the_wrong(
    const GpuSession& gpu, const tuner::TuningTask& task,
    const std::function<void(const KernelConfig&)>& spoil, const std::string& says) {
  const TempFolder cache;
  LibraryOptions options;
  options.engine.writable_root = cache.path();
  Library library(std::move(options));
  tuner::TunerContext context(library, gpu);
  tuner::GpuDeciderOptions how;
  how.shortlist = {.liked = 3, .different = 1};
  const auto shortlist = tuner::explore(task, gpu.spec(), how.shortlist).shortlist;
  ASSERT_EQ(shortlist.size(), 4);
  const KernelConfig& wrong = shortlist[1].config;
  spoil(wrong);
  how.times_operands = true;
  tuner::GpuDecider decider(context, how);
  octile::cache::SharedTuning shared(cache.path(), {.rank = "test"});
  tuner::RunOptions run_options;
  run_options.shared = &shared;
  run_options.budget_seconds = 120;  // for a busy machine; a few seconds suffice
  const auto result = tuner::run_tasks({task}, gpu.spec(), decider, run_options);
  ASSERT_TRUE(result) << result.error().message;
  const tuner::Decision& decision = result->decisions.front();
  ASSERT_TRUE(decision.decided()) << tuner::name_of(decision.outcome);
  ASSERT_EQ(decision.wrong.size(), 1);
  EXPECT_EQ(decision.wrong[0].config, to_text(wrong));
  EXPECT_THAT(decision.wrong[0].why, ::testing::HasSubstr(says));
  const auto kept = shared.folder().read();
  ASSERT_EQ(kept->records.size(), 1);
  const octile::cache::TuningRecord& record = kept->records[0];
  EXPECT_EQ(record, decision.record);
  EXPECT_THAT(record.problem, ::testing::StartsWith(record.family + " "));
  EXPECT_NE(record.winner.config, to_text(wrong));
  EXPECT_THAT(record.toolchain.compiler, ::testing::HasSubstr("nvrtc"));
  EXPECT_EQ(record.baselines_us.front().first, "floor");
  const std::size_t operands = tuner::operand_quantizers(task).size();
  ASSERT_EQ(record.quantize_us.size(), operands);
  for (const auto& [operand, us] : record.quantize_us) EXPECT_GT(us, 0) << operand;
}

}  // namespace octile::test
