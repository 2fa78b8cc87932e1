// The twins of the structs that the kernels of checker.cu take, with the same order.
#pragma once

#include <cstdint>

#include "generator/gemm/problem.h"

namespace octile::tests {

constexpr unsigned kFillBlocks = 1024;
constexpr unsigned kFillThreads = 256;

struct DeviceOutput {  // Output
  const void* d;
  std::int64_t ldd;
  int d_type;
  int bias_type;  // 0: no bias
  const void* bias;
  double initial_d;
};

struct DeviceScales {  // Scales
  const void* p;
  std::int64_t ld;        // from one K-block to the next; 0: scales per row or per tensor
  std::int64_t row_step;  // from one row to the next; 0: one scale
  int format;             // of E8M0, ld leads to the next row_step rows
};
inline DeviceScales device_scales(const void* p, std::int64_t ld, const TensorType& type) {
  if (type.granularity == Granularity::k32x32) return {p, ld, 32, static_cast<int>(type.scale)};
  const bool one = type.granularity == Granularity::kPerTensor;
  return {p, has_block_scales(type) ? ld : 0, one ? 0 : 1, static_cast<int>(type.scale)};
}

struct DeviceVerdict {  // Verdict
  std::uint64_t violations;
  std::int64_t first;
  std::uint32_t worst_c;
  std::uint32_t worst_rel;
};

}  // namespace octile::tests
