// Where the decode scale of an element lies: the scale column of the layout table as arithmetic.
#pragma once

#include <cstdint>

#include "generator/error.h"
#include "generator/types.h"

namespace octile::reference {

// Offset, in scales, of the scale that covers element (row, col) of the tensor as its caller sees
// it, never transposed.
struct ScaleIndex {
  std::int64_t block_rows = 1;  // rows and columns one scale covers
  std::int64_t block_cols = 1;
  std::int64_t row_step = 0;  // from one block to the next along rows and columns
  std::int64_t col_step = 0;
  std::int64_t operator()(std::int64_t row, std::int64_t col) const {
    return row / block_rows * row_step + col / block_cols * col_step;
  }
};

// `scale_ld` 0: as quantized_layout says. `transposed`: the scales of the columnwise copy.
// Errors: kUnsupported for scales that are not fp32 and for layouts the contract does not have;
// kInvalidArgument for a scale_ld below the number of scales it must hold.
Result<ScaleIndex> scale_index(const TensorType& type, std::int64_t rows, std::int64_t cols,
                               std::int64_t scale_ld, bool transposed = false);

}  // namespace octile::reference
