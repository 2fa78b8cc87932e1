// Errors of callers that a row of tests/cells/refusals.txt cannot state: structs of other sizes,
// texts beyond a limit, what is alive or missing, and the environment.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/api_handles.h"
#include "tests/support/fake_driver_control.h"
#include "tests/support/gemm_plan_test.h"
#include "tests/support/layer_case.h"

namespace octile::test {
namespace {

class BadInput : public ::testing::Test {
 protected:
  LibraryHandle library{""};
  PlanHandle gemm = make_plan(library, "host", kGemmText);
  PlanHandle quantize = make_plan(library, "host", kQuantizeText);
  GemmOperands g;
  QuantizeOperands q;

  void refuses_run(const octile_quantize_args& args, const std::vector<std::string>& parts) {
    std::memset(q.q.at(), 0x5a, 128 * 384);
    expect_refused(octile_quantize_run(quantize.get(), &args, nullptr), OCTILE_INVALID_ARGUMENT,
                   parts);
    for (int i = 0; i < 128 * 384; ++i)
      ASSERT_EQ(q.q.at<unsigned char>()[i], 0x5a) << "q was touched";
  }
};

// ---- structs and handles

// No struct ends inside a field, so that no part of a pointer is read that the caller did not
// write.
TEST_F(BadInput, StructThatEndsInsideAPointer) {
  octile_quantize_args args = q.args(64).call();
  for (std::size_t bytes = sizeof args + 1; bytes < sizeof args + sizeof(void*); ++bytes) {
    args.struct_size = bytes;
    refuses_run(args, {"args->struct_size is " + std::to_string(bytes), "a multiple of 8 from"});
  }
}

TEST_F(BadInput, StructShorterThanItsFirstVersion) {
  octile_quantize_args args = q.args(64).call();
  args.struct_size = sizeof args - sizeof(void*);
  refuses_run(args, {"args->struct_size is " + std::to_string(args.struct_size),
                     "a multiple of 8 from " + std::to_string(sizeof args)});
}

// The sentence would quote it, in full.
TEST_F(BadInput, TextsBeyondReason) {
  const std::string text(std::size_t{200} << 20, 'x');
  octile_plan* plan = nullptr;
  expect_refused(octile_plan_create(library.get(), "host", text.c_str(), &plan),
                 OCTILE_INVALID_ARGUMENT, {"problem has more than 65536 bytes"});
  expect_refused(octile_plan_create(library.get(), text.c_str(), kGemmText.c_str(), &plan),
                 OCTILE_INVALID_ARGUMENT, {"device has more than 65536 bytes"});
  const std::string longest(65536, 'x');
  expect_refused(octile_plan_create(library.get(), longest.c_str(), kGemmText.c_str(), &plan),
                 OCTILE_INVALID_ARGUMENT, {"device is \"xxx"});
  EXPECT_EQ(std::strlen(octile_last_error()), 8191U);
  EXPECT_EQ(plan, nullptr);
  LayerCase named;
  named.recipe = longest + "x";
  const octile_layer_desc desc = desc_of(named);
  octile_layer* layer = nullptr;
  expect_refused(octile_layer_create(library.get(), "host", &desc, &layer), OCTILE_INVALID_ARGUMENT,
                 {"desc->recipe has more than"});
  EXPECT_EQ(layer, nullptr);
}

TEST_F(BadInput, StructTailNotZero) {
  struct {
    octile_gemm_desc desc;
    unsigned char tail[16];
  } longer = {e4m3_desc(256, 384, OCTILE_SCALE_1X128, OCTILE_SCALE_128X128), {}};
  longer.desc.struct_size = sizeof(longer);
  octile_plan* plan = nullptr;
  EXPECT_EQ(octile_gemm_plan_create(library.get(), "host", &longer.desc, &plan), OCTILE_OK)
      << "a zero tail is another version's default";
  PlanHandle accepted(plan);
  longer.tail[3] = 7;
  plan = nullptr;
  expect_refused(octile_gemm_plan_create(library.get(), "host", &longer.desc, &plan),
                 OCTILE_INVALID_ARGUMENT,
                 {"byte " + std::to_string(sizeof(longer.desc) + 3), "0x07"});
  EXPECT_EQ(plan, nullptr);
}

TEST_F(BadInput, LibraryWithPlans) {
  expect_refused(octile_library_destroy(library.get()), OCTILE_INVALID_ARGUMENT,
                 {"library has 2 plans", "destroy them first"});
  const octile_gemm_args args = g.args(1);
  EXPECT_EQ(octile_gemm_run(gemm.get(), &args, nullptr), OCTILE_OK) << "nothing was destroyed";
}

TEST_F(BadInput, NullIsDestroyed) {
  EXPECT_EQ(octile_plan_destroy(nullptr), OCTILE_OK);
  EXPECT_EQ(octile_library_destroy(nullptr), OCTILE_OK);
}

TEST(Recipes, AreWrittenByIndexUpToTheFirstThatIsRefused) {
  octile_recipe recipe = {};
  recipe.struct_size = sizeof(recipe);
  std::vector<std::string> names;
  while (octile_recipe_at(static_cast<std::int32_t>(names.size()), &recipe) == OCTILE_OK) {
    names.emplace_back(recipe.name);
    EXPECT_NE(recipe.gradient.granularity, OCTILE_SCALE_NONE) << recipe.name;
  }
  ASSERT_EQ(names.size(), 11);
  EXPECT_EQ(names.front(), "blockwise");
  EXPECT_EQ(names.back(), "rowwise:f32");
  EXPECT_EQ(recipe.promote_forward,
            OCTILE_PROMOTE_NONE);  // the last one, which the refused call leaves
  EXPECT_EQ(recipe.weight.scale_format, OCTILE_SCALE_F32);
}

// A feature's struct is read as any other, and only if the caller gave it.
TEST_F(BadInput, StructsOfFeatures) {
  const QuantizeArguments kept = q.args(64);  // the call's structs of features are its members
  octile_quantize_args args = kept.call();
  struct {
    octile_quantize_groups groups;
    unsigned char tail[8];
  } longer = {{}, {}};
  longer.groups.struct_size = sizeof(longer);
  args.groups = &longer.groups;
  EXPECT_EQ(octile_quantize_run(quantize.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
  longer.tail[0] = 1;
  refuses_run(args, {"args->groups->struct_size is", "is 0x01"});

  octile_quantize_args plain = kept.call();
  plain.groups = nullptr;
  const auto expect_missing = [&](const std::string& problem, const std::string& says) {
    const PlanHandle plan = make_plan(library, "host", kQuantizeText + problem);
    expect_refused(octile_quantize_run(plan.get(), &plain, nullptr), OCTILE_INVALID_ARGUMENT,
                   {says, "allowed: a pointer"});
  };
  expect_missing(" group=masked", "groups is null");
}

// ---- missing libraries

TEST(MissingParts, NoDriver) {
  setenv("OCTILE_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
  const LibraryHandle library("");
  octile_plan* plan = nullptr;
  expect_refused(octile_plan_create(library.get(), nullptr, kGemmText.c_str(), &plan),
                 OCTILE_NO_DRIVER, {"/nonexistent/libcuda.so.1"});
  EXPECT_EQ(plan, nullptr);
}

TEST(MissingParts, DeviceWithoutFp8) {
  const FakeDriver fake("a100");
  setenv("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH, 1);
  const LibraryHandle library("");
  octile_plan* plan = nullptr;
  expect_refused(octile_plan_create(library.get(), "cuda:0", kGemmText.c_str(), &plan),
                 OCTILE_UNSUPPORTED,
                 {"device cuda:0: ", "A100-SXM4-80GB (compute capability 8.0): the GPU has no FP8",
                  "supported on: h200, h100, h20"});
  EXPECT_EQ(plan, nullptr);
}

// Cards that lack a kernel which others have, live and by name: the support matrix's sentence.
TEST(MissingParts, DeviceWithoutKernels) {
  const std::string fp8_d =
      "gemm m=? n=512 k=512 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128";
  const FakeDriver fake("l40s");
  setenv("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH, 1);
  const LibraryHandle library("");
  octile_plan* plan = nullptr;
  for (const char* device : {"cuda:0", "l40s", "L40S"}) {
    expect_refused(octile_plan_create(library.get(), device, fp8_d.c_str(), &plan),
                   OCTILE_UNSUPPORTED,
                   {"NVIDIA L40S (compute capability 8.9): not built yet: FP8 D without TMA",
                    "supported on: h200, h100, h20"});
    EXPECT_EQ(plan, nullptr);
  }
}

TEST(MissingParts, NoSuchDevice) {
  const FakeDriver fake("h200");
  setenv("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH, 1);
  const LibraryHandle library("");
  octile_plan* plan = nullptr;
  expect_refused(octile_plan_create(library.get(), "cuda:7", kGemmText.c_str(), &plan),
                 OCTILE_INVALID_ARGUMENT, {"7"});
  EXPECT_EQ(plan, nullptr);
}

TEST(MissingParts, NoCompiler) {
  setenv("OCTILE_LIBNVRTC", "/nonexistent/libnvrtc.so", 1);
  const LibraryHandle library("");
  const PlanHandle plan = make_plan(library, "h200", kQuantizeText);
  expect_refused(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_NO_COMPILER,
                 {"octile_quantize", "sm_90a", "not in the cache", "/nonexistent/libnvrtc.so"});
  unsetenv("OCTILE_LIBNVRTC");
}

TEST(MissingParts, Offline) {
  const TempFolder cache;
  const LibraryHandle library(cache.path(), true);
  const PlanHandle plan = make_plan(library, "h200", kQuantizeText);
  expect_refused(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_OFFLINE,
                 {"octile_quantize", "sm_90a", cache.path(), "offline", kQuantizeText});
}

TEST(LastError, IsOfTheThreadsLastFailure) {
  const LibraryHandle library("");
  octile_plan* plan = nullptr;
  ASSERT_EQ(octile_plan_create(library.get(), "host", "nonsense", &plan), OCTILE_INVALID_ARGUMENT);
  const std::string sentence = octile_last_error();
  EXPECT_NE(sentence, "");
  std::string other = "unset";
  std::thread([&] { other = octile_last_error(); }).join();
  EXPECT_EQ(other, "") << "another thread has failed at nothing";
  PlanHandle made = make_plan(library, "host", kGemmText);
  EXPECT_EQ(octile_last_error(), sentence) << "success does not change it";
}

TEST(StatusName, KnowsEveryValueAndNoOther) {
  EXPECT_STREQ(octile_status_name(OCTILE_OK), "OCTILE_OK");
  EXPECT_STREQ(octile_status_name(OCTILE_INTERNAL), "OCTILE_INTERNAL");
  EXPECT_STREQ(octile_status_name(OCTILE_FILE_ERROR), "OCTILE_FILE_ERROR");
  octile_status unknown = OCTILE_OK;
  const int value = -4;
  std::memcpy(&unknown, &value, sizeof(value));
  EXPECT_STREQ(octile_status_name(unknown), "unknown octile_status");
}

// A library that is created with a value of the environment that is not allowed, and its warnings.
std::vector<std::string> warnings_with(const char* variable, const char* value) {
  setenv(variable, value, 1);  // NOLINT(concurrency-mt-unsafe)
  std::vector<std::string> warnings;
  octile_library_options options{};
  options.struct_size = sizeof options;
  options.log_level = OCTILE_LOG_WARNING;
  options.log_user = &warnings;
  options.log = [](octile_log_level, const char* message, void* user) {
    static_cast<std::vector<std::string>*>(user)->emplace_back(message);
  };
  octile_library* made = nullptr;
  EXPECT_EQ(octile_library_create(&options, &made), OCTILE_OK);
  EXPECT_EQ(octile_library_destroy(made), OCTILE_OK);
  unsetenv(variable);  // NOLINT(concurrency-mt-unsafe)
  return warnings;
}

TEST(BadEnvironment, IsAWarningThatNamesIt) {
  for (const char* text : {"5Q", "-1", "1e9", " 1", "99999999999999999999"}) {
    const auto warnings = warnings_with("OCTILE_CACHE_MAX_BYTES", text);
    ASSERT_EQ(warnings.size(), 1);
    EXPECT_EQ(warnings[0].rfind("OCTILE_CACHE_MAX_BYTES is '" + std::string(text) + "'", 0), 0U);
  }
  const std::string words =
      " is 'maybe', which is taken as unset; allowed: 1, true, yes or on; 0, false, no or off";
  for (const auto& [variable, rule] :
       {std::pair("OCTILE_OFFLINE", words),
        std::pair("OCTILE_TUNING", words + "; prepare, or prepare:SECONDS, more than 0")}) {
    const auto warnings = warnings_with(variable, "maybe");
    ASSERT_EQ(warnings.size(), 1);
    EXPECT_EQ(warnings[0], variable + rule);
    EXPECT_TRUE(warnings_with(variable, "On").empty());
    EXPECT_TRUE(warnings_with(variable, "no").empty());
  }
  const auto unknown = warnings_with("OCTILE_CACHEDIR", "/tmp");
  ASSERT_EQ(unknown.size(), 1);
  EXPECT_EQ(unknown[0],
            "OCTILE_CACHEDIR is set, and there is no such variable; did you mean "
            "OCTILE_CACHE_DIR?");
}

}  // namespace
}  // namespace octile::test
