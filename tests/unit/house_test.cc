// Rules of the source tree: which files may tell families apart, and which may include which.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace octile {
namespace {

namespace fs = std::filesystem;

struct Line {
  std::string file;  // relative to the source tree
  int number = 0;
  std::string text;
};

// Returns all lines of the C++ files under `folder`, without // comments.
std::vector<Line> lines_under(const std::string& folder) {
  std::vector<Line> lines;
  const fs::path root = OCTILE_SOURCE_DIR;
  for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
    const std::string extension = entry.path().extension();
    if (extension != ".cc" && extension != ".h") continue;
    std::ifstream file(entry.path());
    int number = 0;
    for (std::string text; std::getline(file, text);)
      lines.push_back(
          {fs::relative(entry.path(), root), ++number, text.substr(0, text.find("//"))});
  }
  return lines;
}

std::string place_of(const Line& line) {
  return line.file + ":" + std::to_string(line.number) + ": " + line.text;
}

// Returns a pattern of code that decides by family: it looks into a variant over families.
const std::regex& dispatch() {
  static const std::regex pattern(
      "get_if<|holds_alternative<|std::visit\\b|std::get<[^>]*(Problem|Config|ConfigOf|Launch)\\b");
  return pattern;
}

TEST(House, OnlyTheListsOfFamiliesTellFamiliesApart) {
  const std::set<std::string> lists{"generator/families.h", "generator/families.cc",
                                    "runtime/families/families.h", "runtime/families/families.cc"};
  for (const char* folder : {"generator", "runtime", "tools", "cache"}) {
    for (const Line& line : lines_under(folder)) {
      if (lists.contains(line.file)) continue;
      EXPECT_FALSE(std::regex_search(line.text, dispatch())) << place_of(line);
    }
  }
}

TEST(House, ThePatternFindsALookIntoAVariant) {
  for (const char* text :
       {"if (const auto* gemm = std::get_if<GemmProblem>(&problem)) {",
        "std::holds_alternative<QuantizeProblem>(problem)", "return std::visit(f, problem);",
        "std::get<GemmConfig>(config)", "std::get<QuantizeLaunch>(kernel->launch)"})
    EXPECT_TRUE(std::regex_search(text, dispatch())) << text;
  for (const char* text : {"std::get<0>(pair)", "unique.get()", "std::get<std::string>(value)"})
    EXPECT_FALSE(std::regex_search(text, dispatch())) << text;
}

// generator/core knows no family; a family knows the core and itself.
TEST(House, FamiliesOfTheGeneratorDoNotKnowEachOther) {
  int checked = 0;
  const std::regex include("#include \"(generator/[^/\"]+)[/\"]");
  for (const Line& line : lines_under("generator")) {
    std::smatch found;
    const fs::path folder = fs::path(line.file).parent_path();
    if (folder == "generator" || !std::regex_search(line.text, found, include)) continue;
    EXPECT_TRUE(found[1] == "generator/core" || found[1] == folder.string()) << place_of(line);
    ++checked;
  }
  EXPECT_GT(checked, 0);
}

// In the runtime a family knows its own folders, in the runtime and in the generator.
TEST(House, FamiliesOfTheRuntimeDoNotKnowEachOther) {
  int checked = 0;
  const std::regex include("#include \"(?:runtime/families|generator)/([^/\"]+)/");
  for (const Line& line : lines_under("runtime/families")) {
    std::smatch found;
    const fs::path folder = fs::path(line.file).parent_path();
    if (folder == "runtime/families" || !std::regex_search(line.text, found, include)) continue;
    EXPECT_TRUE(found[1] == "core" || found[1] == folder.filename().string()) << place_of(line);
    ++checked;
  }
  EXPECT_GT(checked, 0);
}

}  // namespace
}  // namespace octile
