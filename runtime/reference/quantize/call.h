// A call of the quantise family, complete: the host executor and the launch read it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "octile/octile.h"

namespace octile {

struct QuantizeCall {
  std::int64_t rows = 0;
  const void* x = nullptr;
  std::int64_t ldx = 0;  // in elements, as the other leading dimensions of x and q
  void* q = nullptr;
  std::int64_t ldq = 0;
  void* scale = nullptr;
  std::int64_t scale_ld = 0;           // in scales
  std::int64_t scale_group_bytes = 0;  // from one group's row-wise scales to the next's
  void* q_transposed = nullptr;
  std::int64_t ldq_transposed = 0;
  void* scale_transposed = nullptr;
  std::int64_t scale_ld_transposed = 0;
  const float* encode_scale = nullptr;        // for delayed scaling
  float* recorded_scale = nullptr;            // per tensor, not delayed: the encode scale of x
  float* amax = nullptr;                      // per tensor: raised to the finite amax of x
  const std::uint32_t* skip = nullptr;        // not null and not 0: nothing is done
  octile_fingerprint* fingerprint = nullptr;  // of x in the call before, if the problem compares
  // These equal the fields of octile_quantize_args, which documents them.
  const void* x_scale = nullptr;
  std::int64_t x_scale_ld = 0;
  std::array<const void*, 3> more{};  // x1 to x3
  std::array<std::int64_t, 3> more_ld{};
  float* rstd = nullptr;
  const float* row_factor = nullptr;
  float* bias_gradient = nullptr;
  float* tap = nullptr;
  // Offsets of contiguous groups, counts of masked ones, or the index of operation "gather".
  const std::int32_t* row_index = nullptr;
  std::int64_t row_count = 0;  // groups, or the rows of x that an index may name
  std::uint64_t* nonfinite = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  bool is_empty = false;  // there is no row, column or group

  bool has_work() const { return !is_empty; }
};

}  // namespace octile
