// A GPU as plain data, so that kernels can be made for a GPU that this machine does not have. The
// runtime fills in a description of a live device; known_devices() has those of absent ones.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/matrix_unit.h"

namespace octile {

struct DeviceSpec {
  std::string name;       // canonical, lower case: "h200"
  std::string full_name;  // as the driver says it: "NVIDIA H200"
  // Decided by the compute capability; with_capability() fills it in.
  int sm_major = 9;
  int sm_minor = 0;
  std::vector<MatrixUnit> units;  // that multiply FP8; the first is the default; empty: none does
  // Those of them by which no kernel is chosen: no card is known to compute right by them, and a
  // test on the card itself has not passed yet; or it has failed
  // (runtime/engine/trusted_devices.h).
  std::vector<MatrixUnit> unused_units;
  // True: no kernel is chosen in which tcgen05 multiplies scales of blocks. Tests of these kernels
  // on the card, which follow those of the unit, have not passed yet; or one has failed.
  bool has_unused_scales = false;
  bool has_tma = false;         // bulk copies of tensors to shared memory; false: cp.async alone
  bool has_clusters = false;    // whether thread blocks may read each other's shared memory
  bool has_multicast = false;   // a copy to several blocks of a cluster costs one read
  bool has_pdl = false;         // griddepcontrol: a kernel may start before the one before it ends
  bool has_setmaxnreg = false;  // warpgroups hand registers to each other
  bool has_u16x2 = false;       // min and max of two 16-bit integers at once
  int threads_per_sm = 0;
  int blocks_per_sm = 0;
  int smem_per_sm_bytes = 0;
  int max_smem_per_block_bytes = 0;  // opt-in limit
  int registers_per_sm = 0;

  int sm_count = 0;
  std::int64_t l2_bytes = 0;
  double clock_ghz = 0;   // sustained under matrix load; of cards not measured, the boost clock
  double fp8_tflops = 0;  // dense, of the default unit with fp32 sums, datasheet
  double dram_tbps = 0;   // measured stream, read mostly; of cards not measured, the datasheet's
  double dram_gb = 0;     // of 2^30 bytes, as datasheets count memory; 0: not known
  double l2_tbps = 0;     // L2 to SM, measured or estimated
  double launch_us = 0;   // an empty kernel as a graph node
  // Time of a large GEMM whose CTAs share operands in clusters, over an H200's time for it when
  // GEMMs without clusters take the same on both.
  double cluster_factor = 1;
  // The GPU suite's report (tests/gpu/REPORT.json) is of a card with this compute capability.
  bool is_proven = false;
  // False: no card of this name was timed. Its speeds are the datasheet's or scaled from another
  // card's, and the cost model's constants, which are fitted to an H200 and an H100, are assumed.
  bool is_measured = false;

  bool has_unit(MatrixUnit unit) const;
  bool is_unused(MatrixUnit unit) const;
  // Returns the device as it is once the tests of all its units have passed.
  DeviceSpec with_all_units() const;
  // Returns whether the unit has kernels whose instruction multiplies scales of blocks, by which
  // kernels are chosen.
  bool multiplies_scales(MatrixUnit unit) const;
  // Returns the first unit by which kernels are chosen.
  std::optional<MatrixUnit> serving_unit() const;
  std::optional<MatrixUnit> default_unit() const;
  // Returns the dense FP8 operations with fp32 sums of an SM in a cycle; 0 without the unit. The
  // default unit's is that of the datasheet's rate at clock_ghz, as the nearest power of two.
  double flops_per_cycle(MatrixUnit unit) const;
  // Returns the bits behind the binary point that the default unit keeps of a sum.
  int sum_bits() const;
  std::string arch() const;        // "sm_90a"
  std::string capability() const;  // "9.0"
  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

// The driver takes so much of an SM's shared memory for every resident thread block (CUDA C++
// Programming Guide, technical specifications, compute capability 8.0 and newer).
inline constexpr int kReservedSmemPerBlock = 1024;

// The fewest bits that a unit keeps of a sum (sum_bits).
inline constexpr int kFewestSumBits = 13;

// Static shared memory of a thread block on every device (the same tables).
inline constexpr int kMostStaticSmem = 48 * 1024;
// Thread blocks of a cluster that every device with clusters runs.
inline constexpr int kPortableCluster = 8;
// Limits of a thread block and its cluster on any device: the largest opt-in limit of shared
// memory, and a non-portable cluster.
inline constexpr int kMostSmemPerBlock = 227 * 1024;
inline constexpr int kMostCluster = 16;

// Returns the description with all that its compute capability decides. It is the one place that
// knows architectures by their numbers; named and live devices both come from it.
DeviceSpec with_capability(DeviceSpec device, int sm_major, int sm_minor);

// Returns the SMs that clusters of this number of thread blocks reach. A cluster lies within one
// GPC, so that some SMs are left over.
int sms_in_clusters(int cluster_size, int sm_count);

// Returns the cards that kernels can be made for, those of which kernels exist first.
std::span<const DeviceSpec> known_devices();
// Returns the known device of that name, nullptr if there is none. Case, '-' and the words "nvidia"
// and "geforce" do not count: "GeForce-RTX-4090" is rtx4090.
const DeviceSpec* find_device(std::string_view name);
// Returns the compute capability that a text names, if it is older than FP8 conversions and tensor
// cores: "8.0" of "sm_80", "A100". Empty for any other text.
std::string older_capability(std::string_view name);
// The oldest capability with kernels.
inline constexpr std::string_view kOldestCapability = "8.9";
// Returns the known device whose name stands in the driver's, with any number of SMs:
// "geforce-rtx-4090-laptop-gpu" has rtx4090.
const DeviceSpec* find_named(std::string_view driver_name);

}  // namespace octile
