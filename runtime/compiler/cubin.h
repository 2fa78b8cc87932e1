// Parses a cubin's description of its kernels without a driver. This suffices to check that bytes
// from a cache are the requested kernel.
//
// A cubin is a 64-bit little-endian ELF file. Its .nv.info sections hold records { u8 format, u8
// attribute, u16 value, u8 payload[value] if format = 4 }. The global .nv.info section holds
// per-function records keyed by symbol index; .nv.info.<kernel> holds the kernel's own.
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
  int registers = 0;  // at entry; setmaxnreg may change the count of a warp later
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
  const CubinKernel* find(std::string_view name) const;  // null if absent
};

// Returns the kernels of a cubin. Never reads outside `bytes` and never allocates more than a small
// multiple of their size. Errors: kInternal, naming the check that failed.
Result<CubinInfo> read_cubin(std::span<const std::uint8_t> bytes);

// Checks that the cubin is for `architecture` ("sm_90a") and holds `kernel` with exactly these
// parameter sizes. Errors: kInternal, saying what differs.
Status validate_cubin(std::span<const std::uint8_t> bytes, std::string_view architecture,
                      std::string_view kernel, std::span<const int> parameter_bytes);

}  // namespace octile
