// Handles across fork, exit, a second destroy and dlclose: what octile.h promises of each.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "generator/quantize/lookup.h"
#include "tests/process/sanitized.h"
#include "tests/support/api_handles.h"

namespace octile::test {
namespace {

constexpr int kPassed = 42;

// Runs `work` in a child of fork. Returns "" if it returns true, else what it came to. A child that
// hangs is ended after a minute.
std::string in_child(const std::function<bool()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(work() ? kPassed : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return WEXITSTATUS(status) == kPassed ? "" : "exit " + std::to_string(WEXITSTATUS(status));
}

bool refused(octile_status status) {
  return status == OCTILE_INVALID_ARGUMENT &&
         std::string(octile_last_error()).find("was made before fork()") != std::string::npos;
}

bool quantises_on_the_host() {
  octile_library_options options = {};
  options.struct_size = sizeof(options);
  options.disable_cache = 1;
  octile_library* library = nullptr;
  octile_plan* plan = nullptr;
  QuantizeOperands q;
  const QuantizeArguments arguments = q.args(8);
  const octile_quantize_args args = arguments.call();
  return octile_library_create(&options, &library) == OCTILE_OK &&
         octile_plan_create(library, "host", kQuantizeText.c_str(), &plan) == OCTILE_OK &&
         octile_quantize_run(plan, &args, nullptr) == OCTILE_OK &&
         octile_plan_destroy(plan) == OCTILE_OK && octile_library_destroy(library) == OCTILE_OK;
}

// A child whose parent's threads it lacks would wait for them forever.
TEST(Fork, ACallOnTheParentsHandlesIsRefused) {
  const LibraryHandle library("", true);
  const PlanHandle plan = make_plan(library, "h200", kGemmText);
  EXPECT_EQ(octile_plan_prepare(plan.get(), 1, 64, OCTILE_PREPARE_DEFAULT), OCTILE_OFFLINE);
  octile_library* const parents = library.get();
  octile_plan* const parents_plan = plan.get();
  EXPECT_EQ(in_child([&] {
              octile_plan* fresh = nullptr;
              std::size_t size = 0;
              return refused(octile_plan_prepare(parents_plan, 1, 64, OCTILE_PREPARE_DEFAULT)) &&
                     refused(octile_plan_wait(parents_plan)) &&
                     refused(octile_plan_describe(parents_plan, nullptr, &size)) &&
                     refused(octile_plan_workspace_size(parents_plan, 1, &size)) &&
                     refused(octile_plan_create(parents, "host", kQuantizeText.c_str(), &fresh)) &&
                     refused(octile_plan_destroy(parents_plan)) &&
                     refused(octile_library_destroy(parents));
            }),
            "");
  EXPECT_EQ(octile_plan_prepare(plan.get(), 1, 64, OCTILE_PREPARE_DEFAULT), OCTILE_OFFLINE)
      << "the parent's are as before";
}

TEST(Fork, AChildMakesHandlesOfItsOwn) {
  OCTILE_SKIP_THREADS_IN_A_FORKED_CHILD();
  const LibraryHandle library("", true);
  const PlanHandle plan = make_plan(library, "h200", kGemmText);
  EXPECT_EQ(octile_plan_prepare(plan.get(), 1, 64, OCTILE_PREPARE_DEFAULT), OCTILE_OFFLINE);
  EXPECT_EQ(in_child([] {
              return quantises_on_the_host() &&
                     in_child([] { return quantises_on_the_host(); }).empty();
            }),
            "");
}

// Other threads hold the library's mutexes at many of these forks.
TEST(Fork, AnyMomentWillDo) {
  OCTILE_SKIP_THREADS_IN_A_FORKED_CHILD();
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer of GCC 12 does not hold its allocator's mutexes across a fork";
#endif
  std::atomic<bool> done = false;
  std::vector<std::thread> busy;
  for (int i = 0; i < 2; ++i)
    busy.emplace_back([&] {
      while (!done) quantises_on_the_host();
    });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(in_child(quantises_on_the_host), "") << i;
  done = true;
  for (std::thread& thread : busy) thread.join();
}

// The generator remembers what it found of each fused source. It is searching at all of these
// forks.
TEST(Fork, FindsWhatTheGeneratorRemembers) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer of GCC 12 does not hold its allocator's mutexes across a fork";
#endif
  std::atomic<bool> done = false;
  std::thread busy([&] {
    for (int i = 1; !done; ++i) lookup_of("mul(x0,exp(neg(mul(x0," + std::to_string(i) + "))))");
  });
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(in_child([] { return lookup_of("silu") != nullptr; }), "") << i;
  done = true;
  busy.join();
}

TEST(Destroy, ASecondOneIsRefused) {
  octile_library_options options = {};
  options.struct_size = sizeof(options);
  options.disable_cache = 1;
  octile_library* library = nullptr;
  octile_plan* plan = nullptr;
  ASSERT_EQ(octile_library_create(&options, &library), OCTILE_OK);
  ASSERT_EQ(octile_plan_create(library, "host", kQuantizeText.c_str(), &plan), OCTILE_OK);
  EXPECT_EQ(octile_plan_destroy(plan), OCTILE_OK);
  expect_refused(octile_plan_destroy(plan), OCTILE_INVALID_ARGUMENT, {"plan is 0x", "destroyed"});
  EXPECT_EQ(octile_library_destroy(library), OCTILE_OK);
  expect_refused(octile_library_destroy(library), OCTILE_INVALID_ARGUMENT,
                 {"library is 0x", "destroyed"});
  int no_handle = 0;
  expect_refused(octile_library_destroy(reinterpret_cast<octile_library*>(&no_handle)),
                 OCTILE_INVALID_ARGUMENT, {"not a handle"});
}

TEST(Destroy, OfTwoThreadsOneSucceeds) {
  for (int round = 0; round < 50; ++round) {
    octile_library* library = nullptr;
    ASSERT_EQ(octile_library_create(nullptr, &library), OCTILE_OK);
    std::atomic<int> destroyed = 0;
    std::thread other([&] { destroyed += octile_library_destroy(library) == OCTILE_OK ? 1 : 0; });
    destroyed += octile_library_destroy(library) == OCTILE_OK ? 1 : 0;
    other.join();
    EXPECT_EQ(destroyed, 1);
  }
}

// Background work runs while the process exits, and everything it uses is still there.
TEST(Exit, WithLiveHandlesAndWorkInTheBackground) {
  for (int delay_ms = 0; delay_ms < 40; delay_ms += 4) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      octile_library* library = nullptr;
      octile_library_options options = {};
      options.struct_size = sizeof(options);
      options.disable_cache = 1;
      octile_plan* plan = nullptr;
      if (octile_library_create(&options, &library) != OCTILE_OK ||
          octile_plan_create(library, "h200", kGemmText.c_str(), &plan) != OCTILE_OK)
        ::_exit(1);
      std::thread([plan] { octile_plan_prepare(plan, 1, 8192, OCTILE_PREPARE_ASYNC); }).detach();
      std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
      std::exit(kPassed);  // NOLINT(concurrency-mt-unsafe): the case under test
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kPassed)
        << "after " << delay_ms << " ms: " << status;
  }
}

// dlclose leaves the library mapped: its threads run, and its handles serve.
TEST(Dlclose, LeavesHandlesUsable) {
  void* const opened = dlopen(OCTILE_LIBRARY_PATH, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(opened, nullptr) << dlerror();
#define OCTILE_FIND(name) \
  const auto name = reinterpret_cast<decltype(&::octile_##name)>(dlsym(opened, "octile_" #name))
  OCTILE_FIND(library_create);
  OCTILE_FIND(library_destroy);
  OCTILE_FIND(plan_create);
  OCTILE_FIND(plan_prepare);
  OCTILE_FIND(plan_wait);
  OCTILE_FIND(plan_destroy);
#undef OCTILE_FIND
  octile_library_options options = {};
  options.struct_size = sizeof(options);
  options.disable_cache = 1;
  options.offline = 1;
  octile_library* library = nullptr;
  octile_plan* plan = nullptr;
  ASSERT_EQ(library_create(&options, &library), OCTILE_OK);
  ASSERT_EQ(plan_create(library, "h200", kGemmText.c_str(), &plan), OCTILE_OK);
  EXPECT_EQ(plan_prepare(plan, 1, 8192, OCTILE_PREPARE_DEFAULT), OCTILE_OFFLINE);
  EXPECT_EQ(dlclose(opened), 0);
  EXPECT_EQ(plan_prepare(plan, 1, 8192, OCTILE_PREPARE_DEFAULT), OCTILE_OFFLINE);
  EXPECT_EQ(plan_wait(plan), OCTILE_OK);
  EXPECT_EQ(plan_destroy(plan), OCTILE_OK);
  EXPECT_EQ(library_destroy(library), OCTILE_OK);
  EXPECT_EQ(in_child([] { return true; }), "") << "fork handlers are still mapped";
}

}  // namespace
}  // namespace octile::test
