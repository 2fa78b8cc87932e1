// A GPU as plain data, so that kernels can be made for a GPU that this machine does not have. The
// runtime fills in a description of a live device; known_devices() has those of absent ones.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace octile {

struct DeviceSpec {
  std::string name;       // canonical, lower case: "h200"
  std::string full_name;  // as the driver says it: "NVIDIA H200"
  int sm_major = 9;
  int sm_minor = 0;
  int sm_count = 0;
  int max_smem_per_block_bytes = 0;  // opt-in limit
  int registers_per_sm = 65536;
  std::int64_t l2_bytes = 0;
  double clock_ghz = 0;   // sustained under matrix load
  double fp8_tflops = 0;  // dense, datasheet
  double dram_tbps = 0;   // measured stream, read mostly
  double l2_tbps = 0;     // L2 to SM, measured or estimated
  double launch_us = 0;   // an empty kernel as a graph node
  // Time of a large GEMM whose CTAs share operands in clusters, over what an H200 takes for it when
  // GEMMs without clusters take the same on both.
  double cluster_factor = 1;
  // False: no card of this name was timed. Its speeds are the datasheet's or scaled from another
  // card's, and the cost model's constants, which are fitted to an H200 and an H100, are assumed.
  bool is_measured = false;
  // Returns the dense FP8 operations of an SM in a cycle: what the datasheet's rate means at
  // clock_ghz, as the nearest power of two.
  double fp8_flops_per_cycle() const;
  bool has_fp8_wgmma() const { return sm_major == 9 && sm_minor == 0; }
  std::string arch() const;  // "sm_90a"
  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

std::span<const DeviceSpec> known_devices();           // h200, h100, h20
const DeviceSpec* find_device(std::string_view name);  // by `name`, nullptr when unknown
std::string known_device_names();

}  // namespace octile
