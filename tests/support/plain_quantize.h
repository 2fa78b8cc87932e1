// A second, plain implementation of quantising as docs/numerics.md defines it. The host reference
// is compared with it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "generator/core/types.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/synthetic.h"
#include "tests/support/quantize_call.h"

namespace octile::reference::plain {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr std::uint8_t kPoison = 0xAB;

// A matrix of the input type with rows `ld` apart. Gaps hold NaN, so that reading them shows.
struct Input {
  std::int64_t rows, cols, ld;
  DType dtype;
  std::vector<float> values;  // rounded to the type, [rows][ld]
  std::vector<std::uint8_t> bytes;

  Input(std::int64_t r, std::int64_t c, std::int64_t stride, DType t)
      : rows(r),
        cols(c),
        ld(stride),
        dtype(t),
        values(static_cast<std::size_t>(r * stride), kNan) {}
  float& at(std::int64_t row, std::int64_t col) {
    return values[static_cast<std::size_t>(row * ld + col)];
  }
  float at(std::int64_t row, std::int64_t col) const {
    return values[static_cast<std::size_t>(row * ld + col)];
  }
  void encode() {
    bytes.resize(values.size() * static_cast<std::size_t>(size_of(dtype)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kFP32) {
        reinterpret_cast<float*>(bytes.data())[i] = values[i];
      } else {
        const bool bf16 = dtype == DType::kBF16;
        const std::uint16_t half = bf16 ? float_to_bf16(values[i]) : float_to_fp16(values[i]);
        reinterpret_cast<std::uint16_t*>(bytes.data())[i] = half;
        values[i] = bf16 ? bf16_to_float(half) : fp16_to_float(half);
      }
    }
  }
};

inline Input random_input(std::int64_t rows, std::int64_t cols, DType dtype, std::int64_t gap = 0) {
  Input input(rows, cols, cols + gap, dtype);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const auto i = static_cast<std::uint64_t>(r * cols + c);
      // Blocks differ widely in size, so that a scale from the wrong block shows.
      const int exponent = static_cast<int>((r / 128 * 5 + c / 128 * 3) % 13) - 6;
      input.at(r, c) = std::ldexp(static_cast<float>(random_normal(7, i)), exponent);
    }
  }
  input.encode();
  return input;
}

// Encode and decode scale of one block, computed as plainly as possible.
struct BlockScale {
  float encode_scale, decode;
};
inline BlockScale scale_of(const std::vector<float>& block, const QuantizeProblem& p) {
  float amax = 0;
  for (const float x : block) {
    if (std::isfinite(x) && std::fabs(x) > amax) amax = std::fabs(x);
  }
  if (amax < p.amax_epsilon) amax = p.amax_epsilon;
  float encode = amax == 0 ? 1.0F : max_finite(p.q.dtype) / amax;
  if (std::isinf(encode)) encode = max_finite(p.x.dtype);
  if (p.q.scale == ScaleFormat::kF32Pow2 || p.q.scale == ScaleFormat::kUe8m0x4) {
    int exponent = 0;
    std::frexp(encode, &exponent);
    encode = std::ldexp(1.0F, exponent - 1);
  }
  if (p.q.scale == ScaleFormat::kE8M0 && amax != 0) {
    // The power of two is found by search. kUp: the smallest for which amax / 2^e lies within the
    // format. Floor: the largest that is at most amax divided by the format's largest power of two.
    const bool up = p.e8m0_rounding == E8M0Rounding::kUp;
    const double limit = up ? static_cast<double>(max_finite(p.q.dtype))
                            : (p.q.dtype == DType::kE4M3 ? 256.0 : 32768.0);
    int e = -127;
    if (up) {
      while (std::ldexp(limit, e) < static_cast<double>(amax)) ++e;
    } else {
      while (std::ldexp(limit, e + 1) <= static_cast<double>(amax)) ++e;
    }
    encode = std::ldexp(1.0F, -e);
  }
  return {encode, 1.0F / encode};
}

inline std::uint8_t code_of(float x, float encode, DType fp8) {
  if (!std::isfinite(x)) return to_fp8(x, fp8);
  return to_fp8(std::clamp(x * encode, -max_finite(fp8), max_finite(fp8)), fp8);
}

struct Outputs {
  std::vector<std::uint8_t> q, q_transposed;
  std::vector<std::uint8_t> scale, scale_transposed;  // bytes
};

// Stores a decode scale in the format, at scale `index` (byte `index` of ue8m0x4 words).
inline void put_scale(std::vector<std::uint8_t>& bytes, ScaleFormat f, std::int64_t index,
                      float decode) {
  const auto bits = std::bit_cast<std::uint32_t>(decode);
  if (f == ScaleFormat::kE8M0 || f == ScaleFormat::kUe8m0x4) {
    int exponent = 0;
    std::frexp(decode, &exponent);  // decode = 2^(exponent - 1)
    bytes[static_cast<std::size_t>(index)] = static_cast<std::uint8_t>(exponent - 1 + 127);
  } else if (f == ScaleFormat::kBF16) {
    const std::uint16_t half = float_to_bf16(decode);
    std::memcpy(&bytes[static_cast<std::size_t>(2 * index)], &half, 2);
  } else {
    std::memcpy(&bytes[static_cast<std::size_t>(4 * index)], &bits, 4);
  }
}

inline bool wants(const QuantizeProblem& p, QuantizeOutput o) {
  return (static_cast<int>(p.output) & static_cast<int>(o)) != 0;
}

// One layout of the table in docs/numerics.md, written a second time. The tensor of rows x cols
// elements at(r, c) is cut into blocks. Data are [rows][data_ld]. Scales are [outer][inner], and
// block (i, j) is at i * inner + j or, with `lines_first`, at j * inner + i.
struct Layout {
  std::int64_t rows, cols, data_ld;
  std::int64_t block_rows, block_cols;
  std::int64_t outer, inner;
  bool lines_first = false;
};

template <typename At>
void expect_layout(const Layout& l, const QuantizeProblem& p, const At& at,
                   std::vector<std::uint8_t>& q, std::vector<std::uint8_t>& scales) {
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  const bool packed = p.q.scale == ScaleFormat::kUe8m0x4;
  const std::int64_t runs = packed ? round_up(l.outer, 4) : l.outer;
  const int bytes = p.q.scale == ScaleFormat::kBF16             ? 2
                    : p.q.scale == ScaleFormat::kE8M0 || packed ? 1
                                                                : 4;
  q.assign(size(l.rows * l.data_ld), 0);
  scales.assign(size(runs * l.inner * bytes), 0);
  const auto index = [&](std::int64_t run, std::int64_t i) {
    return packed ? (run / 4 * l.inner + i) * 4 + run % 4 : run * l.inner + i;
  };
  for (std::int64_t run = 0; run < runs; ++run) {
    for (std::int64_t i = 0; i < l.inner; ++i) put_scale(scales, p.q.scale, index(run, i), 1.0F);
  }
  for (std::int64_t r0 = 0; r0 < l.rows; r0 += l.block_rows) {
    for (std::int64_t c0 = 0; c0 < l.cols; c0 += l.block_cols) {
      const std::int64_t r1 = std::min(l.rows, r0 + l.block_rows);
      const std::int64_t c1 = std::min(l.cols, c0 + l.block_cols);
      std::vector<float> block;
      for (std::int64_t r = r0; r < r1; ++r) {
        for (std::int64_t c = c0; c < c1; ++c) block.push_back(at(r, c));
      }
      const BlockScale s = scale_of(block, p);
      const std::int64_t i = r0 / l.block_rows, j = c0 / l.block_cols;
      put_scale(scales, p.q.scale, l.lines_first ? index(j, i) : index(i, j), s.decode);
      for (std::int64_t r = r0; r < r1; ++r) {
        for (std::int64_t c = c0; c < c1; ++c) {
          q[size(r * l.data_ld + c)] = code_of(at(r, c), s.encode_scale, p.q.dtype);
        }
      }
    }
  }
}

// Returns the table's row for a tensor of rows x cols. The transposed copy has that of cols x rows.
inline Layout layout_of(Granularity g, std::int64_t rows, std::int64_t cols, std::int64_t data_ld) {
  const std::int64_t all_rows = std::max<std::int64_t>(rows, 1);
  const std::int64_t all_cols = std::max<std::int64_t>(cols, 1);
  const auto pad = [](std::int64_t n) { return round_up(n, 4); };
  switch (g) {
    case Granularity::kPerTensor:
      return {rows, cols, data_ld, all_rows, all_cols, 1, 1};
    case Granularity::kPerRow:
      return {rows, cols, data_ld, 1, all_cols, 1, pad(rows), true};
    case Granularity::k1x128:
      return {rows, cols, data_ld, 1, 128, ceil_div(cols, 128), pad(rows), true};
    case Granularity::k128x128:
      return {rows, cols, data_ld, 128, 128, ceil_div(rows, 128), pad(ceil_div(cols, 128))};
    case Granularity::k1x32:
      return {rows, cols, data_ld, 1, 32, rows, pad(ceil_div(cols, 32))};
    default:
      return {rows, cols, data_ld, 32, 32, ceil_div(rows, 32), pad(ceil_div(cols, 32))};
  }
}

inline Outputs expected(const Input& x, const QuantizeProblem& p) {
  Outputs out;
  if (wants(p, QuantizeOutput::kRowwise)) {
    expect_layout(
        layout_of(p.q.granularity, x.rows, x.cols, x.cols), p,
        [&](std::int64_t r, std::int64_t c) { return x.at(r, c); }, out.q, out.scale);
  }
  if (wants(p, QuantizeOutput::kTransposed)) {
    expect_layout(
        layout_of(p.q.granularity, x.cols, x.rows, round_up(x.rows, 16)), p,
        [&](std::int64_t c, std::int64_t r) { return x.at(r, c); }, out.q_transposed,
        out.scale_transposed);
  }
  return out;
}

// Runs the quantiser over poisoned arrays of the expected sizes.
inline Outputs run(const Input& x, const QuantizeProblem& p, const Outputs& shape,
                   int threads = 2) {
  Outputs out;
  out.q.assign(shape.q.size(), kPoison);
  out.q_transposed.assign(shape.q_transposed.size(), kPoison);
  out.scale.assign(shape.scale.size(), kPoison);
  out.scale_transposed.assign(shape.scale_transposed.size(), kPoison);
  QuantizeArguments args =
      tests::rowwise_args(x.rows, x.bytes.data(), out.q.data(), out.scale.data());
  args.ldx = x.ld;
  args.ldq = x.cols;
  args.q_transposed = out.q_transposed.data();
  args.scale_transposed = out.scale_transposed.data();
  const Status s = tests::run_reference(p, args, threads);
  EXPECT_TRUE(s) << s.error().message;
  return out;
}

inline float scale_at(const std::vector<std::uint8_t>& scales, std::size_t index) {
  float value = 0;
  std::memcpy(&value, &scales[4 * index], 4);
  return value;
}

inline void expect_same(const Outputs& got, const Outputs& want) {
  EXPECT_EQ(got.q, want.q);
  EXPECT_EQ(got.q_transposed, want.q_transposed);
  EXPECT_EQ(got.scale, want.scale);
  EXPECT_EQ(got.scale_transposed, want.scale_transposed);
}

inline void check(const Input& x, const QuantizeProblem& p) {
  const Outputs want = expected(x, p);
  expect_same(run(x, p, want), want);
}

inline QuantizeProblem problem_of(const Input& x, Granularity g, DType fp8 = DType::kE4M3,
                                  ScaleFormat f = ScaleFormat::kNone) {
  QuantizeProblem p;
  p.cols = x.cols;
  p.x = {x.dtype};
  p.q = {fp8, g, f == ScaleFormat::kNone ? default_scale_format(g) : f};
  p.output = QuantizeOutput::kBoth;
  return p;
}

inline constexpr Granularity kGranularities[] = {Granularity::kPerTensor, Granularity::kPerRow,
                                                 Granularity::k1x128,     Granularity::k128x128,
                                                 Granularity::k1x32,      Granularity::k32x32};

inline std::vector<ScaleFormat> formats_of(Granularity g) {
  if (default_scale_format(g) == ScaleFormat::kE8M0) return {ScaleFormat::kE8M0};
  std::vector formats{ScaleFormat::kF32, ScaleFormat::kF32Pow2, ScaleFormat::kBF16};
  if (g == Granularity::k1x128) formats.push_back(ScaleFormat::kUe8m0x4);
  return formats;
}

}  // namespace octile::reference::plain
