// emit, compile, cache and doctor as a user runs them, without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "generator/core/identity.h"
#include "generator/families.h"
#include "runtime/compiler/nvrtc.h"
#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Compile, ReportsEveryKernelAsAnObject) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  const std::vector<std::string> command{"compile",        "--device", "h200",      "--gemm",
                                         "4096x7168x2048", "--recipe", "blockwise", "--json"};
  for (const char* state : {"miss", "hit"}) {
    const Outcome outcome = shell.run(command);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const json kernels = outcome.json();
    ASSERT_EQ(kernels.size(), 1);
    const json& kernel = kernels.at(0);
    EXPECT_EQ(kernel.at("cache"), state);
    EXPECT_EQ(kernel.at("device"), "h200");
    EXPECT_THAT(kernel.at("problem").get<std::string>(), StartsWith("gemm m=4096 n=7168 k=2048"));
    EXPECT_THAT(kernel.at("name").get<std::string>(), StartsWith("octile_gemm_"));
    EXPECT_THAT(kernel.at("config").get<std::string>(), StartsWith("tile="));
    for (const char* key : {"compile_ms", "registers", "smem_bytes", "spill_store_bytes",
                            "spill_load_bytes", "cubin_bytes"}) {
      EXPECT_TRUE(kernel.at(key).is_number()) << key;
    }
  }
}

TEST(Compile, TakesAModelAndSharesKernels) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  const Outcome outcome =
      shell.run({"compile", "--model", "llama-3-8b", "--tokens", "64,128", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json objects = outcome.json();
  std::set<std::string> problems;
  std::set<std::string> kernels;
  for (const json& kernel : objects) {
    problems.insert(kernel.at("problem"));
    kernels.insert(kernel.at("name"));
  }
  EXPECT_GE(problems.size(), 8);  // four layers, each a product and a weight of its own
  EXPECT_LT(kernels.size(), objects.size());
}

TEST(Compile, ReadsAModelFileFromDisk) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  const std::string path = (shell.folder() / "tiny.json").string();
  std::ofstream(path) << R"({"model": "tiny", "source": "this test", "tokens": [64],
      "gemms": [{"name": "up", "n": 256, "k": 512, "split": "n"}]})";
  const Outcome outcome = shell.run({"compile", "--model", path, "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.json().size(), 3);
}

TEST(Emit, WhatItPrintsCompiles) {
  const Shell shell;
  const auto nvrtc = Nvrtc::open();
  if (!nvrtc) GTEST_SKIP() << nvrtc.error().message;
  for (const auto& [option, shape] :
       {std::pair{"--gemm", "?x2112x7168"}, {"--quantize", "?x7168"}}) {
    const Outcome source = shell.run({"emit", option, shape, "--device", "h200"});
    ASSERT_EQ(source.exit_code, 0) << source.err;
    const Outcome data = shell.run({"emit", option, shape, "--device", "h200", "--json"});
    ASSERT_EQ(data.exit_code, 0) << data.err;
    const json object = data.json();
    EXPECT_EQ(object.at("source"), source.out);
    const auto compiled = (*nvrtc)->compile("emitted.cu", source.out,
                                            object.at("options").get<std::vector<std::string>>());
    ASSERT_TRUE(compiled) << compiled.error().message;
    EXPECT_NE(compiled->find(object.at("name").get<std::string>()), nullptr);
  }
}

TEST(Emit, TakesAConfigurationAndWritesAFile) {
  const Shell shell;
  const std::string path = (shell.folder() / "kernel.cu").string();
  const Outcome outcome = shell.run({"emit", "--gemm", "4096x7168x2048", "--config",
                                     "tile=128x128x128 stages=4 wg=2", "-o", path});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("constexpr int kStages = 4;"));
}

TEST(Emit, TwoConsumersWithProductsInFlightCompileByO1) {
  const Shell shell;
  const auto options = [&](const std::string& config) {
    const Outcome outcome =
        shell.run({"emit", "--gemm", "4096x7168x2048", "--config", config, "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.json().at("options").get<std::vector<std::string>>();
  };
  const std::string o1 = "--ptxas-options=-O1";
  EXPECT_THAT(options("tile=128x128x128 stages=5 wg=2 unroll=2 inflight=2"), Contains(o1));
  EXPECT_THAT(options("tile=128x128x128 stages=5 wg=2 unroll=2 inflight=1"), Not(Contains(o1)));
  EXPECT_THAT(options("tile=64x64x128 stages=8 wg=1 unroll=2 inflight=2"), Not(Contains(o1)));
}

TEST(Emit, ExplainsWhatChangedAndWhy) {
  const Shell shell;
  const Outcome outcome = shell.run({"emit", "--gemm", "64x2112x7168", "--explain"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("kBlockM = "));
  EXPECT_THAT(outcome.out, HasSubstr("(configuration: "));
}

TEST(Cache, ListsAndShowsWhatWasCompiled) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  ASSERT_EQ(shell.run({"compile", "--quantize", "16x7168"}).exit_code, 0);
  const json list = shell.run({"cache", "list", "--json"}).json();
  ASSERT_EQ(list.size(), 1);
  const std::string digest = list.at(0).at("digest");
  const Outcome text = shell.run({"cache", "list"});
  EXPECT_THAT(text.out, HasSubstr(digest.substr(0, 12)));
  EXPECT_THAT(text.out, HasSubstr("1 entry"));
  const json entry = shell.run({"cache", "show", digest.substr(0, 6), "--json"}).json();
  EXPECT_EQ(entry.at("digest"), digest);
  EXPECT_THAT(entry.at("problem").get<std::string>(), StartsWith("quantize rows=16 cols=7168"));
  const Outcome source = shell.run({"cache", "show", digest, "--source"});
  EXPECT_EQ(source.out, identity_text(shell.run({"emit", "--quantize", "16x7168"}).out));
  EXPECT_EQ(shell.run({"cache", "path"}).out, (shell.folder() / "cache").string() + "\n");
}

TEST(Cache, SaysWhichEntryIsDamaged) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  ASSERT_EQ(shell.run({"compile", "--quantize", "16x7168"}).exit_code, 0);
  const json before = shell.run({"cache", "list", "--json"}).json();
  std::filesystem::resize_file(before.at(0).at("path").get<std::string>(), 100);
  const Outcome list = shell.run({"cache", "list", "--json"});
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_TRUE(list.json().at(0).contains("damaged"));
  const std::string digest = before.at(0).at("digest");
  const Outcome show = shell.run({"cache", "show", digest, "--source"});
  EXPECT_EQ(show.exit_code, 1);
  EXPECT_THAT(show.err, HasSubstr("is damaged: "));
}

TEST(Doctor, SaysWhatIsMissingAndWhatThatCosts) {
  Shell shell;
  shell.set("OCTILE_LIBNVRTC", "/nonexistent/libnvrtc.so");
  const Outcome outcome = shell.run({"doctor", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json doctor = outcome.json();
  EXPECT_FALSE(doctor.at("driver").at("found"));
  EXPECT_FALSE(doctor.at("nvrtc").at("found"));
  EXPECT_TRUE(doctor.at("cache").at("writable"));
  std::set<std::string> missing;
  for (const json& item : doctor.at("missing")) {
    missing.insert(item.at("what"));
    EXPECT_NE(item.at("cost"), "");
  }
  EXPECT_EQ(missing, (std::set<std::string>{"driver", "compiler"}));
  const Outcome text = shell.run({"doctor"});
  EXPECT_THAT(text.out, HasSubstr("/nonexistent/libcuda.so.1"));
  EXPECT_THAT(text.out, HasSubstr("/nonexistent/libnvrtc.so"));
  EXPECT_THAT(text.out, HasSubstr("OCTILE_CACHE_DIR"));
}

TEST(Doctor, NoticesACacheThatCannotBe) {
  Shell shell;
  shell.set("OCTILE_CACHE_DIR", "/dev/null/cache");
  const json doctor = shell.run({"doctor", "--json"}).json();
  EXPECT_FALSE(doctor.at("cache").at("writable"));
}

std::string read(const char* path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return std::move(text).str();
}

// The C code of the README: the text of its first ```c block.
std::string readme_excerpt() {
  const std::string readme = read(OCTILE_SOURCE_DIR "/README.md");
  const std::string open = "```c\n";
  const std::size_t begin = readme.find(open);
  if (begin == std::string::npos) return {};
  const std::size_t end = readme.find("```\n", begin + open.size());
  return readme.substr(begin + open.size(), end - begin - open.size());
}

// The example is a test of its own. The README prints an excerpt of it, unchanged.
TEST(Readme, HasAnExcerptOfTheExampleThatIsTested) {
  const std::string example = read(OCTILE_SOURCE_DIR "/tests/c_api/readme_example_test.c");
  const std::string excerpt = readme_excerpt();
  ASSERT_FALSE(excerpt.empty());
  EXPECT_THAT(example, HasSubstr(excerpt));
  EXPECT_THAT(read(OCTILE_SOURCE_DIR "/README.md"),
              HasSubstr("(tests/c_api/readme_example_test.c)"));
}

// docs/support.md has the matrix of today, not one of an earlier version.
TEST(Doctor, TheDocumentsHaveItsMatrix) {
  const Shell shell;
  const Outcome outcome = shell.run({"doctor", "--matrix"});
  ASSERT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, support_matrix_markdown());
  EXPECT_TRUE(read(OCTILE_SOURCE_DIR "/docs/support.md").find(outcome.out) != std::string::npos)
      << "docs/support.md lacks this table:\n"
      << outcome.out;
  EXPECT_EQ(shell.run({"doctor", "--matrix", "--json"}).json().size(), support_matrix().size());
}

}  // namespace
}  // namespace octile::tests
