// The checked-in report of the GPU suite: well-formed, all passed; and whether today's sources are
// the ones it was written for.
#include "tests/support/gpu_report.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

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

TEST(GpuReport, IsWellFormedAndAllPassed) {
  const nlohmann::json report = read_report();
  ASSERT_TRUE(report.is_object()) << "tests/gpu/REPORT.json is missing or not JSON";
  for (const char* key : {"device", "driver", "date", "results", "kernels", "launch_code"}) {
    ASSERT_TRUE(report.contains(key)) << key;
  }
  EXPECT_GT(report["results"].size(), 10U);
  for (const auto& [test, outcome] : report["results"].items())
    EXPECT_EQ(outcome, "passed") << test;
}

// Stale is a state between a change and its GPU run, so it does not fail the gate;
// OCTILE_GPU_REPORT=strict makes it.
TEST(GpuReport, SaysWhereItIsStale) {
  const nlohmann::json report = read_report();
  ASSERT_TRUE(report.is_object());
  const int stale = print_stale("kernel", report["kernels"], kernel_source_digests()) +
                    print_stale("launch code", report["launch_code"], launch_code_digests());
  std::printf("GPU report of %s on %s: %d stale\n", report["date"].get<std::string>().c_str(),
              report["device"].get<std::string>().c_str(), stale);
  const char* mode = std::getenv("OCTILE_GPU_REPORT");
  if (mode != nullptr && std::string(mode) == "strict") {
    EXPECT_EQ(stale, 0);
  }
}

}  // namespace
}  // namespace octile::tests
