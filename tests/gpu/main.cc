// Runs the GPU suite: its covering set of cases, or all of them with --all. --report FILE writes
// what ran, on what, with which sources (tests/support/gpu_report.h). It has no times, so a run of
// the same sources changes few of its lines. --records FILE appends what was measured: the largest
// errors of GEMMs, and the seconds of each test.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/measure/record.h"
#include "tests/gpu/gemm_case.h"
#include "tests/gpu/session.h"
#include "tests/support/coverage.h"
#include "tests/support/gpu_report.h"

namespace {

using octile::tests::GpuSession;

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

// Calls visit(name, test) for every test that ran.
template <typename Visit>
void for_each_test(const Visit& visit) {
  const testing::UnitTest& unit = *testing::UnitTest::GetInstance();
  for (int i = 0; i < unit.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *unit.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (test.should_run()) visit(fmt::format("{}.{}", test.test_suite_name(), test.name()), test);
    }
  }
}

const char* outcome_of(const testing::TestResult& result) {
  if (result.Skipped()) return "skipped";
  return result.Passed() ? "passed" : "FAILED";
}

long property_of(const testing::TestResult& result, const char* key) {
  for (int i = 0; i < result.test_property_count(); ++i) {
    const testing::TestProperty& property = result.GetTestProperty(i);
    if (std::strcmp(property.key(), key) == 0) return std::strtol(property.value(), nullptr, 10);
  }
  return 0;
}

double seconds(testing::TimeInMillis milliseconds) {
  constexpr double kMilliseconds = 1000;
  return static_cast<double>(milliseconds) / kMilliseconds;
}

// The counts of all tests, and of each its outcome and its counts.
struct Totals {
  long ran = 0, skipped = 0;
  nlohmann::ordered_json tests;
};

Totals totals() {
  Totals t;
  for_each_test([&](const std::string& name, const testing::TestInfo& test) {
    const testing::TestResult& result = *test.result();
    t.tests[name]["outcome"] = outcome_of(result);
    const long ran = property_of(result, octile::tests::kCasesRan);
    const long skipped = property_of(result, octile::tests::kCasesSkipped);
    if (ran + skipped == 0) return;
    t.tests[name]["ran"] = ran;
    t.tests[name]["skipped"] = skipped;
    t.ran += ran;
    t.skipped += skipped;
  });
  return t;
}

constexpr int kPromotions[] = {32, 64, 128, 256, 512, octile::kPromoteNone};

// Returns the report with a line for each member, and for each member of an object.
std::string in_lines(const nlohmann::ordered_json& report) {
  std::vector<std::string> members;
  for (const auto& [key, value] : report.items()) {
    std::vector<std::string> lines;
    if (value.is_object()) {
      for (const auto& [name, one] : value.items())
        lines.push_back(fmt::format("\n  {}: {}", nlohmann::json(name).dump(), one.dump()));
    }
    const std::string text =
        value.is_object() ? fmt::format("{{{}\n }}", fmt::join(lines, ",")) : value.dump();
    members.push_back(fmt::format("\n \"{}\": {}", key, text));
  }
  return fmt::format("{{{}\n}}\n", fmt::join(members, ","));
}

void write_report(const char* path) {
  nlohmann::ordered_json report;
  report["format"] = 2;
  report["date"] = today();
  report["device"] = GpuSession::get()->device().full_name;
  report["driver"] = GpuSession::get()->driver()->version_text();
  report["set"] = octile::tests::runs_all_cases() ? "all" : "covering";
  for (const int promote : kPromotions) {
    report["worst_c"][octile::promote_text(promote)] = octile::tests::worst_c_seen(promote);
  }
  report["tests"] = totals().tests;
  report["kernels"] = octile::tests::kernel_source_digests(octile::tests::runs_all_cases());
  report["launch_code"] = octile::tests::launch_code_digests();
  std::ofstream(path) << in_lines(report);
}

octile::Status append_to(const char* path) {
  octile::Record blank = octile::new_record("octile_gpu_suite", GpuSession::get()->device(),
                                            GpuSession::get()->driver()->version_text());
  blank.protocol.timing = "host";
  blank.details.add("set", octile::tests::runs_all_cases() ? "all" : "covering");
  std::vector<octile::Record> records;
  for_each_test([&](const std::string& name, const testing::TestInfo& test) {
    octile::Record record = blank;
    record.what = name;
    record.unit = "s";
    record.values = octile::measured({seconds(test.result()->elapsed_time())});
    record.ok = !test.result()->Failed();
    records.push_back(std::move(record));
  });
  for (const int promote : kPromotions) {
    octile::Record record = blank;
    record.what = "largest error of a GEMM";
    record.part = fmt::format("promote={}", octile::promote_text(promote));
    record.unit = "c";  // of generator/gemm/tolerance
    record.protocol.timing = "error";
    record.values = octile::measured({octile::tests::worst_c_seen(promote)});
    records.push_back(std::move(record));
  }
  return octile::append_records(path, records);
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char *report = nullptr, *records = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--all") == 0) setenv("OCTILE_TESTS", "all", 1);
    if (std::strcmp(argv[i], "--report") == 0 && i + 1 < argc) report = argv[i + 1];
    if (std::strcmp(argv[i], "--records") == 0 && i + 1 < argc) records = argv[i + 1];
  }
  const int failed = RUN_ALL_TESTS();
  if (GpuSession::get() == nullptr) return failed;
  const Totals t = totals();
  fmt::print("{}: {} cases ran, {} skipped{}\n",
             octile::tests::runs_all_cases() ? "all cases" : "covering set", t.ran, t.skipped,
             t.skipped > 0 ? " (--all runs them)" : "");
  if (report != nullptr) write_report(report);
  if (records == nullptr) return failed;
  if (const octile::Status kept = append_to(records); !kept) {
    fmt::print(stderr, "{}\n", kept.error().message);
    return 1;
  }
  return failed;
}
