// Layouts of quantised tensors: the layout table of docs/numerics.md as arithmetic.
// Quantisers, GEMMs, the reference executor and size queries all use it.
#pragma once

#include <cstdint>
#include <optional>

#include "generator/core/error.h"
#include "generator/core/types.h"

namespace octile {

// Rows of FP8 operands begin at multiples of this number of bytes, which TMA asks of a stride.
inline constexpr std::int64_t kFp8RowAlign = 16;

// Returns what a leading dimension of 0 stands for, in elements, in every call and for every matrix
// of `cols` columns. So a GEMM reads the layout that a quantiser writes.
constexpr std::int64_t default_ld(DType dtype, std::int64_t cols) {
  return is_fp8(dtype) ? round_up(cols, kFp8RowAlign) : cols;
}

// A two-dimensional array: `outer` rows of `inner` contiguous elements, rows `ld` elements apart.
// `inner` counts the padding a quantiser writes; elements from `inner` to `ld` are the caller's.
struct ArrayShape {
  std::int64_t outer = 0;
  std::int64_t inner = 0;
  std::int64_t ld = 0;
  int element_bytes = 0;
  std::int64_t bytes() const { return outer * ld * element_bytes; }
};

struct QuantizedLayout {
  ArrayShape data;    // FP8 bytes
  ArrayShape scales;  // decode scales, padding included
  // Scales that belong to data, padding excluded: of `scales.outer` and `scales.inner`.
  std::int64_t scale_rows = 0;
  std::int64_t scale_cols = 0;
};

// Returns outer * inner * element_bytes, or nothing if that is beyond 2^63-1. Arguments are >= 0.
std::optional<std::int64_t> byte_size(std::int64_t outer, std::int64_t inner, int element_bytes);

// Returns the layout of a [rows, cols] tensor quantised as `type`. `ld` is the row stride of the
// data in elements (0: default_ld). `transposed` asks for the columnwise copy: blocks along
// rows, data [cols][roundup(rows,16)].
// Errors: kUnsupported if there is no such layout; kInvalidArgument for a negative
// extent, an ld below the extent, or a size beyond 2^63-1 bytes.
Result<QuantizedLayout> quantized_layout(const TensorType& type, std::int64_t rows,
                                         std::int64_t cols, std::int64_t ld = 0,
                                         bool transposed = false);

// Returns the stride of the scales of that layout, for a type and extents that have one. It checks
// nothing, because every launch calls it.
std::int64_t packed_scale_ld(const TensorType& type, std::int64_t rows, std::int64_t cols,
                             bool transposed = false);
// Returns the rows of those scales for the tensor.
std::int64_t packed_scale_rows(const TensorType& type, std::int64_t rows, std::int64_t cols);

}  // namespace octile
