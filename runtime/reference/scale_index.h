// Where the decode scale of an element lies: the scale column of the layout table as arithmetic.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/core/types.h"

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
  // Swizzled: tiles of 128 runs x 4 scales, this many along a run; 0: scales lie in runs.
  std::int64_t swizzle_tiles = 0;

  std::int64_t operator()(std::int64_t row, std::int64_t col) const {
    const std::int64_t i = row / block_rows;
    const std::int64_t j = col / block_cols;
    if (swizzle_tiles != 0) {  // a run is as long as a block is: along the columns, or the rows
      return block_rows > block_cols ? swizzled(j, i) : swizzled(i, j);
    }
    if (packed == 1) return i * row_step + j * col_step;
    const bool along_rows = block_rows > block_cols;
    return (along_rows ? i / packed : i) * row_step + (along_rows ? j : j / packed) * col_step +
           (along_rows ? i : j) % packed;
  }

  // cuBLAS, "1D Block Scaling Factors Layout": 512 bytes a tile of 128 runs x 4 scales, in which
  // run r and scale c are at (r % 32) * 16 + r / 32 * 4 + c.
  std::int64_t swizzled(std::int64_t run, std::int64_t scale) const {
    const std::int64_t tile = run / 128 * swizzle_tiles + scale / 4;
    return tile * 512 + run % 32 * 16 + run % 128 / 32 * 4 + scale % 4;
  }
};

// `scale_ld` 0: as quantized_layout says. `transposed`: the scales of the columnwise copy.
// `swizzled`: 1x32 scales as tensor cores read them.
// Errors: kUnsupported for layouts the contract does not have; kInvalidArgument for a scale_ld
// below the number of scales it must hold.
Result<ScaleIndex> scale_index(const TensorType& type, std::int64_t rows, std::int64_t cols,
                               std::int64_t scale_ld, bool transposed = false,
                               bool swizzled = false);

}  // namespace octile::reference
