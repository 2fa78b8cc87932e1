#include "runtime/families/gemm/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "generator/core/layout.h"
#include "runtime/families/gemm/reference_groups.h"
#include "runtime/families/gemm/reference_kernels.h"
#include "runtime/families/gemm/reference_operand.h"
#include "runtime/families/gemm/squares.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/parallel.h"

namespace octile::reference {
namespace {

// A tile of D and one decoded chunk of K of both operands fit in a core's second-level cache.
constexpr std::int64_t kRowStrips = 32;
constexpr std::int64_t kColStrips = 16;
constexpr std::int64_t kTileRows = kRowStrips * kStripRows;
constexpr std::int64_t kTileCols = kColStrips * kStripCols;
constexpr std::int64_t kStripPair = kStripRows * kStripCols;
constexpr std::int64_t kChunk = 128;  // columns of K decoded at a time: at most a scale block

struct Workspace {
  alignas(64) float a[kTileRows * kChunk];
  alignas(64) float b[kTileCols * kChunk];
  alignas(64) float partial[kTileRows * kTileCols];  // [col strip][row strip][6][16]
  alignas(64) float acc[kTileRows * kTileCols];
  alignas(64) float scale_a[kTileRows];
  alignas(64) float scale_b[kTileCols];
};

// Tiles are half as large in each direction, because FP64 values are larger and each element has
// two sums.
constexpr std::int64_t kFp64Rows = kTileRows / 2;
constexpr std::int64_t kFp64Cols = kTileCols / 2;
struct Fp64Workspace {
  alignas(64) double a[kFp64Rows * kChunk];
  alignas(64) double b[kFp64Cols * kChunk];
  alignas(64) double partial[kStripPair];
  alignas(64) double magnitudes[kStripPair];
  alignas(64) double scale_a[kFp64Rows];
  alignas(64) double scale_b[kFp64Cols];
};

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

Result<Operands> open_operands(const GemmProblem& problem, const GemmArgs& args) {
  const std::int64_t k = problem.k == kDynamic ? args.k : problem.k;
  if (args.m < 0 || problem.n < 0 || k < 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("m is {}, n is {}, k is {}; each must be >= 0", args.m, problem.n, k));
  }
  if (problem.m != kDynamic && problem.m != args.m) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("m is {}; the problem fixes {}", args.m, problem.m));
  }
  auto a =
      GemmOperand::open("a", problem.a, args.m, k, args.a, args.lda, args.a_scale, args.a_scale_ld);
  if (!a) return tl::unexpected(a.error());
  auto b = GemmOperand::open("b", problem.b, problem.n, k, args.b, args.ldb, args.b_scale,
                             args.b_scale_ld);
  if (!b) return tl::unexpected(b.error());
  return Operands{*a, *b, k};
}

Status check_output(const GemmProblem& problem, const GemmArgs& args) {
  if ((is_mx(problem.a) || is_mx(problem.b)) &&
      (problem.a.granularity != Granularity::k1x32 || !is_mx(problem.b) || problem.promote != 32)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("a is {}, b is {}, promote is {}; MX is a in 1x32, b in 1x32 or 32x32 "
                            "and promote=32",
                            to_text(problem.a), to_text(problem.b), promote_text(problem.promote)));
  }
  const bool blocks = !has_scales_of_all_k(problem);
  const std::array<int, 6> intervals{32, 64, 128, 256, 512, kPromoteNone};
  const auto* const end = intervals.begin() + (blocks ? 3 : 6);
  if (std::find(intervals.begin(), end, problem.promote) == end) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("promote is {}; 32, 64 and 128 are allowed, without block scales also "
                            "256, 512 and none; a is {}, b is {}",
                            problem.promote, to_text(problem.a), to_text(problem.b)));
  }
  if (args.ldd < 0 || (args.ldd != 0 && args.ldd < problem.n)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("ldd is {}; 0 or at least n = {} is allowed", args.ldd, problem.n));
  }
  if (args.m == 0 || problem.n == 0) return {};
  if (args.d == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "d is null; the product is written there");
  }
  if (is_fp8(problem.d.dtype) && args.d_scale == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "d_scale is null; D's scales are written there");
  }
  if (problem.bias && args.bias == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "bias is null; the product reads it");
  }
  return {};
}

void store(void* d, DType dtype, std::int64_t at, float value) {
  if (dtype == DType::kBF16) {
    static_cast<std::uint16_t*>(d)[at] = float_to_bf16(value);
  } else if (dtype == DType::kFP16) {
    static_cast<std::uint16_t*>(d)[at] = float_to_fp16(value);
  } else {
    // All NaNs get the bits that the device writes; otherwise they would depend on the host's
    // instruction.
    constexpr std::uint32_t kCanonicalNan = 0x7FFFFFFFU;
    static_cast<float*>(d)[at] = std::isnan(value) ? std::bit_cast<float>(kCanonicalNan) : value;
  }
}

class Product {
 public:
  Product(const GemmProblem& problem, const GemmArgs& args, const Operands& operands)
      : problem_(problem),
        args_(args),
        operands_(operands),
        ldd_(args.ldd == 0 ? problem.n : args.ldd) {}

  void compute(const Tile& tile, Workspace& work) const {
    std::fill(std::begin(work.partial), std::end(work.partial), 0.0F);
    std::fill(std::begin(work.acc), std::end(work.acc), 0.0F);
    const std::int64_t k = operands_.k;
    // Without promotion, one interval covers all of K.
    const std::int64_t interval =
        problem_.promote == kPromoteNone ? round_up(k, kChunk) : problem_.promote;
    const std::int64_t chunk = std::min(kChunk, interval);
    for (std::int64_t k0 = 0; k0 < k; k0 += chunk) {
      const std::int64_t count = std::min(chunk, k - k0);
      operands_.a.decode<kStripRows>(tile.row0, tile.rows, k0, count, work.a);
      operands_.b.decode<kStripCols>(tile.col0, tile.cols, k0, count, work.b);
      for_each_strip_pair(tile, [&](std::int64_t row, std::int64_t col, std::int64_t at) {
        multiply_strips(work.a + row * count, work.b + col * count, count, work.partial + at);
      });
      if ((k0 + count) % interval == 0 || k0 + count == k) promote(tile, k0, work);
    }
    write(tile, work);
  }

 private:
  // Calls body(first row within the tile, first column, offset of the pair's 6 x 16 sums).
  template <typename Body>
  static void for_each_strip_pair(const Tile& tile, const Body& body) {
    for (std::int64_t col = 0; col < tile.cols; col += kStripCols) {
      for (std::int64_t row = 0; row < tile.rows; row += kStripRows) {
        body(row, col, col * kTileRows + row * kStripCols);
      }
    }
  }

  // Scales that serve all of K are left to the end: an fma by 1 is an addition.
  void promote(const Tile& tile, std::int64_t k0, Workspace& work) const {
    if (has_scales_of_all_k(problem_)) {
      std::fill_n(work.scale_a, tile.rows, 1.0F);
      std::fill_n(work.scale_b, tile.cols, 1.0F);
    } else {
      load_scales(tile, k0, work);
    }
    auto* const promote_pair = is_mx(problem_.a) ? promote_strips_mx : promote_strips;
    for_each_strip_pair(tile, [&](std::int64_t row, std::int64_t col, std::int64_t at) {
      promote_pair(work.partial + at, work.scale_a + row, work.scale_b + col, work.acc + at);
    });
  }

  void load_scales(const Tile& tile, std::int64_t k0, Workspace& work) const {
    operands_.a.load_scales(tile.row0, tile.rows, k0, work.scale_a);
    operands_.b.load_scales(tile.col0, tile.cols, k0, work.scale_b);
  }

  void write(const Tile& tile, Workspace& work) const {
    const bool scales = has_scales_of_all_k(problem_) && operands_.k > 0;
    if (scales) load_scales(tile, 0, work);
    for_each_strip_pair(tile, [&](std::int64_t row, std::int64_t col, std::int64_t at) {
      for (std::int64_t r = 0; r < std::min(kStripRows, tile.rows - row); ++r) {
        for (std::int64_t c = 0; c < std::min(kStripCols, tile.cols - col); ++c) {
          const std::int64_t to = (tile.row0 + row + r) * ldd_ + tile.col0 + col + c;
          float value = work.acc[at + r * kStripCols + c];
          if (scales) value = work.scale_a[row + r] * work.scale_b[col + c] * value;
          if (problem_.bias)
            value += load_as_float(args_.bias, *problem_.bias, tile.col0 + col + c);
          if (problem_.accumulate) value += load_as_float(args_.d, problem_.d.dtype, to);
          store(args_.d, problem_.d.dtype, to, value);
          if (args_.sentry != nullptr &&
              !std::isfinite(load_as_float(args_.d, problem_.d.dtype, to))) {
            std::atomic_ref(*args_.sentry).store(1, std::memory_order_relaxed);
          }
          if (problem_.sentry == Sentry::kSquares)
            add_squares(*reinterpret_cast<octile_squares*>(args_.sentry), value * value);
        }
      }
    });
  }

  const GemmProblem& problem_;
  const GemmArgs& args_;
  const Operands& operands_;
  std::int64_t ldd_;
};

// Computes R and S of one tile and writes them at the tile's place in the window.
void compute_fp64(const GemmProblem& problem, const GemmArgs& args, const Operands& operands,
                  const Fp64Window& window, const Tile& tile, Fp64Workspace& work, double* r,
                  double* s) {
  const double initial = problem.accumulate ? static_cast<double>(args.initial_d) : 0.0;
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const std::int64_t at = (tile.row0 - window.row0 + i) * window.cols + tile.col0 - window.col0;
    std::fill_n(s + at, tile.cols, 0.0);
    std::fill_n(r + at, tile.cols, initial);
    if (!problem.bias) continue;
    for (std::int64_t j = 0; j < tile.cols; ++j) {
      r[at + j] += static_cast<double>(load_as_float(args.bias, *problem.bias, tile.col0 + j));
    }
  }
  const std::int64_t chunk = is_mx(problem.a) ? 32 : kChunk;
  for (std::int64_t k0 = 0; k0 < operands.k; k0 += chunk) {
    const std::int64_t count = std::min(chunk, operands.k - k0);
    operands.a.decode<kStripRows>(tile.row0, tile.rows, k0, count, work.a);
    operands.b.decode<kStripCols>(tile.col0, tile.cols, k0, count, work.b);
    operands.a.load_scales(tile.row0, tile.rows, k0, work.scale_a);
    operands.b.load_scales(tile.col0, tile.cols, k0, work.scale_b);
    for (std::int64_t col = 0; col < tile.cols; col += kStripCols) {
      for (std::int64_t row = 0; row < tile.rows; row += kStripRows) {
        std::fill_n(work.partial, kStripPair, 0.0);
        std::fill_n(work.magnitudes, kStripPair, 0.0);
        multiply_strips_fp64(work.a + row * count, work.b + col * count, count, work.partial,
                             work.magnitudes);
        for (std::int64_t i = 0; i < std::min(kStripRows, tile.rows - row); ++i) {
          for (std::int64_t j = 0; j < std::min(kStripCols, tile.cols - col); ++j) {
            const double scale = work.scale_a[row + i] * work.scale_b[col + j];
            const std::int64_t to = (tile.row0 - window.row0 + row + i) * window.cols + tile.col0 -
                                    window.col0 + col + j;
            r[to] += work.partial[i * kStripCols + j] * scale;
            s[to] += work.magnitudes[i * kStripCols + j] * std::fabs(scale);
          }
        }
      }
    }
  }
}

// The rows of the window in each GEMM.
Status several_fp64(const GemmProblem& problem, const GemmArgs& args, const Fp64Window& window,
                    double* r, double* s, int threads) {
  std::fill_n(r, window.rows * window.cols, 0.0);
  std::fill_n(s, window.rows * window.cols, 0.0);
  return for_each_gemm(problem, args, [&](const GemmPart& part) -> Status {
    const std::int64_t first = std::max(window.row0, part.row0);
    const std::int64_t end = std::min(window.row0 + window.rows, part.row0 + part.args.m);
    if (first >= end) return {};
    const std::int64_t at = (first - window.row0) * window.cols;
    return gemm_fp64(part.problem, part.args,
                     {first - part.row0, end - first, window.col0, window.cols}, r + at, s + at,
                     threads);
  });
}

Status out_of_memory() {
  return fail(ErrorCode::kOutOfMemory, "no host memory for the reference product's tiles");
}

Status gemm_of_plain_d(const GemmProblem& problem, const GemmArgs& args, const Operands& operands,
                       int threads) {
  // D keeps its bits, also those of -0 and NaN.
  if (operands.k == 0 && problem.accumulate && !problem.bias) return {};
  const Tiling tiles({0, args.m, 0, problem.n}, kTileRows, kTileCols);
  const Product product(problem, args, operands);
  parallel_for(tiles.count(), 1, threads, [&](std::int64_t begin, std::int64_t end) {
    const auto work = std::make_unique_for_overwrite<Workspace>();
    for (std::int64_t i = begin; i < end; ++i) product.compute(tiles[i], *work);
  });
  return {};
}

// Quantises a block of up to 128 sums in a row (docs/numerics.md "Quantising") and returns its
// decode scale.
float quantize_block(std::span<const float> sums, const TensorType& type, std::uint8_t* codes) {
  float amax = 0;
  for (const float x : sums) {
    if (std::isfinite(x)) amax = std::max(amax, std::fabs(x));
  }
  const bool power_of_two = type.scale == ScaleFormat::kF32Pow2;
  const float encode = encode_of_amax(amax, type.dtype, DType::kFP32, power_of_two);
  for (const float x : sums) {
    *codes++ = to_fp8(x * encode, type.dtype);
  }
  return 1.0F / encode;
}

// Computes the fp32 sums, then quantises them.
Status gemm_of_fp8_d(const GemmProblem& problem, const GemmArgs& args, const Operands& operands,
                     int threads) {
  GemmProblem plain = problem;
  plain.d = {DType::kFP32};
  const auto n = static_cast<std::size_t>(problem.n);
  std::vector<float> result(static_cast<std::size_t>(args.m) * n);
  GemmArgs sums = args;
  sums.d = result.data();
  sums.ldd = problem.n;
  if (Status s = gemm_of_plain_d(plain, sums, operands, threads); !s) return s;
  const std::int64_t ldd = args.ldd == 0 ? problem.n : args.ldd;
  const std::int64_t padded = packed_scale_ld(problem.d, args.m, problem.n);
  const std::int64_t scale_ld = args.d_scale_ld == 0 ? padded : args.d_scale_ld;
  auto* codes = static_cast<std::uint8_t*>(args.d);
  auto* scales = static_cast<float*>(args.d_scale);
  for (std::int64_t block = 0; block * kChunk < problem.n; ++block) {
    const std::int64_t first = block * kChunk;
    const auto count = static_cast<std::size_t>(std::min(kChunk, problem.n - first));
    for (std::int64_t row = 0; row < args.m; ++row) {
      const std::span<const float> x(result.data() + row * problem.n + first, count);
      scales[block * scale_ld + row] = quantize_block(x, problem.d, codes + row * ldd + first);
    }
    if (!args.pads_d_scale) continue;
    std::fill(scales + block * scale_ld + args.m, scales + block * scale_ld + padded, 1.0F);
  }
  return {};
}

}  // namespace

Status gemm(const GemmProblem& problem, const GemmArgs& args, int threads) {
  if (has_several_gemms(problem)) {
    return for_each_gemm(problem, args, [&](const GemmPart& part) {
      return gemm(part.problem, part.args, threads);
    });
  }
  const auto operands = open_operands(problem, args);
  if (!operands) return tl::unexpected(operands.error());
  if (auto s = check_output(problem, args); !s) return s;
  try {
    return is_fp8(problem.d.dtype) ? gemm_of_fp8_d(problem, args, *operands, threads)
                                   : gemm_of_plain_d(problem, args, *operands, threads);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

Status gemm_fp64(const GemmProblem& problem, const GemmArgs& args, const Fp64Window& window,
                 double* r, double* s, int threads) {
  if (has_several_gemms(problem)) return several_fp64(problem, args, window, r, s, threads);
  const auto operands = open_operands(problem, args);
  if (!operands) return tl::unexpected(operands.error());
  if (window.row0 < 0 || window.rows < 0 || window.row0 > args.m - window.rows || window.col0 < 0 ||
      window.cols < 0 || window.col0 > problem.n - window.cols) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the window is rows [{}, +{}) x columns [{}, +{}); it must lie in the "
                            "{} x {} product",
                            window.row0, window.rows, window.col0, window.cols, args.m, problem.n));
  }
  const Tiling tiles(window, kFp64Rows, kFp64Cols);
  try {
    parallel_for(tiles.count(), 1, threads, [&](std::int64_t begin, std::int64_t end) {
      const auto work = std::make_unique_for_overwrite<Fp64Workspace>();
      for (std::int64_t i = begin; i < end; ++i) {
        compute_fp64(problem, args, *operands, window, tiles[i], *work, r, s);
      }
    });
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
  return {};
}

}  // namespace octile::reference
