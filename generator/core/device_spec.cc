#include "generator/core/device_spec.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

namespace octile {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// CUDA C++ Programming Guide, technical specifications, compute capability 9.0: 227 KiB of shared
// memory per block (opt-in) and 65,536 registers per SM.
constexpr int kHopperSmemBytes = 227 * 1024;
constexpr int kHopperRegisters = 65536;

// The datasheet's 1979 dense FP8 TFLOP/s over 132 SMs x 8192 flop per cycle. The boost limit is
// 1.98 GHz; large GEMMs run below both, at the power cap.
constexpr double kHopperClockGhz = 1.83;

// The time of an empty kernel as a node of a CUDA graph, measured on an H200.
constexpr double kHopperLaunchUs = 0.55;

// Fitted to 228 GEMM configurations on an H200: 132 SMs that read the same tiles together read up
// to 10.8 TB/s from L2. They read 5 to 6.4 TB/s if all lines are distinct.
constexpr double kL2TbpsPerSm = 10.8 / 132;

// Returns a Hopper GPU; fields that are not arguments are the same for all of them.
DeviceSpec hopper(std::string name, std::string full_name, int sm_count) {
  DeviceSpec d;
  d.name = std::move(name);
  d.full_name = std::move(full_name);
  d.sm_major = 9;
  d.sm_minor = 0;
  d.sm_count = sm_count;
  d.max_smem_per_block_bytes = kHopperSmemBytes;
  d.registers_per_sm = kHopperRegisters;
  d.clock_ghz = kHopperClockGhz;
  d.l2_tbps = sm_count * kL2TbpsPerSm;
  d.launch_us = kHopperLaunchUs;
  return d;
}

DeviceSpec h200() {
  DeviceSpec d = hopper("h200", "NVIDIA H200", 132);  // H200 datasheet
  d.l2_bytes = 60 * kMiB;                             // as the driver reports it
  d.fp8_tflops = 1979;                                // H200 SXM datasheet: 3958 with sparsity
  d.dram_tbps = 4.3;  // measured, read mostly; the datasheet says 4.8
  d.is_measured = true;
  return d;
}

DeviceSpec h100() {
  DeviceSpec d = hopper("h100", "NVIDIA H100 80GB HBM3", 132);  // SXM5, architecture whitepaper
  d.l2_bytes = 50 * kMiB;                                       // architecture whitepaper
  d.fp8_tflops = 1979;                                          // datasheet: 3958 with sparsity
  // The cost model explains by this stream the products of one token with weights of 80 MB and more
  // in eleven searches: they read 2.89 to 3.04 TB/s. The datasheet says 3.35.
  d.dram_tbps = 3.12;
  d.cluster_factor = 1.03;  // fitted to 168 searches (docs/experiments/cost_model.md)
  d.is_measured = true;
  return d;
}

DeviceSpec h20() {
  DeviceSpec d = hopper("h20", "NVIDIA H20", 78);  // H20 datasheet, as what follows
  d.l2_bytes = 60 * kMiB;
  d.fp8_tflops = 296;  // dense: 2048 flop per SM and cycle, a quarter of an H100's
  d.dram_tbps = 4.0;
  return d;
}

const std::array<DeviceSpec, 3>& devices() {
  static const std::array<DeviceSpec, 3> table{h200(), h100(), h20()};
  return table;
}

}  // namespace

// The suffix 'a' enables the architecture-specific features: WGMMA and setmaxnreg are only in
// sm_90a.
std::string DeviceSpec::arch() const {
  return fmt::format("sm_{}{}{}", sm_major, sm_minor, sm_major >= 9 ? "a" : "");
}

double DeviceSpec::fp8_flops_per_cycle() const {
  return std::exp2(std::round(std::log2(fp8_tflops * 1e3 / (sm_count * clock_ghz))));
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
