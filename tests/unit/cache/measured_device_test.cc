// Measurements of devices: their text, their file, and how an engine uses them.
#include "cache/measured_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "generator/gemm/candidates.h"
#include "generator/gemm/cost.h"
#include "runtime/engine/engine.h"
#include "tests/support/api_handles.h"
#include "tests/support/cache_testing.h"
#include "tools/doctor/measure.h"

namespace octile {
namespace {

using cache::MeasuredDevice;
using cache::MeasuredDevices;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

MeasuredDevice unknown_part() {
  return {"nvidia-h999", 96, 1.5, 2.25, 0.75, "13.0", "2026-11-25T22:10:00Z"};
}

TEST(MeasuredDevice, TextIsReadBack) {
  MeasuredDevice other = unknown_part();
  other.sm_count = 78;
  const std::vector<MeasuredDevice> devices{unknown_part(), other};
  const auto parsed = cache::parse_measured_devices(cache::to_json_text(devices));
  ASSERT_TRUE(parsed) << parsed.error();
  EXPECT_EQ(*parsed, devices);
  EXPECT_THAT(*cache::parse_measured_devices(cache::to_json_text({})), IsEmpty());
}

TEST(MeasuredDevice, WrongTextsAreNamed) {
  const std::string good = cache::to_json_text({unknown_part()});
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return cache::parse_measured_devices(text);
  };
  for (const auto& [from, to, why] : std::vector<std::array<std::string, 3>>{
           {"\"version\":1", "\"version\":2", "'version' is not 1"},
           {"\"sm_count\":96", "\"sm_count\":0", "'sm_count' is not 1 to 1024"},
           {"\"clock_ghz\":1.5", "\"clock_ghz\":0", "'clock_ghz' is not 0.1 to 10"},
           {"\"dram_tbps\":2.25", "\"dram_tbps\":1e9", "'dram_tbps' is not 0.01 to 100"},
           {"\"launch_us\":0.75", "\"launch_us\":\"soon\"", "'launch_us'"},
           {"\"devices\":[", "\"others\":[", "'devices' is not an array"},
           {"{", "", "not a JSON object"}}) {
    const auto parsed = with(from, to);
    ASSERT_FALSE(parsed) << to;
    EXPECT_THAT(parsed.error(), HasSubstr(why));
  }
}

TEST(MeasuredDevice, AFileHasOneLineOfEachDevice) {
  const test::TempFolder root;
  const MeasuredDevices file(root.path());
  EXPECT_THAT(file.read().value(), IsEmpty());
  MeasuredDevice device = unknown_part();
  ASSERT_TRUE(file.put(device));
  MeasuredDevice other = device;
  other.sm_count = 78;
  ASSERT_TRUE(file.put(other));
  device.dram_tbps = 3;
  ASSERT_TRUE(file.put(device));
  EXPECT_THAT(file.read().value(), ElementsAre(other, device));

  std::ofstream(file.path()) << "{";
  EXPECT_THAT(file.read().error().sentence, HasSubstr(file.path()));
  ASSERT_TRUE(file.put(device)) << "a broken file is replaced";
  EXPECT_THAT(file.read().value(), ElementsAre(device));
}

TEST(MeasuredDevice, AFileThatCannotBeReadKeepsItsDevices) {
  using cache::testing::HookedOps;
  using cache::testing::Op;
  const test::TempFolder root;
  const MeasuredDevices file(root.path());
  ASSERT_TRUE(file.put(unknown_part()));
  MeasuredDevice other = unknown_part();
  other.sm_count = 78;
  const auto failing = std::make_shared<HookedOps>(
      [](Op op) { return op == Op::kRead ? std::optional(EIO) : std::nullopt; });
  EXPECT_EQ(MeasuredDevices(root.path(), failing).put(other).error().code, EIO);
  EXPECT_THAT(file.read().value(), ElementsAre(unknown_part()));
}

class DescribedDevice : public ::testing::Test {
 protected:
  Logger logger{[this](LogLevel level, const std::string& message) {
                  if (level == LogLevel::kWarning) warnings.push_back(message);
                },
                LogLevel::kDebug};
  std::vector<std::string> warnings;
  test::TempFolder root;
};

TEST_F(DescribedDevice, OneThatTheLibraryDoesNotKnowHasItsMeasuredSpeeds) {
  ASSERT_TRUE(MeasuredDevices(root.path()).put(unknown_part()));
  Engine engine({root.path(), {}, false}, logger);
  DeviceSpec device = *find_device("h200");
  device.name = "nvidia-h999";
  device.sm_count = 96;
  const DeviceSpec described = engine.described(device);
  EXPECT_EQ(described.clock_ghz, 1.5);
  EXPECT_EQ(described.dram_tbps, 2.25);
  EXPECT_EQ(described.launch_us, 0.75);
  EXPECT_DOUBLE_EQ(described.l2_tbps, device.l2_tbps * 1.5 / device.clock_ghz);
  device.sm_count = 97;
  EXPECT_EQ(engine.described(device), device) << "another device";
  EXPECT_THAT(warnings, IsEmpty());
}

TEST_F(DescribedDevice, OneThatTheLibraryKnowsKeepsItsOwn) {
  const DeviceSpec& device = *find_device("h100");
  MeasuredDevice measured = unknown_part();
  measured.name = device.name;
  measured.sm_count = device.sm_count;
  ASSERT_TRUE(MeasuredDevices(root.path()).put(measured));
  Engine engine({root.path(), {}, false}, logger);
  EXPECT_EQ(engine.described(device), device);
}

// The description of an H20 is its datasheet's, which a measurement replaces.
TEST_F(DescribedDevice, OneThatNobodyTimedHasItsMeasuredSpeeds) {
  const DeviceSpec& device = *find_device("h20");
  MeasuredDevice measured = unknown_part();
  measured.name = device.name;
  measured.sm_count = device.sm_count;
  ASSERT_TRUE(MeasuredDevices(root.path()).put(measured));
  Engine engine({root.path(), {}, false}, logger);
  const DeviceSpec described = engine.described(device);
  EXPECT_EQ(described.dram_tbps, measured.dram_tbps);
  EXPECT_EQ(described.flops_per_cycle(MatrixUnit::kWgmma),
            device.flops_per_cycle(MatrixUnit::kWgmma));
}

TEST_F(DescribedDevice, ABrokenFileIsReportedOnceAndNotUsed) {
  std::ofstream(root.path() + "/devices.json") << "nonsense";
  std::filesystem::permissions(root.path() + "/devices.json", std::filesystem::perms::owner_read);
  Engine engine({root.path(), {}, false}, logger);
  DeviceSpec device = *find_device("h200");
  device.name = "nvidia-h999";
  EXPECT_EQ(engine.described(device), device);
  EXPECT_EQ(engine.described(device), device);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings.front(), HasSubstr("measured devices are not used: "));
}

// The clock of a measurement is the one at which the model's estimate is the measured time.
TEST(MeasureDevice, TheClockExplainsTheTimeOfTheGemm) {
  GemmProblem problem;
  problem.n = problem.k = 8192;
  const DeviceSpec& assumed = *find_device("h200");
  const GemmConfig config = default_config(problem, 8192, assumed);
  DeviceSpec slower = assumed;
  slower.clock_ghz *= 0.8;
  slower.fp8_tflops *= 0.8;
  slower.l2_tbps *= 0.8;
  const double us = estimate_us(config, problem, 8192, slower);
  EXPECT_NEAR(tools::clock_of(config, problem, 8192, us, assumed), slower.clock_ghz, 1e-6);
}

}  // namespace
}  // namespace octile
