// Runs the GPU suite. --report FILE writes what ran, on what, with which sources
// (tests/support/gpu_report.h).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/gpu/gemm_case.h"
#include "tests/gpu/session.h"
#include "tests/support/gpu_report.h"

namespace {

using octile::tests::GpuSession;

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

nlohmann::ordered_json results() {
  nlohmann::ordered_json tests;
  const testing::UnitTest& unit = *testing::UnitTest::GetInstance();
  for (int i = 0; i < unit.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *unit.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (!test.should_run()) continue;
      const char* outcome = test.result()->Skipped()  ? "skipped"
                            : test.result()->Passed() ? "passed"
                                                      : "FAILED";
      tests[fmt::format("{}.{}", test.test_suite_name(), test.name())] = outcome;
    }
  }
  return tests;
}

void write_report(const char* path) {
  nlohmann::ordered_json report;
  report["format"] = 1;
  report["date"] = today();
  report["device"] = GpuSession::get()->device().full_name;
  report["driver"] = GpuSession::get()->driver()->version_text();
  report["results"] = results();
  for (const int promote : {32, 64, 128}) {
    report["worst_c"][std::to_string(promote)] = octile::tests::worst_c_seen(promote);
  }
  report["kernels"] = octile::tests::kernel_source_digests();
  report["launch_code"] = octile::tests::launch_code_digests();
  std::ofstream(path) << report.dump(1) << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* report = nullptr;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--report") == 0) report = argv[i + 1];
  }
  const int failed = RUN_ALL_TESTS();
  if (report != nullptr && GpuSession::get() != nullptr) write_report(report);
  return failed;
}
