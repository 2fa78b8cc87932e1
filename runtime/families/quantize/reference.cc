#include "runtime/families/quantize/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <new>
#include <vector>

#include "generator/quantize/layout.h"
#include "runtime/families/quantize/reference_dequantize.h"
#include "runtime/families/quantize/reference_groups.h"
#include "runtime/families/quantize/reference_kernels.h"
#include "runtime/families/quantize/reference_shard.h"
#include "runtime/families/quantize/reference_source.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/cast_bits.h"
#include "runtime/reference/parallel.h"
#include "runtime/reference/scale_index.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kRowsPerRange = 16;  // number of rows that a thread takes at a time

Status invalid(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

Status require_pointer(const void* pointer, const char* name, bool needed) {
  if (!needed || pointer != nullptr) return {};
  return invalid(fmt::format("{} is null; this problem writes or reads it", name));
}

Status check_input(const QuantizeProblem& problem, const QuantizeArgs& args) {
  if (Status s = check_well_formed(problem); !s) return s;
  if (args.rows < 0 || problem.cols < 0) {
    return invalid(
        fmt::format("rows is {} and cols is {}; both must be >= 0", args.rows, problem.cols));
  }
  if (problem.rows != kDynamic && problem.rows != args.rows) {
    return invalid(fmt::format("rows is {}; the problem fixes {}", args.rows, problem.rows));
  }
  if (auto s = require_pointer(args.encode_scale, "encode_scale",
                               problem.policy == ScalePolicy::kDelayed);
      !s)
    return s;
  const bool anything = args.rows > 0 && problem.cols > 0;  // otherwise nothing is written
  if (auto s = require_pointer(args.tap, "tap", problem.tap && anything); !s) return s;
  if (auto s =
          require_pointer(args.bias_gradient, "bias_gradient", problem.bias_gradient && anything);
      !s)
    return s;
  const bool norms = source_shape(problem.source).rms_norm;
  if (auto s = require_pointer(args.rstd, "rstd", norms && anything); !s) return s;
  return QuantizeSource::check(problem, args);
}

// Checks every argument of an inverse that depends on its layout.
Status check_inverse(const QuantizeProblem& problem, const QuantizeArgs& args) {
  if (problem.operation == QuantizeOperation::kDequantize) {
    if (args.ldq != 0 && args.ldq < problem.cols) {
      return invalid(
          fmt::format("ldq is {}; 0 or at least cols = {} is allowed", args.ldq, problem.cols));
    }
    return require_pointer(args.q, "q", true);
  }
  if (auto s = require_pointer(args.q_transposed, "q_transposed", true); !s) return s;
  return require_pointer(args.scale_transposed, "scale_transposed", true);
}

// One output (row-wise or transposed) with everything needed to write it.
struct Output {
  std::uint8_t* data = nullptr;  // null: not requested
  std::int64_t ld = 0;
  bool transposed = false;
  void* scales = nullptr;
  ScaleIndex index;
};

class Quantizer {
 public:
  Quantizer(const QuantizeProblem& problem, const QuantizeArgs& args, int threads)
      : problem_(problem),
        args_(args),
        rows_(args.rows),
        cols_(problem.cols),
        source_(problem, args, threads),
        threads_(threads) {}

  Status prepare() {
    if (has_rowwise(problem_.output)) {
      if (auto s = open(rowwise_, args_.q, args_.ldq, args_.scale, args_.scale_ld, false); !s)
        return s;
    }
    if (has_transposed(problem_.output)) {
      return open(transposed_, args_.q_transposed, 0, args_.scale_transposed, 0, true);
    }
    return {};
  }

  void run() {
    measure_long_blocks();
    const std::int64_t tile_cols = ceil_div(cols_, kBlock);
    const std::int64_t tiles = ceil_div(rows_, kBlock) * tile_cols;
    if (args_.bias_gradient != nullptr) {
      bias_sums_.resize(static_cast<std::size_t>(ceil_div(rows_, kBlock) * cols_));
    }
    parallel_for(tiles, 1, threads_, [&](std::int64_t begin, std::int64_t end) {
      Tile tile;
      Encodes encodes;
      for (std::int64_t i = begin; i < end; ++i) {
        load(tile, i / tile_cols * kBlock, i % tile_cols * kBlock);
        count(tile);
        if (args_.tap != nullptr) write_tap(tile);
        if (args_.bias_gradient != nullptr) sum_columns(tile);
        for (const Output* output : {&rowwise_, &transposed_}) {
          if (output->data == nullptr) continue;
          find_encodes(tile, *output, encodes);
          output->transposed ? write_transposed(tile, encodes) : write_rows(tile, encodes);
        }
      }
    });
    if (args_.bias_gradient != nullptr) add_bias_sums();
  }

 private:
  // One 128x128 tile of rows x cols elements; both are smaller at the tensor's end. The rest of x
  // is never read, so it is never cleared.
  struct Tile {  // NOLINT(cppcoreguidelines-pro-type-member-init): 64 KiB a tile for nothing
    std::int64_t row0 = 0, col0 = 0, rows = 0, cols = 0;
    alignas(64) float x[kBlock][kBlock];
  };
  // The encode scales of a tile's elements: line r / rows_a_line holds those of row r.
  struct Encodes {  // NOLINT(cppcoreguidelines-pro-type-member-init): as Tile
    std::int64_t rows_a_line = 1;
    alignas(64) float line[kBlock][kBlock];
    const float* of_row(std::int64_t r) const { return line[r / rows_a_line]; }
  };

  Status open(Output& output, void* data, std::int64_t ld, void* scales, std::int64_t scale_ld,
              bool transposed) {
    const bool swizzled = problem_.scale_layout == ScaleLayout::kSwizzled;
    auto layout = quantized_layout(problem_.q, rows_, cols_, ld, transposed);
    if (!layout) return tl::unexpected(layout.error());
    if (swizzled) layout->scales.outer = round_up(layout->scales.outer, kSwizzleRows);
    const auto index = scale_index(problem_.q, rows_, cols_, scale_ld, transposed, swizzled);
    if (!index) return tl::unexpected(index.error());
    const char* data_name = transposed ? "q_transposed" : "q";
    const char* scale_name = transposed ? "scale_transposed" : "scale";
    if (auto s = require_pointer(data, data_name, layout->data.bytes() > 0); !s) return s;
    if (auto s = require_pointer(scales, scale_name, layout->scales.bytes() > 0); !s) return s;
    output = {static_cast<std::uint8_t*>(data), layout->data.ld, transposed, scales, *index};
    if (scales != nullptr) fill_scales_with_ones(*layout, problem_.q, scale_ld, scales);
    return {};
  }

  // Finds the amaxes of blocks longer than a tile (a row, a column or the tensor) in a separate
  // pass.
  void measure_long_blocks() {
    const Granularity granularity = problem_.q.granularity;
    if (granularity != Granularity::kPerTensor && granularity != Granularity::kPerRow) return;
    row_amax_.assign(static_cast<std::size_t>(rows_), 0U);
    parallel_for(rows_, kRowsPerRange, threads_, [&](std::int64_t begin, std::int64_t end) {
      std::array<float, kBlock> piece{};
      for (std::int64_t row = begin; row < end; ++row) {
        std::uint32_t& amax = row_amax_[static_cast<std::size_t>(row)];
        for (std::int64_t col = 0; col < cols_; col += kBlock) {
          const std::int64_t count = std::min(kBlock, cols_ - col);
          source_.read(row, col, count, piece.data());
          amax = std::max(amax, finite_amax_bits(piece.data(), count));
        }
      }
    });
    if (granularity == Granularity::kPerTensor) {
      for (const std::uint32_t amax : row_amax_) tensor_amax_ = std::max(tensor_amax_, amax);
      const auto amax = std::bit_cast<float>(tensor_amax_);
      if (args_.amax != nullptr) *args_.amax = std::max(*args_.amax, amax);
    } else if (transposed_.data != nullptr) {
      measure_columns();
    }
  }

  void measure_columns() {
    col_amax_.assign(static_cast<std::size_t>(cols_), 0U);
    parallel_for(ceil_div(cols_, kBlock), 1, threads_, [&](std::int64_t begin, std::int64_t end) {
      std::array<float, kBlock> piece{};
      for (std::int64_t block = begin; block < end; ++block) {
        const std::int64_t col = block * kBlock;
        const std::int64_t count = std::min(kBlock, cols_ - col);
        for (std::int64_t row = 0; row < rows_; ++row) {
          source_.read(row, col, count, piece.data());
          update_amax_bits(piece.data(), count, &col_amax_[static_cast<std::size_t>(col)]);
        }
      }
    });
  }

  void load(Tile& tile, std::int64_t row0, std::int64_t col0) const {
    tile.row0 = row0;
    tile.col0 = col0;
    tile.rows = std::min(kBlock, rows_ - row0);
    tile.cols = std::min(kBlock, cols_ - col0);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      source_.read(row0 + r, col0, tile.cols, tile.x[r]);
    }
  }

  // Counts the infinities and NaNs of the tile, once for all outputs.
  void count(const Tile& tile) const {
    if (args_.nonfinite == nullptr) return;
    std::int64_t found = 0;
    for (std::int64_t r = 0; r < tile.rows; ++r) found += count_nonfinite(tile.x[r], tile.cols);
    std::atomic_ref<std::uint64_t>(*args_.nonfinite) += static_cast<std::uint64_t>(found);
  }

  void write_tap(const Tile& tile) const {
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      std::copy_n(tile.x[r], tile.cols, args_.tap + (tile.row0 + r) * cols_ + tile.col0);
    }
  }

  // Sums in the order of templates/quantize/bias.cuh: 8 rows in turn, then those sums in turn.
  void sum_columns(const Tile& tile) {
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
  void add_bias_sums() const {
    std::fill_n(args_.bias_gradient, cols_, 0.0F);
    for (std::size_t i = 0; i < bias_sums_.size(); ++i) {
      args_.bias_gradient[static_cast<std::int64_t>(i) % cols_] += bias_sums_[i];
    }
  }

  // Computes the scale from the amax for every block of the tile and stores the scales.
  void find_encodes(const Tile& tile, const Output& output, Encodes& encodes) const {
    const std::int64_t block_rows = std::min(output.index.block_rows, kBlock);
    const std::int64_t block_cols = std::min(output.index.block_cols, kBlock);
    encodes.rows_a_line = block_rows;
    for (std::int64_t r = 0; r < tile.rows; r += block_rows) {
      std::array<std::uint32_t, kBlock> amax{};
      const std::int64_t end = std::min(tile.rows, r + block_rows);
      for (std::int64_t row = r; row < end; ++row) {
        update_amax_bits(tile.x[row], tile.cols, amax.data());
      }
      for (std::int64_t c = 0; c < tile.cols; c += block_cols) {
        const std::int64_t count = std::min(block_cols, tile.cols - c);
        const std::uint32_t* first = amax.data() + c;
        const std::uint32_t in_tile = *std::max_element(first, first + count);
        const std::uint32_t bits = amax_of_block(output, tile.row0 + r, tile.col0 + c, in_tile);
        const float encode = problem_.policy == ScalePolicy::kDelayed
                                 ? *args_.encode_scale
                                 : encode_scale(std::bit_cast<float>(bits), problem_);
        std::fill_n(encodes.line[r / block_rows] + c, count, encode);
        if (is_first_tile_of_block(output, tile)) {
          store_scale(output.scales, problem_.q.scale, output.index(tile.row0 + r, tile.col0 + c),
                      encode);
        }
      }
    }
  }

  std::uint32_t amax_of_block(const Output& output, std::int64_t row, std::int64_t col,
                              std::uint32_t in_tile) const {
    switch (problem_.q.granularity) {
      case Granularity::kPerTensor:
        return tensor_amax_;
      case Granularity::kPerRow:
        return output.transposed ? col_amax_[static_cast<std::size_t>(col)]
                                 : row_amax_[static_cast<std::size_t>(row)];
      default:
        return in_tile;
    }
  }

  // Returns true for the one tile that stores a shared block's scale, so that no two threads write
  // it.
  static bool is_first_tile_of_block(const Output& output, const Tile& tile) {
    return (output.index.block_rows <= kBlock || tile.row0 == 0) &&
           (output.index.block_cols <= kBlock || tile.col0 == 0);
  }

  void write_rows(const Tile& tile, const Encodes& encodes) const {
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      cast_scaled(tile.x[r], encodes.of_row(r), problem_.q.dtype, tile.cols,
                  rowwise_.data + (tile.row0 + r) * rowwise_.ld + tile.col0);
    }
  }

  void write_transposed(const Tile& tile, const Encodes& encodes) const {
    std::uint8_t codes[kBlock][kBlock];
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      cast_scaled(tile.x[r], encodes.of_row(r), problem_.q.dtype, tile.cols, codes[r]);
    }
    const std::int64_t end = std::min(transposed_.ld, tile.row0 + kBlock);
    for (std::int64_t c = 0; c < tile.cols; ++c) {
      std::uint8_t* out = transposed_.data + (tile.col0 + c) * transposed_.ld + tile.row0;
      for (std::int64_t r = 0; r < tile.rows; ++r) out[r] = codes[r][c];
      std::fill(out + tile.rows, out + (end - tile.row0), std::uint8_t{0});
    }
  }

  const QuantizeProblem& problem_;
  const QuantizeArgs& args_;
  std::int64_t rows_;
  std::int64_t cols_;
  QuantizeSource source_;
  int threads_;
  Output rowwise_;
  Output transposed_;
  std::uint32_t tensor_amax_ = 0;
  std::vector<float> bias_sums_;  // one sum for each column of every 128 rows
  std::vector<std::uint32_t> row_amax_, col_amax_;
};

}  // namespace

Status quantize(const QuantizeProblem& problem, const QuantizeArgs& args, int threads) {
  if (auto s = check_input(problem, args); !s) return s;
  if (args.skip != nullptr && *args.skip != 0) return {};
  // Like octile_quantize_run, this writes nothing for an empty tensor, neither padding nor scale.
  if (args.rows == 0 || problem.cols == 0) return {};
  try {
    if (problem.operation != QuantizeOperation::kQuantize) {
      if (auto s = check_inverse(problem, args); !s) return s;
      return problem.operation == QuantizeOperation::kDequantize
                 ? dequantize(problem, args, threads)
                 : transpose(problem, args, threads);
    }
    if (problem.grouping != Grouping::kNone) return quantize_groups(problem, args, threads);
    if (problem.shard != ShardStep::kNone) return quantize_shard(problem, args, threads);
    Quantizer quantizer(problem, args, threads);
    if (auto s = quantizer.prepare(); !s) return s;
    quantizer.run();
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("no host memory to quantise {} x {}", args.rows, problem.cols));
  }
  return {};
}

}  // namespace octile::reference
