// Rules of the source tree: which files may tell families apart, which may include which, where
// files of the disk are touched, where the command prints, and where a kernel's policies meet.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace octile {
namespace {

namespace fs = std::filesystem;

struct Line {
  std::string file;  // relative to the source tree
  int number = 0;
  std::string text;
};

// Returns a line without its comment. Lines within a comment of C begin with " * ".
std::string without_comment(const std::string& line) {
  if (line.starts_with(" * ")) return {};
  return line.substr(0, std::min(line.find("//"), line.find("/*")));
}

// Returns all lines of the files under `folder` with one of the extensions, without comments.
std::vector<Line> lines_under(const std::string& folder,
                              const std::set<std::string>& extensions = {".cc", ".h"}) {
  std::vector<Line> lines;
  const fs::path root = OCTILE_SOURCE_DIR;
  for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
    if (!extensions.contains(entry.path().extension())) continue;
    std::ifstream file(entry.path());
    int number = 0;
    for (std::string text; std::getline(file, text);)
      lines.push_back({fs::relative(entry.path(), root), ++number, without_comment(text)});
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
                                    "runtime/families/families.h", "runtime/families/families.cc",
                                    "runtime/prove/families.cc"};
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

// Returns a pattern of code that touches files of the disk: streams, <filesystem>, and system calls
// by which a path is opened, examined or changed.
const std::regex& file_access() {
  static const std::regex pattern(
      "<f?stream>|<filesystem>|std::filesystem|\\b[io]?fstream\\b|\\b(fopen|fdopen|freopen|tmpfile)"
      "\\b|"
      "\\b(mkstemp|mkostemp|mkdtemp|opendir|fdopendir|readdir|scandir|glob|realpath|readlink)\\(|"
      "(^|[^\\w.>:])(::|std::)?(openat|creat|stat|lstat|fstat|fstatat|statx|access|faccessat|"
      "rename|"
      "renameat|unlink|unlinkat|mkdir|mkdirat|rmdir|chmod|fchmod|chown|truncate|link|linkat|"
      "symlink|utimensat|mknod|mkfifo)\\(|std::remove\\(|(^|[^\\w])::(open|read|write|mmap)\\(");
  return pattern;
}

// Files of a root may be another user's work, so each is opened with the same checks. The one place
// that opens them has these checks and the faults that tests inject.
// octile-compiler and the code that starts it open only files that the system gives every process:
// /dev/null, its own descriptors in /proc, and memory.
TEST(House, OnlyFileOpsTouchesFiles) {
  const std::string place = "cache/file_ops.cc";
  const std::set<std::string> of_the_process{"runtime/compiler/program.cc",
                                             "runtime/compiler/start_program.cc"};
  int found_there = 0;
  for (const char* folder : {"cache", "runtime"}) {
    for (const Line& line : lines_under(folder)) {
      const bool touches = std::regex_search(line.text, file_access());
      if (line.file == place) {
        found_there += touches ? 1 : 0;
      } else if (!of_the_process.contains(line.file)) {
        EXPECT_FALSE(touches) << place_of(line);
      }
    }
  }
  EXPECT_GT(found_there, 10) << "the pattern finds what " << place << " does";
}

TEST(House, ThePatternFindsAccessToFiles) {
  for (const char* text :
       {"#include <fstream>", "#include <filesystem>", "std::ifstream in(path);",
        "std::ofstream out(path, std::ios::trunc);", "FILE* f = std::fopen(path, \"rb\");",
        "const int fd = ::open(path.c_str(), O_RDONLY);", "::openat(fd, name, O_RDONLY)",
        "if (stat(path.c_str(), &info) != 0)", "std::rename(a, b);", "::unlink(path);",
        "std::filesystem::exists(path)", "::mkdir(path, 0700)", "::mmap(nullptr, n, 1, 2, fd, 0)"})
    EXPECT_TRUE(std::regex_search(text, file_access())) << text;
  for (const char* text :
       {"auto nvrtc = Nvrtc::open();", "return open(*path);", "root.remove(stem, status)",
        "struct stat status = {};", "ops.unlink_at(fd, name)", "const auto read = file.read();",
        "root_->open(Root::Missing::kFail)", "std::ostringstream text;"})
    EXPECT_FALSE(std::regex_search(text, file_access())) << text;
}

// Returns a pattern of code that makes or closes a descriptor.
const std::regex& descriptor_calls() {
  static const std::regex pattern(
      "\\b(socketpair|pipe2?|dup[23]?|accept4?|memfd_create|epoll_create1?|eventfd|timerfd_create|"
      "inotify_init1?|pidfd_open|fdopendir|closedir|openat)\\(|(^|[^\\w.>:])::(open|close|socket|"
      "creat)"
      "\\(|F_DUPFD");
  return pattern;
}

// A descriptor below 3 takes what the host prints, and one that a child of fork has keeps its lock
// or its connection. octile-compiler forks nothing and has what it opens for itself.
TEST(House, OnlyOneFileMakesDescriptors) {
  const std::set<std::string> places{"cache/descriptor.cc", "cache/descriptor.h",
                                     "runtime/compiler/program.cc"};
  int calls = 0;
  for (const char* folder : {"cache", "runtime"}) {
    std::string before;
    for (const Line& line : lines_under(folder)) {
      const bool made = std::regex_search(line.text, descriptor_calls());
      const bool is_kept = (before + line.text).find("new_descriptor(") != std::string::npos ||
                           line.text.find("closedir(dir)") != std::string::npos ||
                           line.text.find("fdopendir(fd)") != std::string::npos;
      if (!places.contains(line.file)) {
        EXPECT_TRUE(!made || is_kept) << place_of(line);
        calls += made ? 1 : 0;
      }
      before = line.text;
    }
  }
  EXPECT_GE(calls, 4) << "the pattern finds what cache/file_ops.cc does";
}

TEST(House, ThePatternFindsDescriptorsThatAreMade) {
  for (const char* text :
       {"::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data())", "const int fd = ::open(path, 0);",
        "::fcntl(fd, F_DUPFD_CLOEXEC, 3)", "::close(fd);", "::pipe2(ends, O_CLOEXEC)",
        "::openat(fd, name, O_RDONLY)", "::dup2(fd, 1)"})
    EXPECT_TRUE(std::regex_search(text, descriptor_calls())) << text;
  for (const char* text : {"auto nvrtc = Nvrtc::open();", "file.close();", "ops.open_at(fd, name)",
                           "ops_->close(fd)", "close_descriptor(fd)"})
    EXPECT_FALSE(std::regex_search(text, descriptor_calls())) << text;
}

// Returns a pattern of code that writes to a stream of the process.
const std::regex& printing() {
  static const std::regex pattern(
      "fmt::print|std::(cout|cerr|clog)\\b|\\b(v?f?printf|f?puts|f?putc|putchar|fwrite|perror)\\(");
  return pattern;
}

// Returns a pattern of facts that only a compute capability decides: an architecture's number, or
// the SMs, threads, registers and shared memory of one.
const std::regex& architecture() {
  static const std::regex pattern(
      "(sm|compute)_\\d\\d|\\b(132|1536|65536|232448|233472)\\b|\\b(99|100|227|228) \\* "
      "(1024|kKiB)|2048;|"
      "sm_(major|minor) *[<>=!]=? *[0-9]|kHopper");
  return pattern;
}

// Everything else asks a DeviceSpec, so that another GPU is a row of device_spec.cc.
TEST(House, OnlyTheDeviceSpecKnowsArchitectures) {
  const std::set<std::string> places{"generator/core/device_spec.cc",
                                     "generator/core/device_spec.h"};
  // Counts that no architecture decides, by the text that has them.
  const std::vector<std::string> others{"kMostGroups", "kMost = 65536", "kMostCalls",
                                        "kMostHistory", "rows of up to 65536 bytes"};
  int found_there = 0;
  for (const char* folder : {"generator", "cache", "runtime", "tools", "templates"}) {
    for (const Line& line : lines_under(folder, {".cc", ".h", ".cu", ".cuh"})) {
      if (line.file.starts_with("templates/lib/")) continue;  // the instructions' wrappers
      const bool knows = std::regex_search(line.text, architecture());
      if (places.contains(line.file)) {
        found_there += knows ? 1 : 0;
        continue;
      }
      const bool is_other = std::ranges::any_of(others, [&](const std::string& text) {
        return line.text.find(text) != std::string::npos;
      });
      EXPECT_TRUE(!knows || is_other) << place_of(line);
    }
  }
  EXPECT_GT(found_there, 10) << "the pattern finds what the device spec knows";
}

TEST(House, ThePatternFindsArchitectures) {
  for (const char* line :
       {"return \"sm_90a\";", "constexpr int kThreadsPerSm = 2048;", "sms * of_132 / 132;",
        "int smem = 228 * 1024;", "-gencode arch=compute_90a", "if (device.sm_major >= 9) {",
        "int registers = 65536;"}) {
    EXPECT_TRUE(std::regex_search(line, architecture())) << line;
  }
  for (const char* line : {"gemm m=? n=2048 k=512", "device.sm_count * 2", "sms_in_clusters(2, n)",
                           "1024 * 1024", "alarm_1320(x)"}) {
    EXPECT_FALSE(std::regex_search(line, architecture())) << line;
  }
}

// The command prints texts that others wrote. The one place that prints escapes control characters,
// survives a closed stderr and remembers that stdout failed. The library prints nothing;
// octile-compiler, whose stderr is /dev/null unless a person starts it, prints by itself.
TEST(House, OnlyOneFilePrints) {
  for (const char* folder : {"generator", "cache", "runtime", "tools"}) {
    for (const Line& line : lines_under(folder)) {
      // tools/cmake holds programs of the build.
      if (line.file == "tools/common/output.cc" || line.file.starts_with("tools/cmake/") ||
          line.file == "runtime/compiler/program.cc") {
        continue;
      }
      EXPECT_FALSE(std::regex_search(line.text, printing())) << place_of(line);
    }
  }
}

TEST(House, ThePatternFindsPrinting) {
  for (const char* text : {"fmt::print(\"{}\", x);", "std::cerr << x;", "std::fprintf(stderr, x);",
                           "puts(x);", "std::fwrite(x, 1, n, stdout);"})
    EXPECT_TRUE(std::regex_search(text, printing())) << text;
  for (const char* text :
       {"print_stdout(\"{}\", x);", "std::snprintf(b, n, x)", "print_json(all);"})
    EXPECT_FALSE(std::regex_search(text, printing())) << text;
}

// {fmt} 11 moved fmt::join from <fmt/format.h> into <fmt/ranges.h>.
TEST(House, FilesThatJoinIncludeRanges) {
  const std::string join = std::string("fmt::") + "join(";
  std::map<std::string, std::string> joins;
  std::set<std::string> includes;
  for (const char* folder : {"generator", "cache", "runtime", "tools", "tests"}) {
    for (const Line& line : lines_under(folder)) {
      if (line.text.find(join) != std::string::npos) joins[line.file] = place_of(line);
      if (line.text.starts_with("#include <fmt/ranges.h>")) includes.insert(line.file);
    }
  }
  EXPECT_GT(joins.size(), 20U);
  for (const auto& [file, place] : joins) EXPECT_TRUE(includes.contains(file)) << place;
}

// generator/core knows no family; a family knows the core and itself.
// Returns a pattern of functions that ask the locale, which is the host's.
const std::regex& asks_locale() {
  static const std::regex pattern(
      "<cctype>|<ctype.h>|(^|[^\\w.>])(std::)?(to(upper|lower)|is(alnum|alpha|blank|cntrl|digit|"
      "graph|"
      "lower|print|punct|space|upper|xdigit)|strto(d|f|ld)|sto(d|f|ld)|atof|setlocale)\\(");
  return pattern;
}

// Names of devices, numbers of files and settings mean the same in every locale.
TEST(House, NothingAsksTheLocale) {
  for (const char* folder : {"generator", "runtime", "tools", "cache"}) {
    for (const Line& line : lines_under(folder))
      EXPECT_FALSE(std::regex_search(line.text, asks_locale())) << place_of(line);
  }
}

TEST(House, ThePatternFindsFunctionsOfTheLocale) {
  for (const char* text : {"#include <cctype>", "c = std::tolower(c);", "if (isspace(c))",
                           "return std::stod(text);", "strtod(text, nullptr)"})
    EXPECT_TRUE(std::regex_search(text, asks_locale())) << text;
  for (const char* text : {"to_lower(c)", "is_digit(c)", "std::stoi(text)", "text.isalpha()"})
    EXPECT_FALSE(std::regex_search(text, asks_locale())) << text;
}

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

// In the runtime a family knows its own folders, in the parts of the runtime and in the generator.
TEST(House, FamiliesOfTheRuntimeDoNotKnowEachOther) {
  const std::regex include(
      "#include \"(?:runtime/families|runtime/reference|runtime/prove|generator)/([^/\"]+)/");
  for (const fs::path part : {"runtime/families", "runtime/reference", "runtime/prove"}) {
    int checked = 0;
    for (const Line& line : lines_under(part)) {
      std::smatch found;
      const fs::path folder = fs::path(line.file).parent_path();
      if (folder == part || !std::regex_search(line.text, found, include)) continue;
      EXPECT_TRUE(found[1] == "core" || found[1] == folder.filename().string()) << place_of(line);
      ++checked;
    }
    EXPECT_GT(checked, 0) << part;
  }
}

// A kernel's policies meet in kernel.cu alone, so that a new policy is one more file. The prologue
// names the types that nvcc and a reader see by default.
TEST(House, OnlyTheKernelKnowsItsPolicies) {
  const std::regex policy("OCTILE_(WALK|SCALE|OUTPUT)\\b");
  const std::regex others("gemm/(walk|scale|output)/|\\b(walk|scale|output)::");
  const std::set<std::string> places{"templates/gemm/kernel.cu",
                                     "templates/gemm/default_prologue.cuh"};
  int found_there = 0;
  for (const Line& line : lines_under("templates/gemm", {".cu", ".cuh"})) {
    const bool names_policy = std::regex_search(line.text, policy);
    if (places.contains(line.file)) {
      found_there += names_policy ? 1 : 0;
      continue;
    }
    EXPECT_FALSE(names_policy) << place_of(line);
    const std::string folder = fs::path(line.file).parent_path().filename();
    std::smatch other;
    if (folder == "gemm" || !std::regex_search(line.text, other, others)) continue;
    EXPECT_EQ(folder, other[1].matched ? other[1] : other[2]) << place_of(line);
  }
  EXPECT_EQ(found_there, 6);
}

// Returns what a line at the margin defines, or nothing: a constant or type by its name, a function
// by its name and its parameters.
std::string definition_of(const std::string& line) {
  static const std::regex constant(
      "^(?:static |inline )?const(?:expr)? [^=({\\[]*?\\b(k[A-Z]\\w*)\\b");
  static const std::regex type("^(?:struct|class|enum class) (\\w+)(?: final)?(?: :[^:].*)? \\{");
  static const std::regex function("^[A-Za-z_][\\w:<>,&* ]*[ &*](\\w+\\([^)]*)\\)");
  std::smatch found;
  for (const std::regex& pattern : {constant, type, function})
    if (std::regex_search(line, found, pattern)) return found[1];
  return {};
}

// The files of a folder may be compiled as one (octile_compile_together), where the names of their
// anonymous namespaces meet. Files that define a subcommand are compiled alone.
TEST(House, FilesOfAFolderDefineDifferentNames) {
  int checked = 0;
  for (const char* place : {"generator", "cache", "runtime", "tools"}) {
    std::set<std::string> alone;
    for (const Line& line : lines_under(place)) {
      if (line.text.starts_with("Command add_")) alone.insert(line.file);
    }
    // By folder, with the namespace of Octile's, and name.
    std::map<std::pair<std::string, std::string>, Line> definitions;
    std::string within;
    for (const Line& line : lines_under(place)) {
      const fs::path file = line.file;
      if (line.text.starts_with("namespace octile")) within = line.text;
      const std::string name = definition_of(line.text);
      if (name.empty() || file.extension() != ".cc" || alone.contains(line.file)) continue;
      if (file.parent_path() == "tools/cmake" || file == "runtime/compiler/program.cc") continue;
      const auto [first, is_new] =
          definitions.try_emplace({file.parent_path().string() + within, name}, line);
      ++checked;
      EXPECT_TRUE(is_new || first->second.file == line.file) << place_of(first->second) << "\n"
                                                             << place_of(line);
    }
  }
  EXPECT_GT(checked, 500);
}

TEST(House, ThePatternFindsDefinitions) {
  EXPECT_EQ(definition_of("constexpr std::size_t kMost = 3;"), "kMost");
  EXPECT_EQ(definition_of("constexpr std::array<const char*, 2> kNames{"), "kNames");
  EXPECT_EQ(definition_of("struct Options {"), "Options");
  EXPECT_EQ(definition_of("class A final : public B {"), "A");
  EXPECT_EQ(definition_of("Status run(const Options& options) {"), "run(const Options& options");
  EXPECT_EQ(definition_of("const char* text_of(int x) {"), "text_of(int x");
  for (const char* line : {"  constexpr int kInside = 1;", "struct Forward;", "}", "  return f(x);",
                           "using Json = nlohmann::json;", "Result<int> Engine::build(int n) {"})
    EXPECT_EQ(definition_of(line), "") << line;
}

}  // namespace
}  // namespace octile
