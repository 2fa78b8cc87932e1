// Computes where an element's decode scale lies: the scale column of the layout table as
// arithmetic.
#pragma once

#include <cstdint>

#include "generator/core/types.h"

namespace octile::reference {

// Returns the offset of the scale that covers element (row, col) of the tensor as its caller sees
// it, never transposed. The offset counts scales, or bytes for ue8m0x4 exponents.
struct ScaleIndex {
  std::int64_t block_rows = 1;  // number of rows and columns that one scale covers
  std::int64_t block_cols = 1;
  std::int64_t row_step = 0;  // distance from one block to the next along rows and columns
  std::int64_t col_step = 0;
  // Number of consecutive blocks, along the direction of a block's length, whose exponents share a
  // word. 1: each scale stands alone. Above 1, a step in that direction leads from word to word.
  std::int64_t word_blocks = 1;
  // Number of tiles of 128 runs x 4 scales along a run in the swizzled layout; 0: the layout is
  // linear.
  std::int64_t swizzle_tiles = 0;

  std::int64_t operator()(std::int64_t row, std::int64_t col) const {
    const std::int64_t i = row / block_rows;
    const std::int64_t j = col / block_cols;
    if (swizzle_tiles != 0) {  // a run follows the blocks' longer side
      return block_rows > block_cols ? swizzled(j, i) : swizzled(i, j);
    }
    if (word_blocks == 1) return i * row_step + j * col_step;
    const bool along_rows = block_rows > block_cols;
    return (along_rows ? i / word_blocks : i) * row_step +
           (along_rows ? j : j / word_blocks) * col_step + (along_rows ? i : j) % word_blocks;
  }

  // Returns the offset in cuBLAS' "1D Block Scaling Factors Layout". A tile of 128 runs x 4 scales
  // has 512 bytes, in which run r and scale c are at (r % 32) * 16 + r / 32 * 4 + c.
  std::int64_t swizzled(std::int64_t run, std::int64_t scale) const {
    const std::int64_t tile = run / 128 * swizzle_tiles + scale / 4;
    return tile * 512 + run % 32 * 16 + run % 128 / 32 * 4 + scale % 4;
  }
};

// Returns the index of scales whose runs lie `ld` scales apart. A type with one scale, or with one
// for each row, has one run. `transposed`: the scales of the columnwise copy. `swizzled`: 1x32
// scales as tensor cores read them.
ScaleIndex scale_index(const TensorType& type, std::int64_t ld, bool transposed = false,
                       bool swizzled = false);
// Returns the index of the scales of a [rows, cols] tensor in the layout's own stride.
ScaleIndex packed_scale_index(const TensorType& type, std::int64_t rows, std::int64_t cols,
                              bool transposed = false);

}  // namespace octile::reference
