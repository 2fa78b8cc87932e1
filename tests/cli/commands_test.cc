// emit, compile, cache and doctor as a user runs them, without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "generator/core/identity.h"
#include "generator/families.h"
#include "runtime/compiler/nvrtc.h"
#include "tests/cli/command.h"

namespace octile::tests {
namespace {

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
    const json document = outcome.json();
    EXPECT_EQ(document.at("device"), "h200");
    EXPECT_EQ(document.at("hits"), state == std::string("hit") ? 1 : 0);
    ASSERT_EQ(document.at("kernels").size(), 1);
    const json& kernel = document.at("kernels").at(0);
    EXPECT_EQ(kernel.at("cache"), state);
    EXPECT_EQ(kernel.at("kept"), true);
    ASSERT_EQ(kernel.at("problems").size(), 1);
    EXPECT_THAT(kernel.at("problems").at(0).at("problem").get<std::string>(),
                StartsWith("gemm m=4096 n=7168 k=2048"));
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
  const json kernels = outcome.json().at("kernels");
  std::set<std::string> problems;
  std::set<std::string> digests;
  std::size_t uses = 0;
  for (const json& kernel : kernels) {
    digests.insert(kernel.at("source_digest"));
    uses += kernel.at("problems").size();
    for (const json& use : kernel.at("problems")) problems.insert(use.at("problem"));
  }
  EXPECT_GE(problems.size(), 8);  // four layers, each with its own GEMM and weight
  EXPECT_EQ(digests.size(), kernels.size());
  EXPECT_LT(kernels.size(), uses);
}

TEST(Compile, TakesThePassesOfALayer) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  const Outcome outcome =
      shell.run({"compile", "--gemm", "?x512x1024", "--recipe", "blockwise_hybrid", "--passes",
                 "fprop,dgrad,wgrad", "--tokens", "96", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::set<std::string> problems;
  const json document = outcome.json();
  for (const json& kernel : document.at("kernels")) {
    EXPECT_EQ(kernel.at("spill_store_bytes"), 0);
    for (const json& use : kernel.at("problems")) {
      problems.insert(use.at("problem"));
      EXPECT_EQ(use.at("buckets"), json::array({128}));
    }
  }
  EXPECT_THAT(
      problems,
      ::testing::UnorderedElementsAre(
          "gemm m=? n=512 k=1024 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
          "gemm m=? n=1024 k=512 a=e5m2:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
          "gemm m=512 n=1024 k=? a=e5m2:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128"));
}

TEST(Compile, SaysWhatItWouldCompile) {
  const Shell shell;
  const std::string path = (shell.folder() / "tiny.json").string();
  std::ofstream(path) << R"({"model": "tiny", "source": "this test", "tokens": [64],
      "gemms": [{"name": "up", "n": 256, "k": 512, "split": "n"}]})";
  const Outcome outcome = shell.run(
      {"compile", "--model", path, "--for", "torch", "--passes", "fprop", "--dry-run", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto work = [](const std::string& problem, int tokens) {
    return json{{"problem", problem}, {"tokens", {{tokens, tokens}}}};
  };
  EXPECT_EQ(outcome.json().at("problems"),
            json::array({work("quantize rows=? cols=512 x=bf16 q=e4m3:1x128:pow2 out=row", 64),
                         work("quantize rows=? cols=512 x=bf16 q=e4m3:128x128:pow2 out=row", 256),
                         work("gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 "
                              "promote=128",
                              64),
                         work("quantize rows=? cols=512 x=bf16 q=e4m3:128x128:pow2 out=row "
                              "skip=unchanged",
                              256)}));
  EXPECT_FALSE(fs::exists(shell.folder() / "cache"));
}

TEST(Compile, ReadsAModelFileFromDisk) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  const std::string path = (shell.folder() / "tiny.json").string();
  std::ofstream(path) << R"({"model": "tiny", "source": "this test", "tokens": [64],
      "gemms": [{"name": "up", "n": 256, "k": 512, "split": "n"}]})";
  const Outcome outcome = shell.run({"compile", "--model", path, "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("kernels").size(), 3);
}

TEST(Compile, SharesItsWorkOverParts) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  const std::string list = (shell.folder() / "problems.txt").string();
  std::ofstream(list) << "# what a small model needs\n64x512x1024\n"
                         "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row  # any count\n"
                         "dequantize rows=? cols=512 x=e4m3:1x128 q=bf16 out=row\n";
  const auto compile = [&](const std::string& part) {
    const Outcome outcome = shell.run(
        {"compile", "--problem-file", list, "--tokens", "64,4096", "--part", part, "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.json();
  };
  std::multiset<std::string> parts;
  for (const char* part : {"1/2", "2/2"}) {
    const json document = compile(part);
    for (const json& kernel : document.at("kernels")) parts.insert(kernel.at("source_digest"));
  }
  const json whole = compile("1/1");
  std::multiset<std::string> all;
  for (const json& kernel : whole.at("kernels")) {
    EXPECT_EQ(kernel.at("cache"), "hit");
    all.insert(kernel.at("source_digest"));
  }
  EXPECT_EQ(parts, all);
  EXPECT_GE(all.size(), 3);
  EXPECT_EQ(whole.at("all"), all.size());
  EXPECT_EQ(whole.at("hits"), all.size());
}

TEST(Compile, TakesSeveralModelsAndShowsProgress) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  const std::vector<std::string> command{"compile",  "--model", "llama-3-8b,llama-3-8b",
                                         "--tokens", "64",      "--progress"};
  const Outcome outcome = shell.run(command);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("1 of "));
  EXPECT_THAT(outcome.err, HasSubstr(": miss octile_"));
  EXPECT_THAT(outcome.out, HasSubstr(": 0 from the cache, "));
  EXPECT_THAT(shell.run(command).out, HasSubstr("from the cache, 0 compiled"));
}

TEST(Compile, FailsIfNothingCanBeKept) {
  Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  shell.set("OCTILE_CACHE_DIR", "/dev/null/cache");
  const Outcome outcome = shell.run({"compile", "--quantize", "16x7168"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("could not be kept in /dev/null/cache"));
  const Outcome told = shell.run({"compile", "--quantize", "16x7168", "--json"});
  EXPECT_EQ(told.exit_code, 1);
  EXPECT_EQ(told.json().at("compiled"), 1);
  EXPECT_EQ(told.json().at("kept"), 0);
}

// A plan asks for the kernels that were compiled ahead of time.
TEST(Compile, CompilesWhatAPlanAsksFor) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  const std::string list = (shell.folder() / "demo.txt").string();
  std::ofstream(list) << "?x512x7168\n"
                         "quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row\n"
                         "quantize rows=? cols=7168 x=bf16 q=e4m3:128x128 out=row\n";
  ASSERT_EQ(shell.run({"compile", "--problem-file", list, "--tokens", "256,512"}).exit_code, 0);
  const Outcome demo = shell.run({"demo", "--quick", "--json"});
  ASSERT_EQ(demo.exit_code, 0) << demo.err;
  const json document = demo.json();
  for (const json& kernel : document.at("kernels")) EXPECT_EQ(kernel.at("cache"), "hit");
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

TEST(Emit, ExplainsAWeightGradientAtItsTokens) {
  Shell shell;
  shell.set("COLUMNS", "160");  // in which the problem's text has one line
  const std::string problem =
      "gemm m=7168 n=4096 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128";
  const Outcome outcome =
      shell.run({"emit", "--problem", problem, "--tokens", "4096", "--explain"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("problem = " + problem));
  EXPECT_THAT(outcome.out, HasSubstr("kBlockM = "));
}

TEST(Emit, TakesAConfigurationAndWritesAFile) {
  const Shell shell;
  const std::string path = (shell.folder() / "kernel.cu").string();
  const Outcome outcome = shell.run({"emit", "--gemm", "4096x7168x2048", "--config",
                                     "tile=128x128x128 stages=4 wg=2", "-o", path});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(read_file(path), HasSubstr("constexpr int kStages = 4;"));
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
  fs::resize_file(before.at(0).at("path").get<std::string>(), 100);
  const Outcome list = shell.run({"cache", "list", "--json"});
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_TRUE(list.json().at(0).contains("damaged"));
  const std::string digest = before.at(0).at("digest");
  const Outcome show = shell.run({"cache", "show", digest, "--source"});
  EXPECT_EQ(show.exit_code, 1);
  EXPECT_THAT(show.err, HasSubstr("is damaged: "));
}

TEST(Doctor, SaysWhereNvrtcWasLookedForAndWhatWasTaken) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  const json nvrtc = shell.run({"doctor", "--json"}).json().at("nvrtc");
  const json& searched = nvrtc.at("searched");
  ASSERT_GE(searched.size(), 2U);
  EXPECT_EQ(searched.front().at("why"), "beside Octile");
  EXPECT_EQ(searched.front().at("outcome"), "no NVRTC there");
  for (const json& place : searched) EXPECT_EQ(place.at("taken"), place == searched.back());
  const Outcome text = shell.run({"doctor"});
  EXPECT_THAT(text.out, HasSubstr(" (beside Octile): no NVRTC there\n"));
  EXPECT_THAT(text.out, HasSubstr(": taken\n"));
}

// A library that is there and cannot be used is named with the reason, and the search goes on.
TEST(Doctor, SaysWhyALibraryIsNotTaken) {
  Shell shell;
  const fs::path folder = shell.folder() / "venv/lib/python3.11/site-packages/nvidia/cu13/lib";
  fs::create_directories(folder);
  std::ofstream(folder / "libnvrtc.so.13") << "no library";
  fs::copy_file(OCTILE_COMMAND, folder / "octile");  // beside which it is looked for
  shell.use(folder / "octile");
  const json nvrtc = shell.run({"doctor", "--json"}).json().at("nvrtc");
  const json& first = nvrtc.at("searched").at(0);
  EXPECT_EQ(first.at("folder"), fs::canonical(folder).string());
  EXPECT_FALSE(first.at("taken"));
  EXPECT_THAT(first.at("outcome").get<std::string>(), HasSubstr("cannot be opened"));
  EXPECT_GE(nvrtc.at("searched").size(), 2U);
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

// A terminal of 24 lines shows the end of the output, and a pager its beginning.
TEST(Doctor, SaysWhatIsMissingOnTheFirstAndTheLastScreen) {
  Shell shell;
  shell.set("COLUMNS", "80");
  shell.set("OCTILE_LIBNVRTC", "/nonexistent/libnvrtc.so");
  shell.set("OCTILE_LIBARCHIVE", "/nonexistent/libarchive.so");
  shell.set("OCTILE_CACHE_DIR", "/dev/null/cache");
  const Outcome outcome = shell.run({"doctor"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("missing    driver, compiler, cache, libarchive; "))
      << outcome.out;
  const std::size_t missing = outcome.out.find("\nmissing\n");
  ASSERT_NE(missing, std::string::npos) << outcome.out;
  EXPECT_LE(std::count(outcome.out.begin() + static_cast<std::ptrdiff_t>(missing) + 1,
                       outcome.out.end(), '\n'),
            23);
  EXPECT_THAT(outcome.out.substr(missing), HasSubstr("no libarchive"));
}

TEST(Compile, SaysThatAllFailed) {
  Shell shell;
  shell.set("OCTILE_LIBNVRTC", "/nonexistent/libnvrtc.so");
  const Outcome outcome = shell.run({"compile", "--gemm", "64x7168x2048"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("1 kernel for 1 problem in "));
  EXPECT_THAT(outcome.out, HasSubstr(" s: 1 failed\n"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("registers"))) << "a table without rows";
}

TEST(Doctor, NoticesACacheThatCannotBe) {
  Shell shell;
  shell.set("OCTILE_CACHE_DIR", "/dev/null/cache");
  const json doctor = shell.run({"doctor", "--json"}).json();
  EXPECT_FALSE(doctor.at("cache").at("writable"));
}

// The C code of the README: the text of its first ```c block.
std::string readme_excerpt() {
  const std::string readme = read_file(OCTILE_SOURCE_DIR "/README.md");
  const std::string open = "```c\n";
  const std::size_t begin = readme.find(open);
  if (begin == std::string::npos) return {};
  const std::size_t end = readme.find("```\n", begin + open.size());
  return readme.substr(begin + open.size(), end - begin - open.size());
}

// The example is a test of its own. The README prints an excerpt of it, unchanged.
TEST(Readme, HasAnExcerptOfTheExampleThatIsTested) {
  const std::string example = read_file(OCTILE_SOURCE_DIR "/tests/c_api/readme_example_test.c");
  const std::string excerpt = readme_excerpt();
  ASSERT_FALSE(excerpt.empty());
  EXPECT_THAT(example, HasSubstr(excerpt));
  EXPECT_THAT(read_file(OCTILE_SOURCE_DIR "/README.md"),
              HasSubstr("(tests/c_api/readme_example_test.c)"));
}

// docs/support.md has the matrix of today, not one of an earlier version.
TEST(Doctor, TheDocumentsHaveItsMatrix) {
  const Shell shell;
  const Outcome outcome = shell.run({"doctor", "--matrix"});
  ASSERT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, support_matrix_markdown() + "\n" + machines_markdown());
  for (const std::string& table : {support_matrix_markdown(), machines_markdown()}) {
    EXPECT_TRUE(read_file(OCTILE_SOURCE_DIR "/docs/support.md").find(table) != std::string::npos)
        << "docs/support.md lacks this table:\n"
        << table;
  }
  EXPECT_EQ(shell.run({"doctor", "--matrix", "--json"}).json().size(), support_matrix().size());
}

}  // namespace
}  // namespace octile::tests
