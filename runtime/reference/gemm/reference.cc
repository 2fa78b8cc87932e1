#include "runtime/reference/gemm/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <new>
#include <span>
#include <stdexcept>
#include <vector>

#include "generator/core/layout.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/cast_bits.h"
#include "runtime/reference/gemm/joined_panels.h"
#include "runtime/reference/gemm/reference_groups.h"
#include "runtime/reference/gemm/reference_kernels.h"
#include "runtime/reference/gemm/reference_tiles.h"
#include "runtime/reference/gemm/squares.h"
#include "runtime/reference/parallel.h"

namespace octile::reference {
namespace {

struct Workspace {
  alignas(64) float a[kTileRows * kChunk];
  alignas(64) float b[kTileCols * kChunk];
  alignas(64) float partial[kTileRows * kTileCols];  // [col strip][row strip][6][16]
  alignas(64) float acc[kTileRows * kTileCols];
  alignas(64) float scale_a[kTileRows];
  alignas(64) float scale_b[kTileCols];
};

// Returns true if the type's scales are of blocks and powers of two.
bool are_powers(const TensorType& type) {
  return has_block_scales(type) &&
         (type.scale == ScaleFormat::kF32Pow2 || type.scale == ScaleFormat::kUe8m0x4 ||
          type.scale == ScaleFormat::kE8M0);
}

// Returns the part of a scale that an instruction reads: its exponent, where 255 is NaN.
float read_by_instruction(float scale) {
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(scale) >> 23 & 255U;
  return exponent == 255 ? std::numeric_limits<float>::quiet_NaN() : power_of_exponent(exponent);
}

// Refuses problems that the host GEMM does not define.
Status check_problem(const GemmProblem& problem) {
  if (Status ok = check_operand_types(problem); !ok) return ok;
  const bool inside = has_scales_inside(problem);
  if ((is_mx(problem.a) || is_mx(problem.b)) &&
      (problem.a.granularity != Granularity::k1x32 || !is_mx(problem.b) ||
       (problem.promote != 32 && !inside))) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("a is {}, b is {}, promote is {}; MX is a in 1x32, b in 1x32 or 32x32 "
                            "and promote=32 or none",
                            to_text(problem.a), to_text(problem.b), promote_text(problem.promote)));
  }
  if (inside && !(are_powers(problem.a) && are_powers(problem.b))) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("promote is none and a is {}, b is {}; block scales are then pow2, "
                            "ue8m0x4 or e8m0, of both",
                            to_text(problem.a), to_text(problem.b)));
  }
  const bool blocks = !inside && !has_scales_of_all_k(problem);
  const std::array<int, 6> intervals{32, 64, 128, 256, 512, kPromoteNone};
  const auto* const end = intervals.begin() + (blocks ? 3 : 6);
  if (std::find(intervals.begin(), end, problem.promote) == end) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("promote is {}; 32, 64 and 128 are allowed, without block scales also "
                            "256, 512 and none; a is {}, b is {}",
                            problem.promote, to_text(problem.a), to_text(problem.b)));
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
  Product(const GemmProblem& problem, const GemmCall& args, const Operands& operands)
      : problem_(problem), args_(args), operands_(operands) {}

  void compute(const Tile& tile, Workspace& work) const {
    if (has_scales_inside(problem_)) return compute_inside(tile, work);
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
  // Every product is multiplied by its scales, and one sum is of all K.
  void compute_inside(const Tile& tile, Workspace& work) const {
    std::fill(std::begin(work.acc), std::end(work.acc), 0.0F);
    const std::int64_t chunk = is_mx(problem_.a) ? 32 : kChunk;
    for (std::int64_t k0 = 0; k0 < operands_.k; k0 += chunk) {
      const std::int64_t count = std::min(chunk, operands_.k - k0);
      operands_.a.decode<kStripRows>(tile.row0, tile.rows, k0, count, work.a);
      operands_.b.decode<kStripCols>(tile.col0, tile.cols, k0, count, work.b);
      load_scales(tile, k0, work);
      for (float& scale : work.scale_a) scale = read_by_instruction(scale);
      for (float& scale : work.scale_b) scale = read_by_instruction(scale);
      for_each_strip_pair(tile, [&](std::int64_t row, std::int64_t col, std::int64_t at) {
        multiply_strips_scaled(work.a + row * count, work.b + col * count, count,
                               work.scale_a + row, work.scale_b + col, work.acc + at);
      });
    }
    write(tile, work);
  }

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
          const std::int64_t to = (tile.row0 + row + r) * args_.ldd + tile.col0 + col + c;
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
  const GemmCall& args_;
  const Operands& operands_;
};

Tiling tiles_of(const GemmProblem& problem, std::int64_t m) {
  return {{0, m, 0, problem.n}, kTileRows, kTileCols};
}

// What GEMMs of up to `m` rows need beside their arguments, allocated before any of them writes.
struct Scratch {
  Scratch(const GemmProblem& problem, std::int64_t m, int threads)
      : works(thread_count(tiles_of(problem, m).count(), 1, threads)),
        sums(is_fp8(problem.d.dtype) ? static_cast<std::size_t>(m * problem.n) : 0) {}
  Workspaces<Workspace> works;
  std::vector<float> sums;  // of FP8 D, before they are quantised
};

void gemm_of_plain_d(const GemmProblem& problem, const GemmCall& args, const Operands& operands,
                     const Scratch& scratch) {
  // D keeps its bits, also those of -0 and NaN.
  if (operands.k == 0 && problem.accumulate && !problem.bias) return;
  const Tiling tiles = tiles_of(problem, args.shape.m);
  const Product product(problem, args, operands);
  parallel_for(tiles.count(), 1, scratch.works.threads(),
               [&](std::int64_t begin, std::int64_t end, int thread) {
                 for (std::int64_t i = begin; i < end; ++i)
                   product.compute(tiles[i], scratch.works[thread]);
               });
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
void gemm_of_fp8_d(const GemmProblem& problem, const GemmCall& args, const Operands& operands,
                   Scratch& scratch) {
  GemmProblem plain = problem;
  plain.d = {DType::kFP32};
  GemmCall sums = args;
  sums.d = scratch.sums.data();
  sums.ldd = problem.n;
  gemm_of_plain_d(plain, sums, operands, scratch);
  const std::int64_t padded = packed_scale_ld(problem.d, args.shape.m, problem.n);
  auto* codes = static_cast<std::uint8_t*>(args.d);
  float* const scales = args.d_scale;
  for (std::int64_t block = 0; block * kChunk < problem.n; ++block) {
    const std::int64_t first = block * kChunk;
    const auto count = static_cast<std::size_t>(std::min(kChunk, problem.n - first));
    for (std::int64_t row = 0; row < args.shape.m; ++row) {
      const std::span<const float> x(scratch.sums.data() + row * problem.n + first, count);
      scales[block * args.d_scale_ld + row] =
          quantize_block(x, problem.d, codes + row * args.ldd + first);
    }
    if (!args.pads_d_scale) continue;
    float* const of_block = scales + block * args.d_scale_ld;
    std::fill(of_block + args.shape.m, of_block + padded, 1.0F);
  }
}

// Computes a GEMM that is neither of groups nor of a batch.
void gemm_alone(const GemmProblem& problem, const GemmCall& args, Scratch& scratch) {
  const Operands operands = operands_of(problem, args);
  if (is_fp8(problem.d.dtype)) {
    gemm_of_fp8_d(problem, args, operands, scratch);
  } else {
    gemm_of_plain_d(problem, args, operands, scratch);
  }
}

}  // namespace

Status gemm(const GemmProblem& problem, const GemmCall& args, int threads) try {
  if (Status ok = check_problem(problem); !ok) return ok;
  if (problem.sums_batch) {
    const JoinedPanels joined(problem, args);
    return gemm(joined.problem(), joined.args(), threads);
  }
  if (!has_several_gemms(problem)) {
    Scratch scratch(problem, args.shape.m, threads);
    gemm_alone(problem, args, scratch);
    return {};
  }
  std::int64_t most_rows = 0;
  for_each_gemm(problem, args,
                [&](const GemmPart& part) { most_rows = std::max(most_rows, part.args.shape.m); });
  Scratch scratch(problem, most_rows, threads);
  for_each_gemm(problem, args,
                [&](const GemmPart& part) { gemm_alone(part.problem, part.args, scratch); });
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
} catch (const std::length_error&) {
  return out_of_memory();
}

}  // namespace octile::reference
