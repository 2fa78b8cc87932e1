// How the host GEMM and its FP64 oracle cut D into tiles, and the operands that both read.
#pragma once

#include <algorithm>
#include <cstdint>

#include "generator/core/error.h"
#include "generator/gemm/problem.h"
#include "runtime/reference/gemm/reference.h"
#include "runtime/reference/gemm/reference_kernels.h"
#include "runtime/reference/gemm/reference_operand.h"

namespace octile::reference {

// A tile of D and one decoded chunk of K of both operands fit in a core's second-level cache.
inline constexpr std::int64_t kRowStrips = 32;
inline constexpr std::int64_t kColStrips = 16;
inline constexpr std::int64_t kTileRows = kRowStrips * kStripRows;
inline constexpr std::int64_t kTileCols = kColStrips * kStripCols;
inline constexpr std::int64_t kStripPair = kStripRows * kStripCols;
inline constexpr std::int64_t kChunk =
    128;  // columns of K decoded at a time: at most a scale block

struct Tile {
  std::int64_t row0, rows, col0, cols;
};

// The tiles of a window of D, numbered along the columns.
class Tiling {
 public:
  Tiling(const Fp64Window& window, std::int64_t tile_rows, std::int64_t tile_cols)
      : window_(window), tile_rows_(tile_rows), tile_cols_(tile_cols) {}
  std::int64_t count() const {
    return ceil_div(window_.rows, tile_rows_) * ceil_div(window_.cols, tile_cols_);
  }
  Tile operator[](std::int64_t i) const {
    const std::int64_t across = ceil_div(window_.cols, tile_cols_);
    const std::int64_t row = i / across * tile_rows_;
    const std::int64_t col = i % across * tile_cols_;
    return {window_.row0 + row, std::min(tile_rows_, window_.rows - row), window_.col0 + col,
            std::min(tile_cols_, window_.cols - col)};
  }

 private:
  Fp64Window window_;
  std::int64_t tile_rows_;
  std::int64_t tile_cols_;
};

struct Operands {
  GemmOperand a;
  GemmOperand b;
  std::int64_t k;
};

// Returns A and B of a GEMM that is neither of groups nor of a batch.
Operands operands_of(const GemmProblem& problem, const GemmCall& args);

// Refuses A or B of a type that the host GEMM cannot read. Errors: kUnsupported.
Status check_operand_types(const GemmProblem& problem);

// Returns the error of a GEMM for whose tiles there is no memory.
Status out_of_memory();

}  // namespace octile::reference
