// Where the decode scale of an element lies: the scale column of the layout table as arithmetic.
#pragma once

#include <cstdint>

#include "generator/error.h"
#include "generator/types.h"

namespace octile::reference {

// Offset of the scale that covers element (row, col) of the tensor as its caller sees it, never
// transposed: in scales, and in bytes for packed exponents.
struct ScaleIndex {
  std::int64_t block_rows = 1;  // rows and columns one scale covers
  std::int64_t block_cols = 1;
  std::int64_t row_step = 0;  // from one block to the next along rows and columns
  std::int64_t col_step = 0;
  // Exponents of this many consecutive blocks share a word, along the direction of the blocks'
  // length; 1: scales stand alone. A step along that direction is then from word to word.
  std::int64_t packed = 1;

  std::int64_t operator()(std::int64_t row, std::int64_t col) const {
    const std::int64_t i = row / block_rows;
    const std::int64_t j = col / block_cols;
    if (packed == 1) return i * row_step + j * col_step;
    const bool along_rows = block_rows > block_cols;
    return (along_rows ? i / packed : i) * row_step + (along_rows ? j : j / packed) * col_step +
           (along_rows ? i : j) % packed;
  }
};

// `scale_ld` 0: as quantized_layout says. `transposed`: the scales of the columnwise copy.
// Errors: kUnsupported for layouts the contract does not have; kInvalidArgument for a scale_ld
// below the number of scales it must hold.
Result<ScaleIndex> scale_index(const TensorType& type, std::int64_t rows, std::int64_t cols,
                               std::int64_t scale_ld, bool transposed = false);

}  // namespace octile::reference
