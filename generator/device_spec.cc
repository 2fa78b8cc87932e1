#include "generator/device_spec.h"

#include <fmt/format.h>

#include <array>

namespace octile {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// CUDA C++ Programming Guide, technical specifications, compute capability 9.0: 227 KiB of shared
// memory per block (opt-in) and 65,536 registers per SM.
constexpr int kHopperSmemBytes = 227 * 1024;
constexpr int kHopperRegisters = 65536;

// The datasheet's 1979 dense FP8 TFLOP/s over 132 SMs x 8192 flop per cycle. The boost limit is
// 1.98 GHz; large products run below either, at the power cap.
constexpr double kHopperClockGhz = 1.83;

// Measured on an H200: an empty kernel as a node of a CUDA graph.
constexpr double kHopperLaunchUs = 0.55;

// Fitted to 228 GEMM configurations on an H200: 132 SMs that read the same tiles together draw up
// to 10.8 TB/s from L2 (distinct lines: 5 to 6.4).
constexpr double kL2TbpsPerSm = 10.8 / 132;

const std::array<DeviceSpec, 3>& devices() {
  static const std::array<DeviceSpec, 3> table{{
      {.name = "h200",
       .full_name = "NVIDIA H200",
       .sm_major = 9,
       .sm_minor = 0,
       .sm_count = 132,  // H200 datasheet
       .max_smem_per_block_bytes = kHopperSmemBytes,
       .registers_per_sm = kHopperRegisters,
       .l2_bytes = 60 * kMiB,  // as the driver reports it
       .clock_ghz = kHopperClockGhz,
       .fp8_tflops = 1979,  // H200 SXM datasheet: 3958 with sparsity
       .dram_tbps = 4.3,    // measured, read mostly; the datasheet says 4.8
       .l2_tbps = 132 * kL2TbpsPerSm,
       .launch_us = kHopperLaunchUs},
      {.name = "h100",
       .full_name = "NVIDIA H100 80GB HBM3",
       .sm_major = 9,
       .sm_minor = 0,
       .sm_count = 132,  // H100 SXM5, NVIDIA H100 architecture whitepaper
       .max_smem_per_block_bytes = kHopperSmemBytes,
       .registers_per_sm = kHopperRegisters,
       .l2_bytes = 50 * kMiB,  // H100 architecture whitepaper
       .clock_ghz = kHopperClockGhz,
       .fp8_tflops = 1979,  // H100 SXM datasheet: 3958 with sparsity
       .dram_tbps = 3.35,   // H100 SXM datasheet; not measured
       .l2_tbps = 132 * kL2TbpsPerSm,
       .launch_us = kHopperLaunchUs},
      {.name = "h20",
       .full_name = "NVIDIA H20",
       .sm_major = 9,
       .sm_minor = 0,
       .sm_count = 78,  // H20 datasheet
       .max_smem_per_block_bytes = kHopperSmemBytes,
       .registers_per_sm = kHopperRegisters,
       .l2_bytes = 60 * kMiB,  // H20 datasheet
       .clock_ghz = kHopperClockGhz,
       // H20 datasheet, dense: 0.15 of an H100 on 0.59 of its SMs, so not 8192 flop per cycle.
       .fp8_tflops = 296,
       .dram_tbps = 4.0,  // H20 datasheet; not measured
       .l2_tbps = 78 * kL2TbpsPerSm,
       .launch_us = kHopperLaunchUs},
  }};
  return table;
}

}  // namespace

// 'a' names the architecture-specific features: WGMMA and setmaxnreg exist in sm_90a only.
std::string DeviceSpec::arch() const {
  return fmt::format("sm_{}{}{}", sm_major, sm_minor, sm_major >= 9 ? "a" : "");
}

std::span<const DeviceSpec> known_devices() { return devices(); }

const DeviceSpec* find_device(std::string_view name) {
  for (const DeviceSpec& d : devices()) {
    if (d.name == name) return &d;
  }
  return nullptr;
}

std::string known_device_names() {
  std::string names;
  for (const DeviceSpec& d : devices()) names += (names.empty() ? "" : ", ") + d.name;
  return names;
}

}  // namespace octile
