// A container that serves a model: the kernels of a vLLM plug-in are compiled into a folder that is
// shipped, and a cold process finds all of them there. Device and NVRTC are fakes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"
#include "tools/command.h"

namespace octile::test {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Serving : public ::testing::Test {
 protected:
  Serving() {
    ::setenv("OCTILE_LIBNVRTC", OCTILE_FAKE_NVRTC_PATH, 1);
    ::setenv("OCTILE_CACHE_DIR", shipped_.path().c_str(), 1);
  }
  ~Serving() override {
    ::unsetenv("OCTILE_LIBNVRTC");
    ::unsetenv("OCTILE_CACHE_DIR");
  }

  // Runs `octile compile --model <model> --serving vllm` with more words, and returns what it
  // prints.
  static nlohmann::json compile(std::vector<const char*> words) {
    const auto command_line = tools::new_command_line("", "");
    const tools::Command command = tools::add_compile(*command_line);
    words.insert(words.begin(), {"octile", "compile", "--serving", "vllm", "--json"});
    EXPECT_TRUE(tools::parse(*command_line, static_cast<int>(words.size()), words.data()));
    ::testing::internal::CaptureStdout();
    const Result<int> status = command.run();
    const std::string text = ::testing::internal::GetCapturedStdout();
    EXPECT_TRUE(status && *status == 0);
    return nlohmann::json::parse(text);
  }

  FakeDevice device_{"h200"};
  TempFolder shipped_, own_;
};

// The plug-in prepares each problem for 1 to max_num_batched_tokens tokens. A count that the
// command leaves out, or a problem of another text, would be a kernel that is not there.
TEST_F(Serving, AColdProcessWithTheShippedFolderCompilesNothing) {
  const std::vector<const char*> model{"--model", "deepseek-v3", "--tp", "8", "--device", "h200"};
  const nlohmann::json made = compile(model);
  EXPECT_GT(made.at("compiled"), 8);
  EXPECT_EQ(made.at("kept"), made.at("all"));
  std::vector<const char*> dry = model;
  dry.push_back("--dry-run");
  const nlohmann::json problems = compile(dry).at("problems");
  EXPECT_THAT(problems, SizeIs(8));

  const LibraryHandle cold(own_.path(), true, 2, shipped_.path());
  std::vector<std::string> origins;
  std::vector<PlanHandle> plans;
  for (const nlohmann::json& problem : problems) {
    plans.push_back(make_plan(cold, "cuda:0", problem.at("problem")));
    for (const std::int64_t most : {2048, 8192, 16384}) {
      ASSERT_EQ(octile_plan_prepare(plans.back().get(), 1, most, OCTILE_PREPARE_DEFAULT), OCTILE_OK)
          << octile_last_error();
    }
    const nlohmann::json told = describe(plans.back().get());
    for (const nlohmann::json& kernel : told.at("kernels")) origins.push_back(kernel.at("cache"));
  }
  EXPECT_THAT(origins, Each("hit"));
  EXPECT_GE(origins.size(), made.at("all"));
  EXPECT_THAT(cold.log.of(OCTILE_LOG_WARNING), IsEmpty());
}

}  // namespace
}  // namespace octile::test
