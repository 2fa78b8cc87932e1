#include "generator/quantize/pieces.h"

#include <fmt/format.h>

#include "generator/core/layout.h"
#include "generator/quantize/composition.h"
#include "generator/quantize/grid.h"

namespace octile {
namespace {

constexpr std::int64_t kTransposedAlign = 16;  // of a row of the transposed copy (layout table)

// The range's flat position as rows and columns.
void place_range(const Piece& piece, PieceTableRow& row) {
  const std::int64_t last = piece.start + piece.length - 1;
  row.range_row = piece.start / piece.cols;
  row.range_col = piece.start % piece.cols;
  row.range_last_row = last / piece.cols;
  row.range_end_col = last % piece.cols + 1;
}

std::int64_t blocks_of(const QuantizeProblem& common, PiecesStep step, const QuantizeConfig& config,
                       const Piece& piece) {
  if (!takes_part(piece, step)) return 0;
  const QuantizeProblem problem = problem_of(common, step, piece);
  const TileGrid tiles = grid_of(problem, config, 1).tiles;
  if (!is_of_range(problem)) return tiles.blocks(piece.rows, 0);
  PieceTableRow row;
  place_range(piece, row);
  return tiles.range_blocks(row.range_row, row.range_last_row);
}

}  // namespace

QuantizeProblem problem_of(const QuantizeProblem& common, PiecesStep step) {
  QuantizeProblem p = common;
  p.rows = kDynamic;
  p.cols = 0;
  p.pieces = step;
  if (step == PiecesStep::kScales) p.output = QuantizeOutput::kBoth;
  if (step != PiecesStep::kTranspose) return p;
  QuantizeProblem transpose;
  transpose.operation = QuantizeOperation::kTranspose;
  transpose.x = transpose.q = common.q;
  transpose.output = QuantizeOutput::kTransposed;
  transpose.pieces = step;
  return transpose;
}

QuantizeProblem problem_of(const QuantizeProblem& common, PiecesStep step, const Piece& piece) {
  QuantizeProblem p = problem_of(common, step);
  p.cols = piece.cols;
  return p;
}

bool takes_part(const Piece& piece, PiecesStep step) {
  switch (step) {
    case PiecesStep::kAmax:
    case PiecesStep::kCast:
      return piece.length > 0;
    case PiecesStep::kScales:
      return piece.rows > 0 && piece.cols > 0;
    case PiecesStep::kTranspose:
      return piece.rows > 0 && piece.cols > 0 && piece.q_transposed != nullptr;
    case PiecesStep::kNone:
      break;
  }
  return false;
}

PieceTableRow table_row(const QuantizeProblem& common, PiecesStep step, const Piece& piece) {
  PieceTableRow row;
  row.x = step == PiecesStep::kTranspose ? piece.q_gathered : piece.x;
  row.q = piece.q;
  row.range_amax = reinterpret_cast<std::uint32_t*>(piece.amax);
  row.scale = piece.scale;
  row.scale_transposed = piece.scale_transposed;
  row.q_transposed = piece.q_transposed;
  row.rows = piece.rows;
  row.cols = piece.cols;
  row.scale_ld = packed_scale_ld(common.q, piece.rows, piece.cols);
  row.scale_ld_transposed = packed_scale_ld(common.q, piece.rows, piece.cols, true);
  row.ldq_transposed = round_up(piece.rows, kTransposedAlign);
  if (piece.length > 0) place_range(piece, row);
  return row;
}

Result<std::vector<std::uint32_t>> first_blocks(const QuantizeProblem& common, PiecesStep step,
                                                const QuantizeConfig& config,
                                                std::span<const Piece> pieces) {
  std::vector<std::uint32_t> first{0};
  first.reserve(pieces.size() + 1);
  std::int64_t all = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    all += blocks_of(common, step, config, pieces[i]);
    if (all > INT32_MAX) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("pieces[0] to pieces[{}] need {} thread blocks; allowed: {}, make "
                              "fewer pieces at a time",
                              i, all, INT32_MAX));
    }
    first.push_back(static_cast<std::uint32_t>(all));
  }
  return first;
}

}  // namespace octile
