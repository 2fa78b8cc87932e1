// Pieces: flat ranges of many tensors that take one step in one launch. Which problem a step is,
// and the table that its kernel reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generator/core/error.h"
#include "generator/quantize/config.h"
#include "generator/quantize/kernel_args.h"
#include "generator/quantize/problem.h"

namespace octile {

inline constexpr int kPiecesSteps = 4;  // those of PiecesStep but kNone

// octile_piece documents the fields.
struct Piece {
  std::int64_t rows = 0, cols = 0;
  std::int64_t start = 0, length = 0;
  const void* x = nullptr;
  void* q = nullptr;
  float* amax = nullptr;
  void* scale = nullptr;
  void* scale_transposed = nullptr;
  const void* q_gathered = nullptr;
  void* q_transposed = nullptr;
};

// Returns the problem of a step of all pieces. `common` has the types, the epsilon, the rounding
// and the type on the way.
QuantizeProblem problem_of(const QuantizeProblem& common, PiecesStep step);
// Returns the same problem with the columns of one piece, whose grid and reference are asked for.
QuantizeProblem problem_of(const QuantizeProblem& common, PiecesStep step, const Piece& piece);

// Returns whether the step does anything for the piece.
bool takes_part(const Piece& piece, PiecesStep step);

// Returns the piece's row of a step's table.
PieceTableRow table_row(const QuantizeProblem& common, PiecesStep step, const Piece& piece);

// Returns with which thread block of the table each piece begins, and where the last one ends.
// Errors: kInvalidArgument if they pass the 2^31 - 1 blocks of a grid.
Result<std::vector<std::uint32_t>> first_blocks(const QuantizeProblem& common, PiecesStep step,
                                                const QuantizeConfig& config,
                                                std::span<const Piece> pieces);

}  // namespace octile
