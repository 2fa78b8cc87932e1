#include "runtime/reference/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <new>
#include <vector>

#include "generator/layout.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/cast_bits.h"
#include "runtime/reference/parallel.h"
#include "runtime/reference/quantize_kernels.h"
#include "runtime/reference/scale_index.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kRowsPerRange = 16;  // rows a thread takes at a time

using Encodes = std::array<float, kBlock>;

Status invalid(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

Status require_pointer(const void* pointer, const char* name, bool needed) {
  if (!needed || pointer != nullptr) return {};
  return invalid(fmt::format("{} is null; this problem writes or reads it", name));
}

Status check_input(const QuantizeProblem& problem, const QuantizeArgs& args) {
  if (!is_fp8(problem.q.dtype) || is_fp8(problem.x)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("quantising {} to {}; allowed are bf16, fp16, fp32 to e4m3, e5m2",
                            name_of(problem.x), to_text(problem.q)));
  }
  const Granularity granularity = problem.q.granularity;
  const bool blocks = granularity == Granularity::k1x128 || granularity == Granularity::k128x128;
  const bool whole = granularity == Granularity::kPerTensor || granularity == Granularity::kPerRow;
  if (!blocks && (!whole || problem.output != QuantizeOutput::kRowwise)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the host reference executor quantises 1x128 and 128x128 in either "
                            "layout, tensor and row row-wise only; asked for {}",
                            to_text(problem)));
  }
  if (args.rows < 0 || problem.cols < 0) {
    return invalid(
        fmt::format("rows is {} and cols is {}; both must be >= 0", args.rows, problem.cols));
  }
  if (problem.rows != kDynamic && problem.rows != args.rows) {
    return invalid(fmt::format("rows is {}; the problem fixes {}", args.rows, problem.rows));
  }
  if (args.ldx < 0 || (args.ldx != 0 && args.ldx < problem.cols)) {
    return invalid(
        fmt::format("ldx is {}; 0 or at least cols = {} is allowed", args.ldx, problem.cols));
  }
  if (!(problem.amax_epsilon >= 0.0F) || std::isinf(problem.amax_epsilon)) {
    return invalid(
        fmt::format("amax_epsilon is {}; a finite value >= 0 is allowed", problem.amax_epsilon));
  }
  return require_pointer(args.x, "x", args.rows > 0 && problem.cols > 0);
}

// One output (row-wise or transposed) with everything needed to write it.
struct Output {
  std::uint8_t* data = nullptr;  // null: not asked for
  std::int64_t ld = 0;
  std::int64_t padded_inner = 0;  // contiguous bytes of one row, layout padding included
  float* scales = nullptr;
  ScaleIndex index;
};

// Padding lies at the end of each contiguous run of scales, up to what the layout rounds it to (or
// to the caller's tighter stride).
void write_scale_padding(const QuantizedLayout& layout, const Output& output) {
  const auto [inner_step, ld_or_none] = std::minmax(output.index.row_step, output.index.col_step);
  const std::int64_t ld = inner_step == 0 ? layout.scales.inner : ld_or_none;  // 0: one run
  const std::int64_t end = std::min(layout.scales.inner, ld);
  for (std::int64_t run = 0; run < layout.scales.outer; ++run) {
    for (std::int64_t i = layout.scale_cols; i < end; ++i) output.scales[run * ld + i] = 1.0F;
  }
}

class Quantizer {
 public:
  Quantizer(const QuantizeProblem& problem, const QuantizeArgs& args, int threads)
      : problem_(problem),
        args_(args),
        rows_(args.rows),
        cols_(problem.cols),
        ldx_(args.ldx == 0 ? problem.cols : args.ldx),
        threads_(threads) {}

  Status prepare() {
    const int wanted = static_cast<int>(problem_.output);
    if ((wanted & static_cast<int>(QuantizeOutput::kRowwise)) != 0) {
      if (auto s = open(rowwise_, args_.q, args_.ldq, args_.scale, args_.scale_ld, false); !s)
        return s;
    }
    if ((wanted & static_cast<int>(QuantizeOutput::kTransposed)) != 0) {
      return open(transposed_, args_.q_transposed, 0, args_.scale_transposed, 0, true);
    }
    return {};
  }

  void run() {
    switch (problem_.q.granularity) {
      case Granularity::kPerTensor:
        return quantize_whole(true);
      case Granularity::kPerRow:
        return quantize_whole(false);
      default:
        return quantize_tiles();
    }
  }

 private:
  // Rows x cols of one 128x128 tile, tails cut; the rest of x is never read, so never cleared.
  struct Tile {  // NOLINT(cppcoreguidelines-pro-type-member-init): 64 KiB a tile for nothing
    std::int64_t row0 = 0, col0 = 0, rows = 0, cols = 0;
    alignas(64) float x[kBlock][kBlock];
  };

  Status open(Output& output, void* data, std::int64_t ld, void* scales, std::int64_t scale_ld,
              bool transposed) {
    const auto layout = quantized_layout(problem_.q, rows_, cols_, ld, transposed);
    if (!layout) return tl::unexpected(layout.error());
    const auto index = scale_index(problem_.q, rows_, cols_, scale_ld, transposed);
    if (!index) return tl::unexpected(index.error());
    const char* data_name = transposed ? "q_transposed" : "q";
    const char* scale_name = transposed ? "scale_transposed" : "scale";
    if (auto s = require_pointer(data, data_name, layout->data.bytes() > 0); !s) return s;
    if (auto s = require_pointer(scales, scale_name, layout->scales.bytes() > 0); !s) return s;
    output = {static_cast<std::uint8_t*>(data), layout->data.ld,
              transposed ? layout->data.ld : cols_, static_cast<float*>(scales), *index};
    if (scales != nullptr) write_scale_padding(*layout, output);
    return {};
  }

  float store_scale(const Output& output, std::int64_t row, std::int64_t col,
                    std::uint32_t amax_bits) const {
    const float encode = encode_scale(std::bit_cast<float>(amax_bits), problem_);
    output.scales[output.index(row, col)] = decode_scale(encode);
    return encode;
  }

  // Per tensor and per row: a block is longer than a tile, so the amax takes a pass of its own.
  void quantize_whole(bool one_scale) {
    std::vector<std::uint32_t> amax(static_cast<std::size_t>(rows_));
    parallel_for(rows_, kRowsPerRange, threads_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        std::uint32_t row_amax = 0;
        for_each_piece(row, [&](const float* x, std::int64_t, std::int64_t count) {
          row_amax = std::max(row_amax, finite_amax_bits(x, count));
        });
        amax[static_cast<std::size_t>(row)] = row_amax;
      }
    });
    float encode = 1.0F;
    if (one_scale) {
      const auto largest = std::max_element(amax.begin(), amax.end());
      encode = store_scale(rowwise_, 0, 0, largest == amax.end() ? 0U : *largest);
    }
    parallel_for(rows_, kRowsPerRange, threads_, [&](std::int64_t begin, std::int64_t end) {
      Encodes encodes;
      for (std::int64_t row = begin; row < end; ++row) {
        encodes.fill(one_scale
                         ? encode
                         : store_scale(rowwise_, row, 0, amax[static_cast<std::size_t>(row)]));
        for_each_piece(row, [&](const float* x, std::int64_t col, std::int64_t count) {
          cast_scaled(x, encodes.data(), problem_.q.dtype, count,
                      rowwise_.data + row * rowwise_.ld + col);
        });
      }
    });
  }

  // body(values, first column, count) over pieces of at most 128 columns of a row.
  template <typename Body>
  void for_each_piece(std::int64_t row, const Body& body) const {
    std::array<float, kBlock> piece{};
    for (std::int64_t col = 0; col < cols_; col += kBlock) {
      const std::int64_t count = std::min(kBlock, cols_ - col);
      widen(args_.x, problem_.x, row * ldx_ + col, count, piece.data());
      body(piece.data(), col, count);
    }
  }

  void quantize_tiles() {
    const std::int64_t tile_cols = ceil_div(cols_, kBlock);
    const std::int64_t tiles = ceil_div(rows_, kBlock) * tile_cols;
    parallel_for(tiles, 1, threads_, [&](std::int64_t begin, std::int64_t end) {
      Tile tile;
      for (std::int64_t i = begin; i < end; ++i) {
        load(tile, i / tile_cols * kBlock, i % tile_cols * kBlock);
        quantize_tile(tile);
      }
    });
  }

  void load(Tile& tile, std::int64_t row0, std::int64_t col0) const {
    tile.row0 = row0;
    tile.col0 = col0;
    tile.rows = std::min(kBlock, rows_ - row0);
    tile.cols = std::min(kBlock, cols_ - col0);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      widen(args_.x, problem_.x, (row0 + r) * ldx_ + col0, tile.cols, tile.x[r]);
    }
  }

  void quantize_tile(const Tile& tile) const {
    if (problem_.q.granularity == Granularity::k128x128) {
      std::uint32_t amax = 0;
      for (std::int64_t r = 0; r < tile.rows; ++r) {
        amax = std::max(amax, finite_amax_bits(tile.x[r], tile.cols));
      }
      Encodes encodes;
      for (const Output* output : {&rowwise_, &transposed_}) {
        if (output->data != nullptr) {
          encodes.fill(store_scale(*output, tile.row0, tile.col0, amax));
        }
      }
      if (rowwise_.data != nullptr) write_rows(tile, [&](std::int64_t) { return encodes.data(); });
      if (transposed_.data != nullptr) write_transposed(tile, encodes);
      return;
    }
    if (rowwise_.data != nullptr) {
      Encodes encodes;
      write_rows(tile, [&](std::int64_t r) {
        encodes.fill(store_scale(rowwise_, tile.row0 + r, tile.col0,
                                 finite_amax_bits(tile.x[r], tile.cols)));
        return encodes.data();
      });
    }
    if (transposed_.data != nullptr) write_transposed(tile, column_encodes(tile));
  }

  // Encode scales of the tile's columns, each a block of up to 128 rows.
  Encodes column_encodes(const Tile& tile) const {
    std::array<std::uint32_t, kBlock> amax{};
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      update_amax_bits(tile.x[r], tile.cols, amax.data());
    }
    Encodes encodes{};
    for (std::int64_t c = 0; c < tile.cols; ++c) {
      const auto at = static_cast<std::size_t>(c);
      encodes[at] = store_scale(transposed_, tile.row0, tile.col0 + c, amax[at]);
    }
    return encodes;
  }

  template <typename EncodesOfRow>
  void write_rows(const Tile& tile, const EncodesOfRow& encodes_of_row) const {
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      cast_scaled(tile.x[r], encodes_of_row(r), problem_.q.dtype, tile.cols,
                  rowwise_.data + (tile.row0 + r) * rowwise_.ld + tile.col0);
    }
  }

  void write_transposed(const Tile& tile, const Encodes& encodes) const {
    std::uint8_t codes[kBlock][kBlock];
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      cast_scaled(tile.x[r], encodes.data(), problem_.q.dtype, tile.cols, codes[r]);
    }
    const std::int64_t end = std::min(transposed_.padded_inner, tile.row0 + kBlock);
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
  std::int64_t ldx_;
  int threads_;
  Output rowwise_;
  Output transposed_;
};

}  // namespace

float encode_scale(float amax, const QuantizeProblem& problem) {
  amax = std::max(amax, problem.amax_epsilon);
  if (amax == 0.0F) return 1.0F;
  float encode = max_finite(problem.q.dtype) / amax;
  if (std::isinf(encode)) encode = max_finite(problem.x);
  if (problem.q.scale == ScaleFormat::kF32Pow2) {
    encode =
        std::bit_cast<float>(std::bit_cast<std::uint32_t>(encode) & (kSignBit | kInfinityBits));
  }
  return encode;
}

float decode_scale(float encode) { return 1.0F / encode; }

Status quantize(const QuantizeProblem& problem, const QuantizeArgs& args, int threads) {
  if (auto s = check_input(problem, args); !s) return s;
  try {
    Quantizer quantizer(problem, args, threads);
    if (auto s = quantizer.prepare(); !s) return s;
    quantizer.run();
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("no host memory to quantise {} x {}", args.rows, problem.cols));
  }
  return {};
}

Status dequantize(const TensorType& type, std::int64_t rows, std::int64_t cols, const void* q,
                  std::int64_t ldq, const void* scale, std::int64_t scale_ld, float* out,
                  int threads) {
  const auto layout = quantized_layout(type, rows, cols, ldq);
  if (!layout) return tl::unexpected(layout.error());
  const auto index = scale_index(type, rows, cols, scale_ld);
  if (!index) return tl::unexpected(index.error());
  std::array<float, 256> value_of{};
  for (std::size_t code = 0; code < value_of.size(); ++code) {
    value_of[code] = from_fp8(static_cast<std::uint8_t>(code), type.dtype);
  }
  const auto* codes = static_cast<const std::uint8_t*>(q);
  const auto* scales = static_cast<const float*>(scale);
  parallel_for(rows, kRowsPerRange, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t col = 0; col < cols; col += kBlock) {
        const float s = scales[(*index)(row, col)];
        for (std::int64_t c = col; c < std::min(cols, col + kBlock); ++c) {
          out[row * cols + c] = value_of[codes[row * layout->data.ld + c]] * s;
        }
      }
    }
  });
  return {};
}

}  // namespace octile::reference
