#include "runtime/reference/quantize/reference_quantizer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>

#include "generator/quantize/layout.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/cast_bits.h"
#include "runtime/reference/quantize/reference_kernels.h"
#include "runtime/reference/quantize/reference_scale.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kRowsPerRange = 16;  // number of rows that a thread takes at a time

// Returns the index of 1x128 scales that lie by rows.
ScaleIndex index_by_row(std::int64_t scale_ld) {
  return {.block_rows = 1, .block_cols = 128, .row_step = scale_ld, .col_step = 1};
}

}  // namespace

Quantizer::Quantizer(const QuantizeProblem& problem, std::int64_t most_rows, int threads)
    : problem_(problem),
      source_(problem),
      cols_(problem.cols),
      works_(
          thread_count(ceil_div(most_rows, kBlock) * ceil_div(problem.cols, kBlock), 1, threads)) {
  const auto rows = static_cast<std::size_t>(most_rows);
  const auto cols = static_cast<std::size_t>(cols_);
  const Granularity granularity = problem.q.granularity;
  if (problem.bias_gradient)
    bias_sums_.resize(static_cast<std::size_t>(ceil_div(most_rows, kBlock)) * cols);
  if (granularity == Granularity::kPerTensor || granularity == Granularity::kPerRow)
    row_amax_.resize(rows);
  if (granularity == Granularity::kPerRow && has_transposed(problem.output)) col_amax_.resize(cols);
}

Status Quantizer::run(const QuantizeCall& args) {
  args_ = args;
  rowwise_ = transposed_ = {};
  if (has_rowwise(problem_.output))
    if (Status ok = open(rowwise_, {args.q, args.ldq, args.scale, args.scale_ld}, false); !ok)
      return ok;
  if (has_transposed(problem_.output))
    if (Status ok = open(transposed_,
                         {args.q_transposed, args.ldq_transposed, args.scale_transposed,
                          args.scale_ld_transposed},
                         true);
        !ok)
      return ok;
  source_.open(args);
  source_.norm(works_.threads());
  measure_long_blocks();
  const std::int64_t tile_cols = ceil_div(cols_, kBlock);
  const std::int64_t tiles = ceil_div(args.rows, kBlock) * tile_cols;
  parallel_for(tiles, 1, works_.threads(), [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t i = begin; i < end; ++i)
      quantize_tile(i / tile_cols * kBlock, i % tile_cols * kBlock, works_[thread]);
  });
  if (problem_.bias_gradient) add_bias_sums();
  return {};
}

void Quantizer::quantize_tile(std::int64_t row0, std::int64_t col0, Work& work) {
  load(work.tile, row0, col0);
  count(work.tile);
  if (args_.tap != nullptr) write_tap(work.tile);
  if (problem_.bias_gradient) sum_columns(work.tile);
  for (const Output* output : {&rowwise_, &transposed_}) {
    if (output->data == nullptr) continue;
    find_encodes(work.tile, *output, work.encodes);
    output->transposed ? write_transposed(work) : write_rows(work.tile, work.encodes);
  }
}

// Takes an output's memory and fills its scales with ones.
Status Quantizer::open(Output& output, const Memory& to, bool transposed) const {
  const bool swizzled = problem_.scale_layout == ScaleLayout::kSwizzled;
  auto layout = quantized_layout(problem_.q, args_.rows, cols_, 0, transposed);
  if (!layout) return tl::unexpected(layout.error());
  if (swizzled) layout->scales.outer = round_up(layout->scales.outer, kSwizzleRows);
  const bool by_row = problem_.scale_layout == ScaleLayout::kByRow;
  if (by_row) lay_scales_by_row(*layout, args_.rows, cols_);
  const ScaleIndex index = by_row ? index_by_row(to.scale_ld)
                                  : scale_index(problem_.q, to.scale_ld, transposed, swizzled);
  fill_scales_with_ones(*layout, problem_.q, to.scale_ld, to.scales);
  output = {static_cast<std::uint8_t*>(to.data), to.ld, transposed, to.scales, index};
  return {};
}

// Finds the amaxes of blocks longer than a tile (a row, a column or the tensor) in a separate
// pass.
void Quantizer::measure_long_blocks() {
  const Granularity granularity = problem_.q.granularity;
  if (!has_long_blocks()) return;
  const bool is_scale_given = problem_.policy == ScalePolicy::kDelayed;
  if (is_scale_given && args_.amax == nullptr) return;
  parallel_for(args_.rows, kRowsPerRange, works_.threads(),
               [&](std::int64_t begin, std::int64_t end) {
                 std::array<float, kBlock> piece{};
                 for (std::int64_t row = begin; row < end; ++row) {
                   std::uint32_t& amax = row_amax_[static_cast<std::size_t>(row)];
                   amax = 0;
                   for (std::int64_t col = 0; col < cols_; col += kBlock) {
                     const std::int64_t count = std::min(kBlock, cols_ - col);
                     source_.read(row, col, count, piece.data());
                     amax = std::max(amax, finite_amax_bits(piece.data(), count));
                   }
                 }
               });
  if (granularity == Granularity::kPerTensor) {
    tensor_amax_ = *std::max_element(row_amax_.begin(), row_amax_.begin() + args_.rows);
    const auto amax = std::bit_cast<float>(tensor_amax_);
    if (args_.amax != nullptr) *args_.amax = std::max(*args_.amax, amax);
  } else if (transposed_.data != nullptr) {
    measure_columns();
  }
}

void Quantizer::measure_columns() {
  std::fill(col_amax_.begin(), col_amax_.end(), 0U);
  parallel_for(
      ceil_div(cols_, kBlock), 1, works_.threads(), [&](std::int64_t begin, std::int64_t end) {
        std::array<float, kBlock> piece{};
        for (std::int64_t block = begin; block < end; ++block) {
          const std::int64_t col = block * kBlock;
          const std::int64_t count = std::min(kBlock, cols_ - col);
          for (std::int64_t row = 0; row < args_.rows; ++row) {
            source_.read(row, col, count, piece.data());
            update_amax_bits(piece.data(), count, &col_amax_[static_cast<std::size_t>(col)]);
          }
        }
      });
}

void Quantizer::load(Tile& tile, std::int64_t row0, std::int64_t col0) const {
  tile.row0 = row0;
  tile.col0 = col0;
  tile.rows = std::min(kBlock, args_.rows - row0);
  tile.cols = std::min(kBlock, cols_ - col0);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    source_.read(row0 + r, col0, tile.cols, tile.x[r]);
  }
}

// Counts the infinities and NaNs of the tile, once for all outputs.
void Quantizer::count(const Tile& tile) const {
  if (args_.nonfinite == nullptr) return;
  std::int64_t found = 0;
  for (std::int64_t r = 0; r < tile.rows; ++r) found += count_nonfinite(tile.x[r], tile.cols);
  std::atomic_ref<std::uint64_t>(*args_.nonfinite) += static_cast<std::uint64_t>(found);
}

void Quantizer::write_tap(const Tile& tile) const {
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    std::copy_n(tile.x[r], tile.cols, args_.tap + (tile.row0 + r) * cols_ + tile.col0);
  }
}

// Sums in the order of templates/quantize/bias.cuh: 8 rows in turn, then those sums in turn.
void Quantizer::sum_columns(const Tile& tile) {
  constexpr std::int64_t kTogether = 8;
  float* const sums = bias_sums_.data() + tile.row0 / kBlock * cols_ + tile.col0;
  for (std::int64_t c = 0; c < tile.cols; ++c) {
    float sum = 0;
    for (std::int64_t r = 0; r < tile.rows; r += kTogether) {
      float part = 0;
      const std::int64_t end = std::min(tile.rows, r + kTogether);
      for (std::int64_t row = r; row < end; ++row) part += tile.x[row][c];
      sum += part;
    }
    sums[c] = sum;
  }
}

// Sums in the order of bias_sum.cu: the blocks of rows in turn.
void Quantizer::add_bias_sums() const {
  std::fill_n(args_.bias_gradient, cols_, 0.0F);
  const std::int64_t sums = ceil_div(args_.rows, kBlock) * cols_;
  for (std::int64_t i = 0; i < sums; ++i)
    args_.bias_gradient[i % cols_] += bias_sums_[static_cast<std::size_t>(i)];
}

// Computes the scale from the amax for every block of the tile and stores the scales.
void Quantizer::find_encodes(const Tile& tile, const Output& output, Encodes& encodes) const {
  const std::int64_t block_rows = std::min(output.index.block_rows, kBlock);
  const std::int64_t block_cols = std::min(output.index.block_cols, kBlock);
  encodes.rows_a_line = block_rows;
  std::array<std::uint32_t, kBlock> amax{};  // of columns
  for (std::int64_t r = 0; r < tile.rows; r += block_rows) {
    const std::int64_t end = std::min(tile.rows, r + block_rows);
    const bool needs_columns = block_rows > 1 && !has_long_blocks();
    if (needs_columns) amax.fill(0);
    for (std::int64_t row = r; needs_columns && row < end; ++row) {
      update_amax_bits(tile.x[row], tile.cols, amax.data());
    }
    for (std::int64_t c = 0; c < tile.cols; c += block_cols) {
      const std::int64_t count = std::min(block_cols, tile.cols - c);
      const auto bits = [&] {
        if (has_long_blocks()) return amax_of_long_block(output, tile.row0 + r, tile.col0 + c);
        return block_rows == 1 ? finite_amax_bits(tile.x[r] + c, count)
                               : largest_of(amax.data() + c, count);
      };
      const float encode = problem_.policy == ScalePolicy::kDelayed
                               ? *args_.encode_scale
                               : encode_scale(std::bit_cast<float>(bits()), problem_);
      std::fill_n(encodes.line[r / block_rows] + c, count, encode);
      if (is_first_tile_of_block(output, tile)) {
        store_scale(output.scales, problem_.q.scale, output.index(tile.row0 + r, tile.col0 + c),
                    encode);
        if (args_.recorded_scale != nullptr) *args_.recorded_scale = encode;
      }
    }
  }
}

bool Quantizer::has_long_blocks() const {
  return problem_.q.granularity == Granularity::kPerTensor ||
         problem_.q.granularity == Granularity::kPerRow;
}

std::uint32_t Quantizer::amax_of_long_block(const Output& output, std::int64_t row,
                                            std::int64_t col) const {
  if (problem_.q.granularity == Granularity::kPerTensor) return tensor_amax_;
  return output.transposed ? col_amax_[static_cast<std::size_t>(col)]
                           : row_amax_[static_cast<std::size_t>(row)];
}

// Returns true for the one tile that stores a shared block's scale, so that no two threads write
// it.
bool Quantizer::is_first_tile_of_block(const Output& output, const Tile& tile) {
  return (output.index.block_rows <= kBlock || tile.row0 == 0) &&
         (output.index.block_cols <= kBlock || tile.col0 == 0);
}

void Quantizer::write_rows(const Tile& tile, const Encodes& encodes) const {
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    cast_scaled(tile.x[r], encodes.of_row(r), problem_.q.dtype, tile.cols,
                rowwise_.data + (tile.row0 + r) * rowwise_.ld + tile.col0);
  }
}

void Quantizer::write_transposed(Work& work) const {
  const Tile& tile = work.tile;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    cast_scaled(tile.x[r], work.encodes.of_row(r), problem_.q.dtype, tile.cols, work.codes[r]);
  }
  const std::int64_t end = std::min(transposed_.ld, tile.row0 + kBlock);
  for (std::int64_t c = 0; c < tile.cols; ++c) {
    std::uint8_t* out = transposed_.data + (tile.col0 + c) * transposed_.ld + tile.row0;
    for (std::int64_t r = 0; r < tile.rows; ++r) out[r] = work.codes[r][c];
    std::fill(out + tile.rows, out + (end - tile.row0), std::uint8_t{0});
  }
}

}  // namespace octile::reference
