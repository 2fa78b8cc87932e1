// The quantise family on the host, bit for bit as docs/numerics.md defines it, with several threads
// over blocks. The reference executor runs it instead of a launch, and every GPU quantiser is
// compared with it.
#pragma once

#include <array>
#include <cstdint>

#include "generator/core/error.h"
#include "generator/quantize/problem.h"
#include "runtime/reference/quantize/reference_scale.h"

namespace octile::reference {

struct QuantizeArgs {
  std::int64_t rows = 0;
  const void* x = nullptr;
  std::int64_t ldx = 0;  // in elements; 0: default_ld, also of the others
  void* q = nullptr;
  std::int64_t ldq = 0;
  void* scale = nullptr;
  std::int64_t scale_ld = 0;  // 0: the value from quantized_layout
  void* q_transposed = nullptr;
  void* scale_transposed = nullptr;
  const float* encode_scale = nullptr;  // for delayed scaling
  float* amax = nullptr;                // per tensor: raised to the finite amax of x
  const std::uint32_t* skip = nullptr;  // not null and not 0: nothing is done
  // These equal the fields of octile_quantize_args, which documents them.
  const void* x_scale = nullptr;
  std::int64_t x_scale_ld = 0;
  std::array<const void*, 3> more{};  // x1 to x3
  std::array<std::int64_t, 3> more_ld{};
  float* rstd = nullptr;
  float* bias_gradient = nullptr;
  float* tap = nullptr;
  const std::int32_t* offsets = nullptr;
  const std::int32_t* counts = nullptr;
  std::int64_t groups = 0;
  // Of quantize_range.
  std::int64_t range_start = 0;
  std::int64_t range_length = 0;
  float* range_amax = nullptr;
  std::uint64_t* nonfinite = nullptr;
  const std::int32_t* index = nullptr;  // of operation "gather"
  std::int64_t x_rows = 0;
};

// Writes every byte of the layout, including padding (scales 1, data 0). Gaps between rows that
// come from the caller's ldq or scale_ld stay untouched. A row-wise output needs q and scale; a
// transposed one needs q_transposed and scale_transposed. threads 0: one per core. Errors:
// kUnsupported for types and layouts that docs/numerics.md does not define; kInvalidArgument for a
// null pointer, a negative size, or a leading dimension that is too small.
Status quantize(const QuantizeProblem&, const QuantizeArgs&, int threads = 0);

}  // namespace octile::reference
