// explain, cache clear, why on shapes, filters by the problems of a kernel, emit --dump, and
// completion.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "tests/cli/command.h"
#include "tests/support/cache_testing.h"

namespace octile::tests {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

TEST(Explain, SaysWhatAProblemMeans) {
  const Outcome outcome = Shell().run({"explain", "?x7168x2048", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json problem = outcome.json();
  EXPECT_EQ(problem.at("operation"), "gemm");
  EXPECT_EQ(problem.at("token_axis"), "m");
  EXPECT_EQ(problem.at("supported"), true);
  EXPECT_EQ(problem.at("devices"), json({"h200", "h100", "h20", "l4", "l40s", "rtx4090",
                                         "rtx6000ada", "rtx5090", "rtxpro6000", "b200", "b300"}));
  EXPECT_THAT(problem.at("recipes").get<std::vector<std::string>>(), Contains("blockwise"));
  EXPECT_EQ(problem.at("fields").size(), 8);
  const Outcome refused = Shell().run(
      {"explain", "gemm m=? n=8 k=16 a=bf16 b=e4m3:128x128 d=bf16 acc=0 promote=128", "--json"});
  ASSERT_EQ(refused.exit_code, 3) << "understood, and there is no kernel; " << refused.err;
  EXPECT_EQ(refused.json().at("supported"), false);
  EXPECT_THAT(refused.json().at("remark").get<std::string>(), HasSubstr("has to be quantised"));
}

// A shell expands '?' and leaves '_' alone.
TEST(Explain, TakesAnUnderscoreForAnOpenCount) {
  const Shell shell;
  for (const auto& [quoted, plain] : {std::pair{"?x7168x2048", "_x7168x2048"}, {"?x64", "_x64"}}) {
    const Outcome outcome = shell.run({"explain", plain});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, shell.run({"explain", quoted}).out);
  }
}

TEST(Explain, NamesAFieldThatIsWrong) {
  const Outcome outcome = Shell().run({"explain", "quantize", "rows=?", "cools=128"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("there is no field 'cools'"));
}

TEST(Explain, TheDocumentHasItsTables) {
  const std::string tables = Shell().run({"explain", "--markdown"}).out;
  EXPECT_TRUE(read_file(OCTILE_SOURCE_DIR "/docs/problems.md").find(tables) != std::string::npos)
      << "docs/problems.md lacks what `octile explain --markdown` prints";
}

TEST(CacheClear, RemovesEveryEntryAndKeepsTheRest) {
  const Shell shell;
  const std::string root = (shell.folder() / "cache").string();
  for (int kernel = 1; kernel <= 3; ++kernel)
    ASSERT_TRUE(cache::testing::publish_in(root, cache::testing::make_entry(kernel)));
  std::ofstream(root + "/tuning.jsonl") << "\n";
  const Outcome dry = shell.run({"cache", "clear", "--dry-run", "--json"});
  ASSERT_EQ(dry.exit_code, 0) << dry.err;
  EXPECT_EQ(dry.json().at("removed").size(), 3);
  EXPECT_EQ(shell.run({"cache", "list", "--json"}).json().size(), 3);
  const Outcome clear = shell.run({"cache", "clear"});
  EXPECT_EQ(clear.exit_code, 0) << clear.err;
  EXPECT_THAT(clear.out, HasSubstr("removed 3 entries"));
  EXPECT_EQ(shell.run({"cache", "list", "--json"}).json().size(), 0);
  EXPECT_TRUE(fs::exists(root + "/tuning.jsonl"));
}

TEST(CacheWhy, TakesAShape) {
  const Shell shell;
  for (const auto& [text, option] :
       {std::pair{"64x7168x2048", "--gemm"}, {"?x7168", "--quantize"}}) {
    const Outcome by_text = shell.run({"cache", "why", text, "--json"});
    EXPECT_EQ(by_text.exit_code, 3) << by_text.err;
    EXPECT_EQ(by_text.out, shell.run({"cache", "why", option, text, "--json"}).out);
  }
}

// A GEMM's dimensions are arguments, so an entry serves other layers than the one that compiled it.
TEST(CacheList, FiltersByWhatAKernelServes) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  ASSERT_EQ(shell.run({"compile", "--gemm", "?x7168x2048", "--tokens", "4096"}).exit_code, 0);
  const auto listed = [&](const std::string& words) {
    return shell.run({"cache", "list", "--problem", words, "--json"}).json().size();
  };
  EXPECT_EQ(listed("gemm n=7168"), 1);
  EXPECT_EQ(listed("gemm n=4096"), 1) << "the kernel is the same";
  EXPECT_EQ(listed("gemm n=4096 m=64"), 1);
  EXPECT_EQ(listed("gemm n=4097"), 0) << "no GEMM has 4097 columns";
  EXPECT_EQ(listed("gemm n=4096 d=fp32"), 0) << "another kernel";
  EXPECT_EQ(listed("quantize n=4096"), 0);
}

TEST(EmitDump, WritesEverythingSideBySide) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  const fs::path folder = shell.folder() / "a" / "dump";
  const Outcome outcome =
      shell.run({"emit", "--gemm", "64x7168x2048", "--dump", folder.string(), "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json files = outcome.json().at("files");
  std::set<std::string> suffixes;
  for (const json& file : files) {
    const fs::path path = file.get<std::string>();
    EXPECT_EQ(path.parent_path(), folder);
    EXPECT_GT(fs::file_size(path), 0);
    suffixes.insert(path.extension().string());
  }
  EXPECT_THAT(suffixes, IsSupersetOf({".cu", ".cubin", ".json"}));
  EXPECT_EQ(suffixes.contains(".sass"), outcome.json().at("lacking").is_null());
  EXPECT_EQ(read_file(files.at(0).get<std::string>()),
            shell.run({"emit", "--gemm", "64x7168x2048"}).out);
  const json resources = json::parse(read_file(files.at(2).get<std::string>()));
  EXPECT_GT(resources.at("elf").at("kernels").at(0).at("registers"), 0);
  const Outcome bad = shell.run({"emit", "--gemm", "64x7168x2048", "--dump", "/dev/null/x"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.err, HasSubstr("--dump is '/dev/null/x', which cannot be created"));
}

TEST(TuneExplain, NeedsNoDeviceAndPrintsASummary) {
  const Shell shell;
  const Outcome outcome =
      shell.run({"tune", "--gemm", "?x7168x2048", "--tokens", "64", "--explain"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("1 task for h200"));
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("[?]x7168x2048 +64 "));
  EXPECT_THAT(outcome.out, Not(HasSubstr("fits_registers")));
  EXPECT_THAT(
      shell.run({"tune", "--gemm", "?x7168x2048", "--tokens", "64", "--explain", "--list"}).out,
      HasSubstr("fits_registers"));
}

TEST(TuneExplain, TheExpertsOfAModelAreTasksToo) {
  const Shell shell;
  const auto tasks = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"tune", "--model", "mixtral-8x7b", "--tokens",
                                       "1024", "--json",  "--explain"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = shell.run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const json all = outcome.json().at("tasks");
    return std::ranges::count_if(all, [](const json& task) {
      return task.at("problem").get<std::string>().starts_with("gemm");
    });
  };
  EXPECT_EQ(tasks({"--ep", "2"}), tasks({"--keep", "experts"}) + 2);
}

TEST(ModelFile, ErrorsAboutShapesNameTheFileAndTheLayer) {
  const Shell shell;
  const std::string path = (shell.folder() / "odd.json").string();
  std::ofstream(path) << R"({"model": "odd", "source": "this test", "tokens": [64],
      "gemms": [{"name": "up", "n": 257, "k": 512, "split": "n"}]})";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"compile", "--model", path},
        {"tune", "--model", path, "--explain"},
        {"bench", "--model", path}}) {
    const Outcome outcome = shell.run(command);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("odd.json: 'up': "));
    EXPECT_THAT(outcome.err, HasSubstr("257"));
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> completed(const Shell& shell, std::vector<std::string> words) {
  words.insert(words.begin(), {"complete", "--"});
  const Outcome outcome = shell.run(words);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return lines_of(outcome.out);
}

// `bench experts` takes every recipe and model that it offers, up to the missing GPU.
TEST(Completion, BenchExpertsOffersWhatItTakes) {
  const Shell shell;
  const std::string manual = read_manual(shell, "bench");
  const auto takes = [&](const std::string& model, const std::string& recipe) {
    const Outcome outcome = shell.run({"bench", "experts", "--model", model, "--recipe", recipe});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("needs a GPU")) << model << " " << recipe;
    EXPECT_THAT(manual, HasSubstr(recipe));
  };
  const auto recipes = completed(shell, {"bench", "experts", "--recipe", ""});
  const auto models = completed(shell, {"bench", "experts", "--model", ""});
  EXPECT_GE(recipes.size(), 2U);
  EXPECT_GE(models.size(), 3U);
  for (const std::string& recipe : recipes) takes(models.front(), recipe);
  for (const std::string& model : models) takes(model, recipes.front());
}

TEST(Completion, OffersVerbsOptionsAndValues) {
  const Shell shell;
  EXPECT_THAT(completed(shell, {"comp"}), ElementsAre("compile"));
  EXPECT_THAT(completed(shell, {"cache", "l"}), ElementsAre("list"));
  EXPECT_THAT(completed(shell, {"help", "cache", "sh"}), ElementsAre("show"));
  EXPECT_THAT(completed(shell, {"compile", "--mod"}), ElementsAre("--model", "--mode"));
  EXPECT_THAT(completed(shell, {"compile", "--model", "hy"}), ElementsAre("hy3"));
  EXPECT_THAT(completed(shell, {"compile", "--model", "deepseek-v3,kim"}),
              ElementsAre("deepseek-v3,kimi-k2"));
  EXPECT_THAT(completed(shell, {"emit", "--device", ""}),
              ElementsAre("h200", "h100", "h20", "l4", "l40s", "rtx4090", "rtx6000ada", "rtx5090",
                          "rtxpro6000", "b200", "b300", "cuda"));
  EXPECT_THAT(completed(shell, {"emit", "--device=h1"}), ElementsAre("--device=h100"));
  EXPECT_THAT(completed(shell, {"bench", "--baseline", ""}), ElementsAre("cublaslt"));
  EXPECT_THAT(completed(shell, {"cache", "list", "--sort", "reg"}), ElementsAre("registers"));
  EXPECT_THAT(completed(shell, {"emit", "--problem", "tr"}),
              ElementsAre(HasSubstr("transpose rows=? cols=7168")));
  EXPECT_THAT(completed(shell, {"emit", "-o", ""}), ElementsAre()) << "a file";
}

TEST(Completion, OffersDigests) {
  const Shell shell;
  const cache::Entry entry = cache::testing::make_entry(1);
  ASSERT_TRUE(cache::testing::publish_in((shell.folder() / "cache").string(), entry));
  const std::string digest = cache::testing::stem_of(entry).identity.substr(0, 12);
  EXPECT_THAT(completed(shell, {"cache", "show", ""}), ElementsAre(digest));
}

// Runs a script of a shell in which `octile` is the command. Returns its lines, or nothing without
// the shell.
std::optional<std::vector<std::string>> in_shell(const std::string& name,
                                                 const std::string& script) {
  const auto output = [](const std::string& command) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"),
                                                               ::pclose);
    std::string text;
    char line[512];
    while (pipe != nullptr && std::fgets(line, sizeof line, pipe.get()) != nullptr) text += line;
    return text;
  };
  if (output("command -v " + name).empty()) return std::nullopt;
  const Shell shell;
  const fs::path file = shell.folder() / "script";
  std::ofstream(file) << "PATH=" << fs::path(OCTILE_COMMAND).parent_path().string() << ":$PATH\n"
                      << script;
  return lines_of(output(name + " " + file.string()));
}

TEST(Completion, BashAsksTheCommand) {
  const auto lines = in_shell("bash", ". " OCTILE_SOURCE_DIR
                                      "/tools/completion/octile.bash\n"
                                      R"(
COMP_LINE='octile bench --baseline '; COMP_POINT=${#COMP_LINE}
COMP_WORDS=(octile bench --baseline ''); COMP_CWORD=3; _octile; printf '%s\n' "${COMPREPLY[@]}"
COMP_WORDS=(octile compile --model llama-3-8); COMP_CWORD=3; _octile
printf '%s\n' "${COMPREPLY[@]}")");
  ASSERT_TRUE(lines);
  EXPECT_THAT(*lines, ElementsAre("cublaslt", "llama-3-8b"));
}

TEST(Completion, ZshAndFishScriptsParse) {
  for (const auto& [name, file] :
       {std::pair<std::string, std::string>{"zsh", "_octile"}, {"fish", "octile.fish"}}) {
    const auto lines = in_shell(
        name, name + " -n " OCTILE_SOURCE_DIR "/tools/completion/" + file + " && echo good\n");
    if (!lines) continue;  // that shell is not here
    EXPECT_THAT(*lines, ElementsAre("good"));
  }
}

}  // namespace
}  // namespace octile::tests
