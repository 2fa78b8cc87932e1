// octile/tuning.h and OCTILE_PREPARE_TUNE: captures, cancellation, and records that are found,
// loaded and merged. Searches that decide are tested in unit/tuner/here_test.cc.
#include "octile/tuning.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "generator/families.h"
#include "octile/layers.h"
#include "runtime/compiler/nvrtc.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"
#include "tests/support/tuning_testing.h"

namespace octile::test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// No record has this shape.
const std::string kUnknown =
    "gemm m=? n=136 k=2944 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";

octile_prepare_options tune_options(double seconds = 0, void* stream = nullptr) {
  octile_prepare_options options{};
  options.struct_size = sizeof options;
  options.flags = OCTILE_PREPARE_TUNE;
  options.tune_seconds = seconds;
  options.stream = stream;
  return options;
}

class TuningApi : public ::testing::Test {
 protected:
  octile_tune_options questions() {
    octile_tune_options options{};
    options.struct_size = sizeof options;
    options.problems = &problem;
    options.problem_count = 1;
    return options;
  }
  nlohmann::json find(const char* text, std::int64_t tokens) {
    std::size_t size = 0;
    EXPECT_EQ(octile_records_find(library.get(), "h200", text, tokens, nullptr, &size), OCTILE_OK)
        << octile_last_error();
    std::string found(size, '\0');
    EXPECT_EQ(octile_records_find(library.get(), "h200", text, tokens, found.data(), &size),
              OCTILE_OK);
    return nlohmann::json::parse(found.c_str());
  }
  // The text of a record that a configuration of the shape takes.
  static std::string line(std::int64_t bucket, int raster = 1) {
    const Problem unknown = *parse_problem(kUnknown);
    KernelConfig config = default_config(unknown, bucket, *find_device("h200"));
    std::string text = to_text(config);
    const std::size_t at = text.find("raster=");
    text.replace(at, text.find(' ', at) - at, "raster=" + std::to_string(raster));
    return to_json_line(cache::testing::make_decision(kUnknown, bucket, text)) + "\n";
  }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = cache.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  FakeDevice device;
  TempFolder cache;
  const LibraryHandle library{cache.path() + "/root"};
  const char* problem = kUnknown.c_str();
};

// ---- captures

TEST_F(TuningApi, ACaptureRefusesSearchesAndGoesOn) {
  auto [context, current] = device.enter();
  auto stream = Stream::create(device.driver);
  const auto graph = Graph::capture(device.driver, stream->get(), [&]() -> Status {
    octile_tune_options options = questions();
    options.stream = stream->get();
    expect_refused(octile_tune(library.get(), "cuda:0", &options, nullptr), OCTILE_CAPTURING,
                   {"stream is capturing, and nothing is searched in a capture; allowed: before"});
    const PlanHandle plan = make_plan(library, "cuda:0", kUnknown);
    const octile_prepare_options tunes = tune_options(1, stream->get());
    expect_refused(octile_plan_prepare_with(plan.get(), 1, 1, &tunes), OCTILE_CAPTURING,
                   {"stream is capturing"});
    EXPECT_TRUE(describe(plan.get())["kernels"].empty());
    return {};
  });
  EXPECT_TRUE(graph) << graph.error().message;
}

TEST_F(TuningApi, APrepareBehindARunThatSaidCapturingSearchesNothing) {
  if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
  auto [context, current] = device.enter();
  auto stream = Stream::create(device.driver);
  ASSERT_EQ(::setenv("OCTILE_TUNING", "prepare:5", 1), 0);  // NOLINT(concurrency-mt-unsafe)
  const LibraryHandle by_environment(cache.path() + "/other");
  ::unsetenv("OCTILE_TUNING");  // NOLINT(concurrency-mt-unsafe)
  const PlanHandle asked = make_plan(library, "cuda:0", kQuantizeText);
  const PlanHandle plan = make_plan(by_environment, "cuda:0", kQuantizeText);
  QuantizeOperands q;
  const auto graph = Graph::capture(device.driver, stream->get(), [&]() -> Status {
    const QuantizeArguments args = q.args(4);
    EXPECT_EQ(run_quantize(asked.get(), args, stream->get()), OCTILE_CAPTURING);
    expect_refused(octile_plan_prepare(asked.get(), 4, 4, OCTILE_PREPARE_TUNE), OCTILE_CAPTURING,
                   {"the last run said OCTILE_CAPTURING"});
    EXPECT_EQ(run_quantize(plan.get(), args, stream->get()), OCTILE_CAPTURING);
    EXPECT_EQ(octile_plan_prepare(plan.get(), 4, 4, OCTILE_PREPARE_DEFAULT), OCTILE_OK)
        << octile_last_error();
    EXPECT_EQ(run_quantize(plan.get(), args, stream->get()), OCTILE_OK) << octile_last_error();
    return {};
  });
  EXPECT_TRUE(graph) << graph.error().message;
  EXPECT_THAT(by_environment.log.of(OCTILE_LOG_INFO),
              Contains(HasSubstr("OCTILE_TUNING=prepare searches nothing: the last run said")));
}

TEST_F(TuningApi, TheEnvironmentSearchesNothingForADeviceThatIsAName) {
  if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
  ASSERT_EQ(::setenv("OCTILE_TUNING", "prepare", 1), 0);  // NOLINT(concurrency-mt-unsafe)
  const LibraryHandle by_environment(cache.path() + "/other");
  ::unsetenv("OCTILE_TUNING");  // NOLINT(concurrency-mt-unsafe)
  const PlanHandle plan = make_plan(by_environment, "h200", kQuantizeText);
  EXPECT_EQ(octile_plan_prepare(plan.get(), 4, 4, 0), OCTILE_OK) << octile_last_error();
  EXPECT_THAT(by_environment.log.of(OCTILE_LOG_INFO), Contains(HasSubstr("a name to compile for")));
}

// ---- octile_tune

TEST_F(TuningApi, TheCallbackSeesEachQuestionAndEndsTheSearch) {
  struct Seen {
    std::vector<std::string> lines;
    int most = 0;
  } seen;
  octile_tune_options options = questions();
  const std::vector<std::int64_t> tokens{64, 128, 64};
  options.tokens = tokens.data();
  options.token_count = 3;
  options.budget_seconds = 30;
  options.progress_user = &seen;
  options.progress = [](const octile_tune_progress* progress, void* user) -> std::int32_t {
    auto& all = *static_cast<Seen*>(user);
    all.lines.push_back(fmt::format("{} {} {}/{}", static_cast<int>(progress->event),
                                    progress->tokens, progress->decided, progress->questions));
    EXPECT_EQ(progress->struct_size, sizeof *progress);
    EXPECT_EQ(progress->problem == nullptr, progress->event == OCTILE_TUNE_PLANNED);
    EXPECT_GT(progress->seconds_left, 29);
    return static_cast<int>(all.lines.size()) >= all.most ? 1 : 0;
  };
  octile_tune_result result{};
  result.struct_size = sizeof result;
  seen.most = 1;
  ASSERT_EQ(octile_tune(library.get(), "cuda:0", &options, &result), OCTILE_OK)
      << octile_last_error();
  EXPECT_THAT(seen.lines, ElementsAre("1 0 0/2"));
  EXPECT_EQ(result.questions, 2);
  EXPECT_EQ(result.undecided, 2);
  EXPECT_EQ(result.cancelled, 1);
  // Questions that a folder has answered are not asked again.
  fs::create_directories(cache.path() + "/known");
  write("known/tuning.jsonl", line(128));
  const std::string folder = cache.path() + "/known";
  options.folder = folder.c_str();
  seen = {{}, 1};
  ASSERT_EQ(octile_tune(library.get(), "cuda:0", &options, &result), OCTILE_OK)
      << octile_last_error();
  EXPECT_THAT(seen.lines, ElementsAre("1 0 1/2"));
  EXPECT_EQ(result.known, 1);
  EXPECT_EQ(result.decided, 0);
  EXPECT_EQ(result.undecided, 1);
}

// Within the bounds of its arguments; a search for equal questions in time that grows with their
// square would take minutes.
TEST_F(TuningApi, ManyQuestionsAreHeardAtOnce) {
  octile_tune_options options = questions();
  std::vector<std::int64_t> tokens(100'000);
  std::iota(tokens.begin(), tokens.end(), 1);
  options.tokens = tokens.data();
  options.token_count = static_cast<std::int64_t>(tokens.size());
  std::int64_t asked = 0;
  options.progress_user = &asked;
  options.progress = [](const octile_tune_progress* progress, void* user) -> std::int32_t {
    *static_cast<std::int64_t*>(user) = progress->questions;
    return 1;
  };
  octile_tune_result result{};
  result.struct_size = sizeof result;
  ASSERT_EQ(octile_tune(library.get(), "cuda:0", &options, &result), OCTILE_OK)
      << octile_last_error();
  EXPECT_EQ(asked, 100'000);
  EXPECT_EQ(result.undecided, 100'000);
}

// ---- prepare

TEST_F(TuningApi, WithoutRecordsASearchWouldServeNobody) {
  ASSERT_EQ(::setenv("OCTILE_TUNING", "off", 1), 0);  // NOLINT(concurrency-mt-unsafe)
  const LibraryHandle without(cache.path() + "/other");
  ::unsetenv("OCTILE_TUNING");  // NOLINT(concurrency-mt-unsafe)
  const PlanHandle plan = make_plan(without, "cuda:0", kUnknown);
  expect_refused(octile_plan_prepare(plan.get(), 1, 1, OCTILE_PREPARE_TUNE),
                 OCTILE_INVALID_ARGUMENT, {"OCTILE_TUNING is off"});
}

TEST_F(TuningApi, OnTheHostNothingIsSearched) {
  const PlanHandle plan = make_plan(library, "host", kUnknown);
  const octile_prepare_options options = tune_options(5);
  EXPECT_EQ(octile_plan_prepare_with(plan.get(), 1, 4096, &options), OCTILE_OK)
      << octile_last_error();
  octile_layer_desc desc{};
  desc.struct_size = sizeof desc;
  desc.recipe = "blockwise";
  desc.n = desc.k = 128;
  desc.dtype = OCTILE_BF16;
  octile_layer* layer = nullptr;
  ASSERT_EQ(octile_layer_create(library.get(), "host", &desc, &layer), OCTILE_OK);
  EXPECT_EQ(octile_layer_prepare_with(layer, 1, 64, 0, &options), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(octile_layer_destroy(layer), OCTILE_OK);
}

// ---- records

TEST_F(TuningApi, FindNamesWhatChoosesTheConfiguration) {
  EXPECT_EQ(find(problem, 64)["chosen_by"], "cost model");
  EXPECT_TRUE(find(problem, 64)["record"].is_null());
  const std::string path = write("set.jsonl", line(64));
  const char* paths[] = {path.c_str()};
  ASSERT_EQ(octile_records_load(library.get(), paths, 1), OCTILE_OK) << octile_last_error();
  const nlohmann::json exact = find(problem, 50);
  EXPECT_EQ(exact["chosen_by"], "exact record");
  EXPECT_EQ(exact["tokens"], 50);
  EXPECT_EQ(exact["bucket"], 64);
  EXPECT_EQ(exact["device"], "h200");
  EXPECT_EQ(exact["record"], nlohmann::json::parse(line(64)));
  EXPECT_EQ(exact["config"], exact["record"]["winner"]["config"]);
  EXPECT_THAT(exact["reason"].get<std::string>(), HasSubstr("the records that were loaded"));
  EXPECT_EQ(find(problem, 32)["chosen_by"], "near bucket");
  const std::string near =
      "gemm m=? n=144 k=2944 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";
  EXPECT_EQ(find(near.c_str(), 64)["chosen_by"], "near shape");
  ASSERT_EQ(octile_records_load(library.get(), nullptr, 0), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(find(problem, 64)["chosen_by"], "cost model");
}

TEST_F(TuningApi, MergingIsIdempotentAndNamesWhatItLeavesOut) {
  const std::string first = write("a.jsonl", line(64, 1) + "nonsense\n");
  const std::string second = write("b.jsonl", line(64, 2) + line(8));
  const std::string out = cache.path() + "/all.jsonl";
  const char* paths[] = {first.c_str(), second.c_str()};
  octile_records_merged merged{};
  merged.struct_size = sizeof merged;
  ASSERT_EQ(octile_records_merge(library.get(), paths, 2, out.c_str(), &merged), OCTILE_OK)
      << octile_last_error();
  EXPECT_EQ(merged.files, 2);
  EXPECT_EQ(merged.records, 2);
  EXPECT_EQ(merged.conflicts, 1);
  EXPECT_EQ(merged.bad_lines, 1);
  EXPECT_THAT(library.log.of(OCTILE_LOG_WARNING), ElementsAre(HasSubstr("a.jsonl:2: ")));
  EXPECT_THAT(library.log.of(OCTILE_LOG_INFO), Contains(HasSubstr("other winner than")));
  const auto bytes = fs::file_size(out);
  const char* again[] = {out.c_str(), out.c_str()};
  ASSERT_EQ(octile_records_merge(library.get(), again, 2, out.c_str(), nullptr), OCTILE_OK);
  EXPECT_EQ(fs::file_size(out), bytes);
}

}  // namespace
}  // namespace octile::test
