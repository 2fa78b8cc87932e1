// Help, errors and tables as a person sees them, at 80 and 160 columns. The files are in
// tests/cli/golden; UPDATE_GOLDEN=1 writes them anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/command.h"
#include "tests/support/cache_testing.h"

namespace octile::tests {
namespace {

struct Case {
  std::string name;  // of the file
  std::vector<std::string> arguments;
};

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  Golden() {
    shell_.set("COLUMNS", GetParam());
    for (int kernel = 1; kernel <= 3; ++kernel) {
      cache::Entry entry = cache::testing::make_entry(kernel);
      entry.metadata.problem = kProblems[kernel - 1];
      EXPECT_TRUE(cache::testing::publish_in((shell_.folder() / "cache").string(), entry));
    }
  }

  // Returns what a person sees, without this test's folder.
  std::string screen_of(const std::vector<std::string>& arguments) const {
    const Outcome outcome = shell_.run(arguments);
    const std::string seen =
        outcome.out + outcome.err + "exit status " + std::to_string(outcome.exit_code) + "\n";
    return std::regex_replace(seen, std::regex(shell_.folder().string()), "FOLDER");
  }

  void expect_golden(const Case& one) const {
    const fs::path file =
        fs::path(OCTILE_SOURCE_DIR) / "tests/cli/golden" / GetParam() / (one.name + ".txt");
    const std::string screen = screen_of(one.arguments);
    if (std::getenv("UPDATE_GOLDEN") != nullptr) {  // NOLINT(concurrency-mt-unsafe)
      fs::create_directories(file.parent_path());
      std::ofstream(file) << screen;
      return;
    }
    EXPECT_EQ(screen, read_file(file)) << file << "; UPDATE_GOLDEN=1 writes it anew";
  }

  Shell shell_;

 private:
  static constexpr const char* kProblems[] = {
      "gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
      "quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=both",
      "gemm m=7168 n=2048 k=? a=e5m2:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 "
      "group=contiguous groups=32"};
};

TEST_P(Golden, Help) {
  std::vector<Case> cases{{"help", {"help"}}};
  for (const std::string verb : {"demo", "emit", "explain", "shapes", "inspect", "compile", "tune",
                                 "bench", "report", "cache", "doctor", "help"}) {
    cases.push_back({"help-" + verb, {"help", verb}});
  }
  for (const std::string verb : {"path", "config", "list", "show", "verify", "why", "export",
                                 "import", "prune", "clear", "stats"}) {
    cases.push_back({"help-cache-" + verb, {"help", "cache", verb}});
  }
  for (const std::string verb : {"linear", "experts", "pieces"})
    cases.push_back({"help-bench-" + verb, {"help", "bench", verb}});
  for (const std::string verb : {"merge", "digest"})
    cases.push_back({"help-tune-" + verb, {"help", "tune", verb}});
  for (const Case& one : cases) expect_golden(one);
}

TEST_P(Golden, Errors) {
  const std::vector<Case> cases{
      {"error-none", {}},
      {"error-verb", {"compil"}},
      {"error-elsewhere", {"warm", "--model", "deepseek-v3"}},
      {"error-option", {"compile", "--tokans", "4"}},
      {"error-cache-verb", {"cache", "lits"}},
      {"error-device", {"compile", "--gemm", "64x7168x2048", "--device", "h210"}},
      {"error-no-kernels",
       {"emit", "--problem",
        "gemm m=64 n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128",
        "--device", "l40s"}},
      {"error-model", {"compile", "--model", "deepseek"}},
      {"error-shape", {"emit", "--gemm", "64x7167x2048"}},
      {"error-field", {"explain", "gemm m=? n=8 q=16"}},
      {"error-tokens", {"tune", "--gemm", "?x7168x2048", "--tokens", "1,,2"}},
      {"error-unsupported",
       {"emit", "--problem",
        "gemm m=_ n=256 k=512 a=e4m3:1x32 b=e4m3:1x32 d=bf16 acc=0 promote=64"}},
      {"error-scales-inside",
       {"emit", "--problem",
        "gemm m=_ n=256 k=512 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=bf16 acc=0 promote=none",
        "--device", "h200"}},
      {"error-no-powers",
       {"emit", "--problem",
        "gemm m=_ n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=none", "--device",
        "rtx5090"}},
      {"error-source",
       {"emit", "--problem", "quantize rows=_ cols=512 x=bf16 q=e4m3:1x128 out=row src=x0*x0"}},
      {"error-gpu", {"bench", "--gemm", "64x7168x2048"}},
  };
  for (const Case& one : cases) expect_golden(one);
}

TEST_P(Golden, Tables) {
  const std::vector<Case> cases{
      {"table-list", {"cache", "list"}},
      {"table-list-wide", {"cache", "list", "--wide"}},
      {"table-list-columns", {"cache", "list", "--columns", "digest,problem,config"}},
      {"table-config", {"cache", "config", "--wide"}},
      {"table-stats", {"cache", "stats"}},
      {"explain-gemm", {"explain", "?x7168x2048", "--device", "b200"}},
      {"explain-quantize", {"explain", "quantize"}},
      {"shapes-deepseek", {"shapes", "--model", "deepseek-v3", "--tp", "8", "--ep", "8"}},
  };
  for (const Case& one : cases) expect_golden(one);
}

// No line of a table, a help or an explanation is wider than the terminal, except where all columns
// are asked for, and canonical texts and names that are words of their own.
TEST_P(Golden, LinesFit) {
  const std::size_t width = std::stoul(GetParam());
  const std::vector<std::vector<std::string>> screens{
      {"help"},
      {"help", "compile"},
      {"help", "cache", "list"},
      {"cache", "list"},
      {"cache", "config"},
      {"cache", "stats"},
      {"help", "bench"},
      {"explain", "?x64x512"},
      {"tune", "--explain", "--gemm", "?x7168x2048"},
      {"help", "doctor"},
      {"explain", "transpose"},
      {"shapes", "--model", "deepseek-v3"},
      {"doctor"},
      {"emit", "--gemm", "64x7168x2048", "--explain"}};
  for (const auto& arguments : screens) {
    std::istringstream lines(screen_of(arguments));
    for (std::string line; std::getline(lines, line);) {
      const bool one_word = line.find_first_of(" ", line.find_first_not_of(" ")) == line.npos;
      const bool names_a_path = line.find('/') != line.npos;
      if (one_word || names_a_path || line.starts_with("    ")) continue;
      EXPECT_LE(line.size(), width) << line;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Columns, Golden, ::testing::Values("80", "160"),
                         [](const auto& columns) { return std::string(columns.param); });

}  // namespace
}  // namespace octile::tests
