// Effects of a call on the thread that makes it, and of that thread on the call: cancellation,
// rounding modes, and a small stack.
#include <gtest/gtest.h>
#include <pthread.h>

#include <cfenv>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tests/process/faults.h"
#include "tests/process/host_runs.h"
#include "tests/process/sanitized.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace octile::test {
namespace {

// AddressSanitizer does not see that a thread which is cancelled leaves its frames, in whose place
// others come.
struct LeavesFrames {
#if defined(__SANITIZE_ADDRESS__)
  ~LeavesFrames() {
    constexpr std::size_t kBytes = 1 << 16;
    char* const here = static_cast<char*>(__builtin_frame_address(0));
    ASAN_UNPOISON_MEMORY_REGION(here - kBytes, kBytes);
  }
#endif
};

// Returns a thread that runs `body`.
pthread_t start(std::function<void()>& body, const pthread_attr_t* attributes = nullptr) {
  pthread_t thread{};
  const auto run = [](void* object) -> void* {
    [[maybe_unused]] const LeavesFrames leaves;
    (*static_cast<std::function<void()>*>(object))();
    return nullptr;
  };
  EXPECT_EQ(pthread_create(&thread, attributes, run, &body), 0);
  return thread;
}

void* join(pthread_t thread) {
  void* result = nullptr;
  EXPECT_EQ(pthread_join(thread, &result), 0);
  return result;
}

// The log callback cancels its own thread and offers to end, as any wait of the library would.
TEST(Cancellation, TakesEffectAfterTheCall) {
  ::setenv("OCTILE_TUNING", "perhaps", 1);  // the library warns of it
  static octile_library* library = nullptr;
  static int warnings = 0;
  static bool behind = false;
  std::function<void()> body = [] {
    octile_library_options options = {};
    options.struct_size = sizeof(options);
    options.disable_cache = 1;
    options.log_level = OCTILE_LOG_WARNING;
    options.log = [](octile_log_level, const char*, void*) {
      ++warnings;
      pthread_cancel(pthread_self());
      pthread_testcancel();
    };
    octile_library_create(&options, &library);
    pthread_testcancel();
    behind = true;
  };
  EXPECT_EQ(join(start(body)), PTHREAD_CANCELED);
  ::unsetenv("OCTILE_TUNING");
  EXPECT_GT(warnings, 0);
  EXPECT_FALSE(behind);
  ASSERT_NE(library, nullptr) << "the call was cut off";
  EXPECT_EQ(octile_library_destroy(library), OCTILE_OK);
}

TEST(Cancellation, LeavesAPlanThatRuns) {
  const LibraryHandle library("");
  const PlanHandle plan = make_plan(library, "host", host_problems()[0]);
  HostRun host(host_problems()[0]);
  for (int attempt = 0; attempt < 20; ++attempt) {
    std::function<void()> body = [&] {
      for (;;) {
        host.run(plan.get());
        pthread_testcancel();
      }
    };
    const pthread_t thread = start(body);
    pthread_cancel(thread);
    EXPECT_EQ(join(thread), PTHREAD_CANCELED);
  }
  EXPECT_EQ(host.run(plan.get()), OCTILE_OK) << octile_last_error();
}

TEST(Cancellation, StaysAsTheCallerHasIt) {
  int state = 0;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  {
    const LibraryHandle library("");
  }
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
  EXPECT_EQ(state, PTHREAD_CANCEL_DISABLE);
}

// Rounds upwards and flushes subnormals for a scope.
class OddArithmetic {
 public:
  OddArithmetic() {
    std::fegetenv(&saved_);
    std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
    constexpr unsigned kFlushAndZero = 0x8040;
    _mm_setcsr(_mm_getcsr() | kFlushAndZero);
#endif
  }
  ~OddArithmetic() { std::fesetenv(&saved_); }
  OddArithmetic(const OddArithmetic&) = delete;
  OddArithmetic& operator=(const OddArithmetic&) = delete;

  static bool holds() {
#if defined(__x86_64__)
    if ((_mm_getcsr() & 0x8040) != 0x8040) return false;
#endif
    return std::fegetround() == FE_UPWARD;
  }

 private:
  std::fenv_t saved_{};
};

std::string text_of(const PlanHandle& plan) {
  char text[4096];
  std::size_t bytes = sizeof(text);
  EXPECT_EQ(octile_plan_problem(plan.get(), text, &bytes), OCTILE_OK);
  return text;
}

TEST(RoundingModes, OfTheCallerChangeNoProblem) {
  const LibraryHandle library("");
  const std::string source =
      "quantize rows=? cols=272 x=fp32 q=e4m3:1x128 out=row src=mul(x0,0.1) eps=1e-40";
  const std::string expected = text_of(make_plan(library, "host", source));
  octile_quantize_fused_desc fused = {};
  fused.struct_size = sizeof(fused);
  fused.source = "mul(x0,0.1)";
  octile_quantize_desc desc = {};
  desc.struct_size = sizeof(desc);
  desc.cols = 272;
  desc.x_dtype = OCTILE_FP32;
  desc.q_dtype = OCTILE_E4M3;
  desc.granularity = OCTILE_SCALE_1X128;
  desc.amax_epsilon = 1e-40F;
  desc.fused = &fused;
  const OddArithmetic odd;
  EXPECT_EQ(text_of(make_plan(library, "host", source)), expected);
  octile_plan* plan = nullptr;
  ASSERT_EQ(octile_quantize_plan_create(library.get(), "host", &desc, &plan), OCTILE_OK)
      << octile_last_error();
  EXPECT_EQ(text_of(PlanHandle(plan)), expected);
  EXPECT_TRUE(OddArithmetic::holds());
}

TEST(RoundingModes, OfTheCallerChangeNoBit) {
  const LibraryHandle library("");
  for (const std::string& problem : host_problems()) {
    const PlanHandle plan = make_plan(library, "host", problem);
    HostRun host(problem);
    ASSERT_EQ(host.run(plan.get()), OCTILE_OK) << problem << ": " << octile_last_error();
    const std::vector<unsigned char> expected = host.outputs();
    host.poison();
    const OddArithmetic odd;
    ASSERT_EQ(host.run(plan.get()), OCTILE_OK) << problem << ": " << octile_last_error();
    EXPECT_TRUE(OddArithmetic::holds());
    EXPECT_EQ(host.outputs(), expected) << problem;
  }
}

// Every call of the host device, and expressions as deep as they may be, on octile.h's stack.
TEST(SmallStack, IsEnough) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's frames are larger than the library's";
  std::string deep = "x0";
  for (int i = 0; i < 62; ++i) deep = "add(1," + deep + ")";
  std::vector<std::string> problems = host_problems();
  problems.push_back("quantize rows=? cols=272 x=bf16 q=e4m3:1x128 out=row src=" + deep);
  std::vector<HostRun> runs(problems.begin(), problems.end());
  std::function<void()> body = [&] {
    octile_library_options options = {};
    options.struct_size = sizeof(options);
    options.disable_cache = 1;
    octile_library* library = nullptr;
    ASSERT_EQ(octile_library_create(&options, &library), OCTILE_OK);
    for (std::size_t i = 0; i < problems.size(); ++i) {
      octile_plan* plan = nullptr;
      ASSERT_EQ(octile_plan_create(library, "host", problems[i].c_str(), &plan), OCTILE_OK);
      std::size_t bytes = 0;
      EXPECT_EQ(octile_plan_describe(plan, nullptr, &bytes), OCTILE_OK);
      EXPECT_EQ(runs[i].run(plan), OCTILE_OK) << problems[i] << ": " << octile_last_error();
      octile_plan_destroy(plan);
    }
    EXPECT_EQ(octile_library_destroy(library), OCTILE_OK);
  };
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, std::size_t{64} * 1024), 0);
  join(start(body, &attributes));
  pthread_attr_destroy(&attributes);
}

// A call that says OUT_OF_MEMORY has written nothing, whichever request was refused.
TEST(RefusedMemory, LeavesEveryOutputUntouched) {
  const LibraryHandle library("");
  int failures = 0;
  for (const std::string& problem : host_problems()) {
    const PlanHandle plan = make_plan(library, "host", problem);
    HostRun host(problem);
    for (const Extent extent : {Extent::kOnce, Extent::kOn}) {
      std::int64_t refused = 1;
      for (std::int64_t n = 1; refused != 0; ++n) {
        host.poison();
        Refusal refusal(Refuse::kMemory, n, extent);
        const octile_status status = host.run(plan.get());
        refusal.end();
        refused = refusal.refused();
        if (status == OCTILE_OK) continue;
        ++failures;
        ASSERT_EQ(status, OCTILE_OUT_OF_MEMORY) << problem << ", request " << n;
        ASSERT_TRUE(host.untouched()) << problem << ", request " << n;
      }
    }
  }
  EXPECT_GT(failures, 20);
}

}  // namespace
}  // namespace octile::test
