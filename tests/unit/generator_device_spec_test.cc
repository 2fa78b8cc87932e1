#include "generator/core/device_spec.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace octile {
namespace {

TEST(DeviceSpec, KnownDevicesAreFoundByName) {
  EXPECT_EQ(known_device_names(), "h200, h100, h20");
  std::set<std::string> names;
  for (const DeviceSpec& d : known_devices()) {
    EXPECT_TRUE(names.insert(d.name).second) << d.name << " appears twice";
    ASSERT_NE(find_device(d.name), nullptr);
    EXPECT_EQ(*find_device(d.name), d);
  }
  EXPECT_EQ(find_device("H200"), nullptr);  // names are lower case
  EXPECT_EQ(find_device(""), nullptr);
}

TEST(DeviceSpec, HopperCompilesForItsOwnFeatures) {
  for (const DeviceSpec& d : known_devices()) {
    EXPECT_EQ(d.arch(), "sm_90a") << d.name;
    EXPECT_TRUE(d.has_fp8_wgmma()) << d.name;
    EXPECT_EQ(d.max_smem_per_block_bytes, 232448) << d.name;
  }
  DeviceSpec ada;
  ada.sm_major = 8;
  ada.sm_minor = 9;
  EXPECT_EQ(ada.arch(), "sm_89");
  EXPECT_FALSE(ada.has_fp8_wgmma());
  DeviceSpec blackwell;
  blackwell.sm_major = 10;
  EXPECT_EQ(blackwell.arch(), "sm_100a");
  EXPECT_FALSE(blackwell.has_fp8_wgmma());  // its tensor cores use tcgen05 instead
}

// A field missing from a row would be zero, and the cost model would divide by zero.
TEST(DeviceSpec, EveryRateIsGivenAndPlausible) {
  for (const DeviceSpec& d : known_devices()) {
    SCOPED_TRACE(d.name);
    EXPECT_FALSE(d.full_name.empty());
    EXPECT_GT(d.sm_count, 0);
    EXPECT_GE(d.l2_bytes, std::int64_t{50} << 20);
    EXPECT_GT(d.clock_ghz, 1.0);
    EXPECT_LE(d.clock_ghz, 1.98);  // Hopper's boost limit
    EXPECT_GT(d.dram_tbps, 3.0);
    EXPECT_GT(d.launch_us, 0);
    // No chip computes more than 8192 dense FP8 flop per SM and cycle at the boost limit.
    EXPECT_GT(d.fp8_tflops, 0);
    EXPECT_LE(d.fp8_tflops, d.sm_count * 8192 * 1.98e-3);
    EXPECT_GT(d.l2_tbps, 0);
  }
  EXPECT_GT(find_device("h200")->dram_tbps, find_device("h100")->dram_tbps);
  EXPECT_LT(find_device("h20")->fp8_tflops, find_device("h100")->fp8_tflops / 5);
}

// What the datasheets' rates mean for an SM and a cycle, at the clock of the description.
TEST(DeviceSpec, TensorCoresHaveTheirDatasheetsRate) {
  EXPECT_EQ(find_device("h200")->fp8_flops_per_cycle(), 8192);
  EXPECT_EQ(find_device("h100")->fp8_flops_per_cycle(), 8192);
  EXPECT_EQ(find_device("h20")->fp8_flops_per_cycle(), 2048);
  for (const DeviceSpec& d : known_devices()) {
    const double tflops = d.fp8_flops_per_cycle() * d.sm_count * d.clock_ghz * 1e-3;
    EXPECT_NEAR(tflops / d.fp8_tflops, 1, 0.02) << d.name;
    EXPECT_EQ(d.is_measured, d.name != "h20") << d.name;
  }
  DeviceSpec slower = *find_device("h20");  // as a measured clock scales a description
  slower.clock_ghz *= 0.6;
  slower.fp8_tflops *= 0.6;
  EXPECT_EQ(slower.fp8_flops_per_cycle(), 2048);
}

}  // namespace
}  // namespace octile
