// The checked-in report of the GPU suite is well-formed, all its tests passed, and it says whether
// it was written for today's sources and tests.
#include "tests/support/gpu_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace octile::tests {
namespace {

nlohmann::json read_report() {
  std::ifstream file(OCTILE_SOURCE_DIR "/tests/gpu/REPORT.json");
  return nlohmann::json::parse(file, nullptr, false);
}

int print_stale(const char* kind, const nlohmann::json& reported,
                const std::map<std::string, std::string>& today) {
  int stale = 0;
  for (const auto& [name, digest] : today) {
    if (reported.contains(name) && reported[name] == digest) continue;
    std::printf("STALE %s %s: the GPU suite has not run on this text\n", kind, name.c_str());
    ++stale;
  }
  return stale;
}

// Returns the names of the suite's tests as the report has them. (A line of a test begins with two
// spaces, a line of its suite with none; a parameter's value follows #.)
std::vector<std::string> tests_of_the_suite() {
  std::vector<std::string> names;
  const std::unique_ptr<FILE, int (*)(FILE*)> list(
      popen("'" OCTILE_GPU_SUITE_PATH "' --gtest_list_tests", "r"), pclose);
  std::string suite;
  std::array<char, 512> buffer{};
  while (list != nullptr && std::fgets(buffer.data(), buffer.size(), list.get()) != nullptr) {
    std::string line = buffer.data();
    line.resize(std::min(line.find_first_of("#\n"), line.size()));
    line.resize(line.find_last_not_of(' ') + 1);
    if (line.starts_with("  ")) {
      names.push_back(suite + line.substr(2));
    } else if (line.ends_with('.')) {
      suite = line;
    }
  }
  return names;
}

TEST(GpuReport, IsWellFormedAndAllPassed) {
  const nlohmann::json report = read_report();
  ASSERT_TRUE(report.is_object()) << "tests/gpu/REPORT.json is missing or not JSON";
  for (const char* key : {"device", "driver", "date", "tests", "kernels", "launch_code"}) {
    ASSERT_TRUE(report.contains(key)) << key;
  }
  EXPECT_GT(report["tests"].size(), 10U);
  for (const auto& [name, test] : report["tests"].items())
    EXPECT_EQ(test["outcome"], "passed") << name;
}

int print_missing(const nlohmann::json& tests) {
  const std::vector<std::string> names = tests_of_the_suite();
  EXPECT_GT(names.size(), 10U);
  int missing = 0;
  for (const std::string& name : names) {
    if (tests.contains(name)) continue;
    std::printf("STALE test %s: the report has no result of it\n", name.c_str());
    ++missing;
  }
  return missing;
}

// A report is stale between a change and its GPU run. This test then fails only if
// OCTILE_GPU_REPORT=strict is set.
TEST(GpuReport, SaysWhereItIsStale) {
  const nlohmann::json report = read_report();
  ASSERT_TRUE(report.is_object());
  const bool all = report.value("set", "all") == "all";
  const int stale = print_stale("kernels", report["kernels"], kernel_source_digests(all)) +
                    print_stale("launch code", report["launch_code"], launch_code_digests()) +
                    print_missing(report["tests"]);
  std::printf("GPU report of %s on %s: %d stale\n", report["date"].get<std::string>().c_str(),
              report["device"].get<std::string>().c_str(), stale);
  const char* mode = std::getenv("OCTILE_GPU_REPORT");
  if (mode != nullptr && std::string(mode) == "strict") {
    EXPECT_EQ(stale, 0);
  }
}

}  // namespace
}  // namespace octile::tests
