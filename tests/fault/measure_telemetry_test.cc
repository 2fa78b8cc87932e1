// NVML if it is missing, and which of its answers count.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/measure/telemetry.h"
#include "tests/support/fake_driver_control.h"

namespace octile {
namespace {

using ::testing::HasSubstr;

TEST(Telemetry, WithoutNvmlNothingIsKnownAndNothingIsLost) {
  const test::FakeDriver fake;
  const auto driver = fake.open();
  const Telemetry telemetry = Telemetry::open(*driver, 0, "/nonexistent/libnvidia-ml.so.1");
  EXPECT_THAT(telemetry.missing(), HasSubstr("/nonexistent/libnvidia-ml.so.1"));
  const DeviceTelemetry state = telemetry.read();
  EXPECT_EQ(state.sm_clock_mhz, 0);
  EXPECT_EQ(state.power_watts, 0);
  EXPECT_FALSE(state.throttled);
}

TEST(Telemetry, ALibraryThatIsNotNvmlIsRefusedByName) {
  const test::FakeDriver fake;
  const Telemetry telemetry = Telemetry::open(*fake.open(), 0, OCTILE_FAKE_DRIVER_PATH);
  EXPECT_THAT(telemetry.missing(), HasSubstr("has no nvmlInit_v2"));
}

TEST(Telemetry, HeatAndProtectionThrottleThePowerCapDoesNot) {
  EXPECT_FALSE(is_throttling(0));
  for (const unsigned benign :
       {0x1U, 0x2U, 0x4U, 0x10U, 0x100U})  // idle, set clocks, power cap, ...
    EXPECT_FALSE(is_throttling(benign)) << benign;
  for (const unsigned throttling : {0x8U, 0x20U, 0x40U, 0x80U})
    EXPECT_TRUE(is_throttling(throttling | 0x4U)) << throttling;
}

}  // namespace
}  // namespace octile
