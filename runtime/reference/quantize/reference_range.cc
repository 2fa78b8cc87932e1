#include "runtime/reference/quantize/reference_range.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "generator/core/layout.h"
#include "runtime/reference/parallel.h"
#include "runtime/reference/quantize/reference_kernels.h"
#include "runtime/reference/quantize/reference_scale.h"
#include "runtime/reference/scale_index.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kLongestPiece = 128;   // the length of the longest block along a row
constexpr std::int64_t kPiecesTogether = 64;  // number of pieces that a thread takes at a time

// A part of the range in one row and one block. The range is cut at rows and at multiples of a
// block's length.
struct Piece {
  std::int64_t row = 0, col = 0, count = 0;
};

bool has_short_blocks(const QuantizeProblem& p) { return p.q.granularity == Granularity::k32x32; }

// The array of maxima has the shape of fp32 scales; for blocks of 32, that of E8M0 scales.
ScaleIndex index_of_maxima(const QuantizeProblem& p, std::int64_t rows) {
  TensorType maxima = p.q;
  maxima.scale = has_short_blocks(p) ? ScaleFormat::kE8M0 : ScaleFormat::kF32;
  return packed_scale_index(maxima, rows, p.cols);
}

class Range {
 public:
  Range(const QuantizeProblem& problem, const RangeCall& call)
      : problem_(problem),
        call_(call),
        cols_(problem.cols),
        length_(has_short_blocks(problem) ? 32 : kLongestPiece),
        amax_index_(index_of_maxima(problem, call.rows)) {}

  template <typename Body>
  void for_each_piece(int threads, const Body& body) const {
    const std::int64_t per_row = ceil_div(cols_, length_);
    const std::int64_t first_row = call_.start / cols_;
    const std::int64_t end = call_.start + call_.length;
    const std::int64_t rows = ceil_div(end, cols_) - first_row;
    parallel_for(rows * per_row, kPiecesTogether, threads, [&](std::int64_t b, std::int64_t e) {
      for (std::int64_t i = b; i < e; ++i) {
        const std::int64_t row = first_row + i / per_row;
        const std::int64_t from = std::max(i % per_row * length_, call_.start - row * cols_);
        const std::int64_t to = std::min({(i % per_row + 1) * length_, cols_, end - row * cols_});
        if (from < to) body(Piece{row, from, to - from});
      }
    });
  }

  void raise(const Piece& piece) const {
    std::array<float, kLongestPiece> x{};
    load(piece, x.data());
    const auto amax = std::bit_cast<float>(finite_amax_bits(x.data(), piece.count));
    std::atomic_ref<float> known(call_.amax[amax_index_(piece.row, piece.col)]);
    for (float old = known.load(); old < amax && !known.compare_exchange_weak(old, amax);) {
    }
    count(x.data(), piece.count);
  }

  void cast(const Piece& piece) const {
    std::array<float, kLongestPiece> x{}, encodes{};
    load(piece, x.data());
    const float amax = call_.amax[amax_index_(piece.row, piece.col)];
    encodes.fill(encode_scale(amax, problem_));
    auto* q = static_cast<std::uint8_t*>(call_.q) + offset_of(piece);
    cast_scaled(x.data(), encodes.data(), problem_.q.dtype, piece.count, q);
    count(x.data(), piece.count);
  }

  // Stores the scales of all blocks, transposed or not, into `scales`.
  Status store_all_scales(void* scales, bool transposed) const {
    const auto layout = quantized_layout(problem_.q, call_.rows, cols_, 0, transposed);
    if (!layout) return tl::unexpected(layout.error());
    const ScaleIndex to = scale_index(problem_.q, layout->scales.ld, transposed);
    fill_scales_with_ones(*layout, problem_.q, layout->scales.ld, scales);
    for (std::int64_t row = 0; row < call_.rows; row += std::min(to.block_rows, call_.rows)) {
      for (std::int64_t col = 0; col < cols_; col += std::min(to.block_cols, cols_)) {
        const float amax = call_.amax[amax_index_(row, col)];
        store_scale(scales, problem_.q.scale, to(row, col), encode_scale(amax, problem_));
      }
    }
    return {};
  }

 private:
  std::int64_t offset_of(const Piece& piece) const {
    return piece.row * cols_ + piece.col - call_.start;
  }
  void load(const Piece& piece, float* x) const {
    widen(call_.x, problem_.x.dtype, offset_of(piece), piece.count, x);
    if (problem_.via) round_to_bf16(x, piece.count);
  }
  void count(const float* x, std::int64_t elements) const {
    if (call_.nonfinite == nullptr) return;
    const std::int64_t found = count_nonfinite(x, elements);
    if (found > 0) {
      std::atomic_ref<std::uint64_t>(*call_.nonfinite) += static_cast<std::uint64_t>(found);
    }
  }

  const QuantizeProblem& problem_;
  const RangeCall& call_;
  std::int64_t cols_;
  std::int64_t length_;  // length of a piece
  ScaleIndex amax_index_;
};

}  // namespace

Status quantize_range(const QuantizeProblem& problem, const RangeCall& call, int threads) {
  const Range range(problem, call);
  if (problem.pieces == PiecesStep::kAmax) {
    range.for_each_piece(threads, [&](const Piece& piece) { range.raise(piece); });
    return {};
  }
  if (problem.pieces == PiecesStep::kScales) {
    if (Status ok = range.store_all_scales(call.scale, false); !ok) return ok;
    if (call.scale_transposed == nullptr) return {};
    return range.store_all_scales(call.scale_transposed, true);
  }
  range.for_each_piece(threads, [&](const Piece& piece) { range.cast(piece); });
  return {};
}

Status find_amax(const QuantizeProblem& problem, const QuantizeCall& args, int threads) {
  QuantizeProblem step = problem;
  step.pieces = PiecesStep::kAmax;
  const RangeCall whole{.rows = args.rows,
                        .length = args.rows * problem.cols,
                        .x = args.x,
                        .amax = args.amax,
                        .nonfinite = args.nonfinite};
  return quantize_range(step, whole, threads);
}

}  // namespace octile::reference
