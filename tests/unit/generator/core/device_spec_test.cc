#include "generator/core/device_spec.h"
#include "generator/core/sum_bits.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace octile {
namespace {

TEST(DeviceSpec, KnownDevicesAreFoundByName) {
  std::set<std::string> names;
  for (const DeviceSpec& d : known_devices()) {
    EXPECT_TRUE(names.insert(d.name).second) << d.name << " appears twice";
    ASSERT_NE(find_device(d.name), nullptr);
    EXPECT_EQ(*find_device(d.name), d);
    EXPECT_EQ(find_named(d.full_name), find_device(d.name)) << d.full_name;
  }
  EXPECT_EQ(find_device(""), nullptr);
  EXPECT_EQ(find_device("-"), nullptr);
}

// Names as users and the driver write them. A card that is none of the known ones has another name.
TEST(DeviceSpec, NamesAreReadAsTheyAreWritten) {
  for (const auto& [written, name] : std::initializer_list<std::pair<const char*, const char*>>{
           {"H200", "h200"},
           {"L40S", "l40s"},
           {"rtx-4090", "rtx4090"},
           {"geforce-rtx-4090", "rtx4090"},
           {"NVIDIA GeForce RTX 5090", "rtx5090"},
           {"RTX-PRO-6000", "rtxpro6000"}}) {
    ASSERT_NE(find_device(written), nullptr) << written;
    EXPECT_EQ(find_device(written)->name, name);
  }
  for (const char* other : {"l40", "h100-pcie", "h100-80gb-hbm3", "rtx-4090-laptop-gpu", "4090"}) {
    EXPECT_EQ(find_device(other), nullptr) << other;
  }
  EXPECT_EQ(find_named("h100-80gb-hbm3")->name, "h100");
  EXPECT_EQ(find_named("geforce-rtx-4090-laptop-gpu")->name, "rtx4090");
  EXPECT_EQ(find_named("l40"), nullptr);
}

// The CUDA C++ Programming Guide's technical specifications.
TEST(DeviceSpec, TheCapabilityDecides) {
  const DeviceSpec& hopper = *find_device("h100");
  EXPECT_EQ(hopper.arch(), "sm_90a");
  EXPECT_EQ(hopper.units, (std::vector{MatrixUnit::kWgmma, MatrixUnit::kMma}));
  EXPECT_TRUE(hopper.has_tma && hopper.has_clusters && hopper.has_multicast && hopper.has_pdl &&
              hopper.has_setmaxnreg);
  EXPECT_EQ(hopper.max_smem_per_block_bytes, 232448);
  EXPECT_EQ(hopper.threads_per_sm, 2048);

  const DeviceSpec& ada = *find_device("l4");
  EXPECT_EQ(ada.arch(), "sm_89");
  EXPECT_EQ(ada.units, std::vector{MatrixUnit::kMma});
  EXPECT_FALSE(ada.has_tma || ada.has_clusters || ada.has_multicast || ada.has_pdl ||
               ada.has_setmaxnreg);
  EXPECT_EQ(ada.max_smem_per_block_bytes, 99 * 1024);
  EXPECT_EQ(ada.threads_per_sm, 1536);

  const DeviceSpec& geforce = *find_device("rtx5090");
  EXPECT_EQ(geforce.arch(), "sm_120a");
  EXPECT_EQ(geforce.default_unit(), MatrixUnit::kMmaScaled);
  EXPECT_TRUE(geforce.has_tma && geforce.has_clusters && geforce.has_pdl);
  EXPECT_FALSE(geforce.has_multicast);
  EXPECT_EQ(find_device("b200")->arch(), "sm_100a");
  EXPECT_EQ(find_device("b300")->arch(), "sm_103a");
  EXPECT_EQ(find_device("b300")->default_unit(), MatrixUnit::kTcgen05);

  const DeviceSpec ampere = with_capability({}, 8, 0);
  EXPECT_EQ(ampere.default_unit(), std::nullopt);
  EXPECT_TRUE(with_capability({}, 99, 0).units.empty());
}

// Every field that the capability decides is the same in all cards of one.
TEST(DeviceSpec, CardsOfACapabilityAgree) {
  for (const DeviceSpec& d : known_devices()) {
    EXPECT_EQ(with_capability(d, d.sm_major, d.sm_minor), d) << d.name;
  }
}

TEST(DeviceSpec, ClustersLeaveSomeSmsOver) {
  EXPECT_EQ(sms_in_clusters(2, 132), 132);
  EXPECT_EQ(sms_in_clusters(3, 132) / 3, 39);
  EXPECT_EQ(sms_in_clusters(8, 132) / 8, 15);
}

// A field missing from a row would be zero, and the cost model would divide by zero.
TEST(DeviceSpec, EveryRateIsGivenAndPlausible) {
  for (const DeviceSpec& d : known_devices()) {
    SCOPED_TRACE(d.name);
    EXPECT_FALSE(d.full_name.empty());
    EXPECT_GT(d.sm_count, 0);
    EXPECT_GE(d.l2_bytes, std::int64_t{48} << 20);
    EXPECT_GT(d.clock_ghz, 1.0);
    EXPECT_LE(d.clock_ghz, 2.7);
    EXPECT_GE(d.dram_tbps, 0.3);
    EXPECT_GE(d.dram_gb, 24);
    EXPECT_LE(d.dram_gb, 288);
    EXPECT_GT(d.launch_us, 0);
    EXPECT_GT(d.fp8_tflops, 0);
    EXPECT_GT(d.l2_tbps, d.dram_tbps);
  }
  EXPECT_LE(find_device("h100")->clock_ghz, 1.98);  // Hopper's boost limit
  EXPECT_GT(find_device("h200")->dram_tbps, find_device("h100")->dram_tbps);
  EXPECT_LT(find_device("h20")->fp8_tflops, find_device("h100")->fp8_tflops / 5);
}

// Hopper and Ada keep as many bits of a sum; none keeps fewer.
TEST(DeviceSpec, TheUnitDecidesTheBitsOfSums) {
  EXPECT_EQ(find_device("h200")->sum_bits(), 13);
  EXPECT_EQ(find_device("l40s")->sum_bits(), 13);
  EXPECT_EQ(find_device("rtx5090")->sum_bits(), 25);
  EXPECT_EQ(find_device("b200")->sum_bits(), 25);
  // ptxas makes mma.sync of FP8 of that of FP16 on Hopper and B200.
  EXPECT_EQ(sum_bits(*find_device("h200"), MatrixUnit::kWgmma), 13);
  EXPECT_EQ(sum_bits(*find_device("h200"), MatrixUnit::kMma), 25);
  EXPECT_EQ(sum_bits(*find_device("l40s"), MatrixUnit::kMma), 13);
  EXPECT_EQ(sum_bits(*find_device("b200"), MatrixUnit::kMma), 25);
  EXPECT_EQ(sum_bits(*find_device("rtx5090"), MatrixUnit::kMma), 25);
  EXPECT_EQ(sum_bits(*find_device("rtx5090"), MatrixUnit::kWgmma), kFewestSumBits);
  EXPECT_EQ(with_capability({}, 99, 0).sum_bits(), kFewestSumBits);
  EXPECT_EQ(sum_precision(*find_device("l40s"), MatrixUnit::kMma), (SumPrecision{13, 16}));
  EXPECT_EQ(sum_precision(*find_device("h200"), MatrixUnit::kMma), (SumPrecision{25, 16}));
  EXPECT_EQ(coarsest_sums(*find_device("h200")), (SumPrecision{13, 32}));
  EXPECT_EQ(coarsest_sums(*find_device("b200")), (SumPrecision{25, 16}));
  for (const DeviceSpec& d : known_devices()) EXPECT_GE(d.sum_bits(), kFewestSumBits) << d.name;
}

// The datasheets' rates of an SM and a cycle, at the clock of the description.
TEST(DeviceSpec, TensorCoresHaveTheirDatasheetsRate) {
  const auto rate = [](const char* name, MatrixUnit unit) {
    return find_device(name)->flops_per_cycle(unit);
  };
  EXPECT_EQ(rate("h200", MatrixUnit::kWgmma), 8192);
  EXPECT_EQ(rate("h100", MatrixUnit::kWgmma), 8192);
  EXPECT_EQ(rate("h20", MatrixUnit::kWgmma), 2048);
  EXPECT_EQ(rate("l40s", MatrixUnit::kMma), 2048);
  EXPECT_EQ(rate("rtx4090", MatrixUnit::kMma), 1024);  // GeForce halves fp32 sums
  EXPECT_EQ(rate("rtx5090", MatrixUnit::kMmaScaled), 2048);
  EXPECT_EQ(rate("rtx5090", MatrixUnit::kMma), 1024);
  EXPECT_EQ(rate("b200", MatrixUnit::kTcgen05), 16384);
  EXPECT_EQ(rate("l40s", MatrixUnit::kWgmma), 0);
  for (const DeviceSpec& d : known_devices()) {
    const double tflops = d.flops_per_cycle(*d.default_unit()) * d.sm_count * d.clock_ghz * 1e-3;
    EXPECT_NEAR(tflops / d.fp8_tflops, 1, 0.02) << d.name;
    EXPECT_EQ(d.is_measured, d.name == "h200" || d.name == "h100") << d.name;
  }
  DeviceSpec slower = *find_device("h20");  // as a measured clock scales a description
  slower.clock_ghz *= 0.6;
  slower.fp8_tflops *= 0.6;
  EXPECT_EQ(slower.flops_per_cycle(MatrixUnit::kWgmma), 2048);
}

}  // namespace
}  // namespace octile
