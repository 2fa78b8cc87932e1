// Reads what a cubin says about its kernels: enough to check that bytes from a cache are the kernel
// that was asked for, without a driver.
//
// A cubin is a 64-bit little-endian ELF file. Its .nv.info sections hold records
// { u8 format, u8 attribute, u16 value, u8 payload[value] where format = 4 }. The global .nv.info
// carries per-function records keyed by symbol index, .nv.info.<kernel> the kernel's own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"

namespace octile {

struct CubinParameter {
  int offset_bytes = 0;
  int size_bytes = 0;
  friend bool operator==(const CubinParameter&, const CubinParameter&) = default;
};

struct CubinKernel {
  std::string name;
  int registers = 0;  // at entry: with setmaxnreg, warps may hold more or fewer later
  int frame_bytes = 0;
  int min_stack_bytes = 0;
  int max_threads = 0;  // from __launch_bounds__; 0: not stated
  int static_smem_bytes = 0;
  std::vector<CubinParameter> parameters;  // in order of declaration
  friend bool operator==(const CubinKernel&, const CubinKernel&) = default;
};

struct CubinInfo {
  int sm = 0;  // 90
  std::vector<CubinKernel> kernels;
  const CubinKernel* find(std::string_view name) const;  // null where absent
};

// Never reads outside `bytes`, never allocates more than a small multiple of them. Errors:
// kInternal, naming the check that failed.
Result<CubinInfo> read_cubin(std::span<const std::uint8_t> bytes);

// That the cubin is for `architecture` ("sm_90a") and holds `kernel` with exactly these parameter
// sizes. Errors: kInternal, saying what differs.
Status validate_cubin(std::span<const std::uint8_t> bytes, std::string_view architecture,
                      std::string_view kernel, std::span<const int> parameter_bytes);

}  // namespace octile
