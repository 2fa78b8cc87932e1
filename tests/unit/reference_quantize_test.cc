#include "runtime/reference/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "generator/layout.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/dequantize.h"
#include "runtime/reference/synthetic.h"
#include "tests/support/quantize_case.h"
#include "tests/support/quantize_cells.h"

namespace octile::reference {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint8_t kPoison = 0xAB;

// A matrix in the input type, rows `ld` apart, gaps filled with NaN so that a read of them shows.
struct Input {
  std::int64_t rows, cols, ld;
  DType dtype;
  std::vector<float> values;  // as the type holds them, [rows][ld]
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

Input random_input(std::int64_t rows, std::int64_t cols, DType dtype, std::int64_t gap = 0) {
  Input input(rows, cols, cols + gap, dtype);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const auto i = static_cast<std::uint64_t>(r * cols + c);
      // Blocks of quite different sizes, so that a scale taken from the wrong block shows.
      const int exponent = static_cast<int>((r / 128 * 5 + c / 128 * 3) % 13) - 6;
      input.at(r, c) = std::ldexp(static_cast<float>(random_normal(7, i)), exponent);
    }
  }
  input.encode();
  return input;
}

// The contract for one block, written a second time as plainly as possible.
struct BlockScale {
  float encode, decode;
};
BlockScale scale_of(const std::vector<float>& block, const QuantizeProblem& p) {
  float amax = 0;
  for (const float x : block) {
    if (std::isfinite(x) && std::fabs(x) > amax) amax = std::fabs(x);
  }
  if (amax < p.amax_epsilon) amax = p.amax_epsilon;
  float encode = amax == 0 ? 1.0F : max_finite(p.q.dtype) / amax;
  if (std::isinf(encode)) encode = max_finite(p.x.dtype);
  if (p.q.scale == ScaleFormat::kF32Pow2 || p.q.scale == ScaleFormat::kPackedPow2) {
    int exponent = 0;
    std::frexp(encode, &exponent);
    encode = std::ldexp(1.0F, exponent - 1);
  }
  if (p.q.scale == ScaleFormat::kE8M0 && amax != 0) {
    // The power of two by search: up, the smallest that leaves amax / 2^e within the format; floor,
    // the largest that is at most amax over the format's largest power of two.
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

std::uint8_t code_of(float x, float encode, DType fp8) {
  if (!std::isfinite(x)) return to_fp8(x, fp8);
  return to_fp8(std::clamp(x * encode, -max_finite(fp8), max_finite(fp8)), fp8);
}

struct Outputs {
  std::vector<std::uint8_t> q, q_transposed;
  std::vector<std::uint8_t> scale, scale_transposed;  // bytes
};

// A decode scale as the format stores it, at scale `index` (byte `index` of packed words).
void put_scale(std::vector<std::uint8_t>& bytes, ScaleFormat f, std::int64_t index, float decode) {
  const auto bits = std::bit_cast<std::uint32_t>(decode);
  if (f == ScaleFormat::kE8M0 || f == ScaleFormat::kPackedPow2) {
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

bool wants(const QuantizeProblem& p, QuantizeOutput o) {
  return (static_cast<int>(p.output) & static_cast<int>(o)) != 0;
}

// One layout of the contract's table, written out a second time: the tensor of rows x cols elements
// at(r, c), cut into blocks; data [rows][data_ld]; scales [outer][inner] with (i, j) of a block at
// i * inner + j or, `lines_first`, at j * inner + i.
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
  const bool packed = p.q.scale == ScaleFormat::kPackedPow2;
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
          q[size(r * l.data_ld + c)] = code_of(at(r, c), s.encode, p.q.dtype);
        }
      }
    }
  }
}

// The row of the table for a tensor of rows x cols: the transposed copy's is that of cols x rows.
Layout layout_of(Granularity g, std::int64_t rows, std::int64_t cols, std::int64_t data_ld) {
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

Outputs expected(const Input& x, const QuantizeProblem& p) {
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
Outputs run(const Input& x, const QuantizeProblem& p, const Outputs& shape, int threads = 2) {
  Outputs out;
  out.q.assign(shape.q.size(), kPoison);
  out.q_transposed.assign(shape.q_transposed.size(), kPoison);
  out.scale.assign(shape.scale.size(), kPoison);
  out.scale_transposed.assign(shape.scale_transposed.size(), kPoison);
  const QuantizeArgs args{.rows = x.rows,
                          .x = x.bytes.data(),
                          .ldx = x.ld,
                          .q = out.q.data(),
                          .scale = out.scale.data(),
                          .q_transposed = out.q_transposed.data(),
                          .scale_transposed = out.scale_transposed.data()};
  const Status s = quantize(p, args, threads);
  EXPECT_TRUE(s) << s.error().message;
  return out;
}

float scale_at(const std::vector<std::uint8_t>& scales, std::size_t index) {
  float value = 0;
  std::memcpy(&value, &scales[4 * index], 4);
  return value;
}

void expect_same(const Outputs& got, const Outputs& want) {
  EXPECT_EQ(got.q, want.q);
  EXPECT_EQ(got.q_transposed, want.q_transposed);
  EXPECT_EQ(got.scale, want.scale);
  EXPECT_EQ(got.scale_transposed, want.scale_transposed);
}

void check(const Input& x, const QuantizeProblem& p) {
  const Outputs want = expected(x, p);
  expect_same(run(x, p, want), want);
}

QuantizeProblem problem_of(const Input& x, Granularity g, DType fp8 = DType::kE4M3,
                           ScaleFormat f = ScaleFormat::kNone) {
  QuantizeProblem p;
  p.cols = x.cols;
  p.x = {x.dtype};
  p.q = {fp8, g, f == ScaleFormat::kNone ? default_scale_format(g) : f};
  p.output = QuantizeOutput::kBoth;
  return p;
}

constexpr Granularity kGranularities[] = {Granularity::kPerTensor, Granularity::kPerRow,
                                          Granularity::k1x128,     Granularity::k128x128,
                                          Granularity::k1x32,      Granularity::k32x32};

std::vector<ScaleFormat> formats_of(Granularity g) {
  if (default_scale_format(g) == ScaleFormat::kE8M0) return {ScaleFormat::kE8M0};
  std::vector formats{ScaleFormat::kF32, ScaleFormat::kF32Pow2, ScaleFormat::kBF16};
  if (g == Granularity::k1x128) formats.push_back(ScaleFormat::kPackedPow2);
  return formats;
}

using Shape = std::pair<std::int64_t, std::int64_t>;
class QuantizeShapeTest : public testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, QuantizeShapeTest,
                         testing::Values(Shape{1, 1}, Shape{1, 16}, Shape{3, 128}, Shape{65, 96},
                                         Shape{303, 300}, Shape{128, 640}, Shape{257, 1152}),
                         [](const auto& p) {
                           return std::to_string(p.param.first) + "x" +
                                  std::to_string(p.param.second);
                         });

TEST_P(QuantizeShapeTest, EveryTypeMatchesThePlainFormOfTheContract) {
  const auto [rows, cols] = GetParam();
  for (const DType x : {DType::kBF16, DType::kFP16, DType::kFP32}) {
    const Input input = random_input(rows, cols, x);
    for (const Granularity g : kGranularities) {
      for (const DType fp8 : {DType::kE4M3, DType::kE5M2}) {
        for (const ScaleFormat f : formats_of(g)) {
          QuantizeProblem p = problem_of(input, g, fp8, f);
          SCOPED_TRACE(to_text(Problem{p}));
          check(input, p);
          if (f != ScaleFormat::kE8M0) continue;
          p.e8m0_rounding = E8M0Rounding::kOcpFloor;
          check(input, p);
        }
      }
    }
  }
}

TEST(Quantize, StridedInputIsReadWithoutItsGaps) {
  for (const Granularity g : kGranularities) {
    const Input input = random_input(130, 200, DType::kBF16, 24);
    check(input, problem_of(input, g));
  }
}

TEST(Quantize, StridedOutputLeavesTheGapsAlone) {
  const Input x = random_input(70, 130, DType::kBF16);
  QuantizeProblem p = problem_of(x, Granularity::k1x128);
  p.output = QuantizeOutput::kRowwise;
  constexpr std::int64_t kLdq = 144, kScaleLd = 80;
  std::vector<std::uint8_t> q(70 * kLdq, kPoison);
  std::vector<float> scale(2 * kScaleLd, -5.0F);
  ASSERT_TRUE(quantize(p, {.rows = 70,
                           .x = x.bytes.data(),
                           .q = q.data(),
                           .ldq = kLdq,
                           .scale = scale.data(),
                           .scale_ld = kScaleLd}));
  const Outputs want = expected(x, p);
  for (std::int64_t r = 0; r < 70; ++r) {
    for (std::int64_t c = 0; c < kLdq; ++c) {
      ASSERT_EQ(q[static_cast<std::size_t>(r * kLdq + c)],
                c < 130 ? want.q[static_cast<std::size_t>(r * 130 + c)] : kPoison);
    }
  }
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t r = 0; r < kScaleLd; ++r) {
      ASSERT_EQ(scale[static_cast<std::size_t>(b * kScaleLd + r)],
                r < 72 ? scale_at(want.scale, static_cast<std::size_t>(b * 72 + r)) : -5.0F);
    }
  }
}

// DeepGEMM asks for scale_ld = ceil(k/128): no padding may be written then.
TEST(Quantize, TightScaleStrideIsHonoured) {
  const Input x = random_input(100, 128 * 5, DType::kBF16);
  QuantizeProblem p = problem_of(x, Granularity::k128x128);
  p.output = QuantizeOutput::kRowwise;
  const Outputs want = expected(x, p);
  std::vector<std::uint8_t> q(want.q.size());
  std::vector<float> scale(6, -5.0F);
  ASSERT_TRUE(quantize(
      p, {.rows = 100, .x = x.bytes.data(), .q = q.data(), .scale = scale.data(), .scale_ld = 5}));
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(scale[i], scale_at(want.scale, i));
  EXPECT_EQ(scale[5], -5.0F);
  EXPECT_EQ(q, want.q);
}

TEST(Quantize, EmptyTensorsTouchNothing) {
  for (const std::int64_t cols : {std::int64_t{128}, std::int64_t{0}}) {
    for (const QuantizeProblem& problem : tests::quantize_cells(cols)) {
      const std::int64_t rows = cols == 0 ? 5 : 0;
      const tests::QuantizeCase before =
          tests::make_case(problem, {rows, cols}, tests::Fill::kNormal);
      tests::QuantizeCase after = before;
      ASSERT_TRUE(after.run_reference());
      EXPECT_TRUE(tests::same_outputs(after, before)) << to_text(Problem(problem));
    }
  }
}

// One column of 128-wide blocks per condition, so that each is a block of its own.
Input special_blocks(DType dtype) {
  Input x(128, 128 * 8, 128 * 8, dtype);
  const float largest = max_finite(dtype);
  const float smallest = dtype == DType::kFP16   ? 0x1p-24F
                         : dtype == DType::kBF16 ? 0x1p-133F
                                                 : std::numeric_limits<float>::denorm_min();
  for (std::int64_t r = 0; r < 128; ++r) {
    for (std::int64_t c = 0; c < x.cols; ++c) {
      const auto i = static_cast<std::uint64_t>(r * x.cols + c);
      const auto draw = static_cast<float>(random_normal(3, i));
      float value = draw;
      switch (c / 128) {
        case 0:
          value = std::copysign(0.0F, draw);
          break;
        case 1:  // one NaN among numbers
          value = c % 128 == 17 ? kNan : draw;
          break;
        case 2:  // both infinities among numbers
          value = c % 128 == 5 ? kInf : c % 128 == 6 ? -kInf : draw;
          break;
        case 3:  // nothing finite
          value = c % 2 == 0 ? kNan : -kInf;
          break;
        case 4:  // up to the type's maximum
          value = c % 128 == 9 ? -largest : draw * largest / 64;
          break;
        case 5:  // subnormals: encode = fp8_max / amax overflows
          value = smallest * static_cast<float>(i % 5);
          break;
        case 6:  // one smallest subnormal among zeros
          value = c % 128 == 100 ? smallest : -0.0F;
          break;
        default:  // an infinity among zeros
          value = c % 128 == 3 ? kInf : 0.0F;
      }
      x.at(r, c) = value;
    }
  }
  x.encode();
  return x;
}

TEST(Quantize, ZerosNansInfinitiesAndExtremesKeepTheContract) {
  for (const DType dtype : {DType::kBF16, DType::kFP16, DType::kFP32}) {
    const Input x = special_blocks(dtype);
    for (const Granularity g : kGranularities) {
      for (const DType fp8 : {DType::kE4M3, DType::kE5M2}) {
        for (const ScaleFormat f : formats_of(g)) {
          const QuantizeProblem p = problem_of(x, g, fp8, f);
          SCOPED_TRACE(to_text(Problem{p}));
          check(x, p);
        }
      }
    }
  }
}

// The same conditions against values written by hand: what a reader of the contract expects.
TEST(Quantize, SpecialBlocksHaveTheWrittenCodesAndScales) {
  const Input x = special_blocks(DType::kFP32);
  QuantizeProblem p = problem_of(x, Granularity::k1x128);
  p.output = QuantizeOutput::kRowwise;
  const Outputs out = run(x, p, expected(x, p));
  const auto scale = [&](int block) {
    return scale_at(out.scale, static_cast<std::size_t>(block * 128));
  };
  const auto code = [&](int col) { return static_cast<int>(out.q[static_cast<std::size_t>(col)]); };
  EXPECT_EQ(scale(0), 1.0F);  // amax 0
  EXPECT_EQ(code(0) & 0x7F, 0x00);
  EXPECT_EQ(code(128 + 17), 0x7F);
  EXPECT_LT(scale(1), 1.0F / 64);  // the NaN is no amax
  EXPECT_EQ(code(256 + 5), 0x7F);
  EXPECT_EQ(code(256 + 6), 0x7F);
  EXPECT_EQ(scale(3), 1.0F);  // nothing finite
  EXPECT_EQ(code(4 * 128 + 9), 0xFE);
  EXPECT_EQ(scale(4), 1.0F / (448.0F / FLT_MAX));
  EXPECT_EQ(scale(6), 1.0F / FLT_MAX);  // encode: the input type's largest; subnormal decode
  EXPECT_EQ(std::fpclassify(scale(6)), FP_SUBNORMAL);
  EXPECT_EQ(code(6 * 128), 0x80);
  EXPECT_EQ(scale(7), 1.0F);
  EXPECT_EQ(code(7 * 128 + 3), 0x7F);
}

TEST(EncodeScale, FollowsTheContractsSteps) {
  QuantizeProblem p;
  EXPECT_EQ(encode_scale(0.0F, p), 1.0F);
  EXPECT_EQ(encode_scale(448.0F, p), 1.0F);
  EXPECT_EQ(encode_scale(3.0F, p), 448.0F / 3.0F);
  EXPECT_EQ(encode_scale(0x1p-133F, p), max_finite(DType::kBF16));  // infinite
  p.x = {DType::kFP16};
  EXPECT_EQ(encode_scale(0x1p-133F, p), 65504.0F);
  p.q.scale = ScaleFormat::kF32Pow2;
  EXPECT_EQ(encode_scale(3.0F, p), 128.0F);
  EXPECT_EQ(encode_scale(448.0F, p), 1.0F);
  EXPECT_EQ(encode_scale(std::nextafter(448.0F, kInf), p), 0.5F);
  EXPECT_EQ(encode_scale(0x1p-133F, p), 32768.0F);
  p.amax_epsilon = 1.0F;
  EXPECT_EQ(encode_scale(0.5F, p), 256.0F);
  EXPECT_EQ(encode_scale(0.0F, p), 256.0F);
}

// 1.75 * 2^8 and 1.75 * 2^15 are the largest values: a scale is a power of two up from amax over
// them, or down from amax over 2^8 and 2^15.
TEST(EncodeScale, E8M0RoundsUpOrAsTheOcpTextSays) {
  struct Row {
    DType fp8;
    float amax;
    float up, floor;  // encode
  };
  const Row rows[] = {
      {DType::kE4M3, 448.0F, 1.0F, 1.0F},
      {DType::kE4M3, std::nextafter(448.0F, kInf), 0.5F, 1.0F},  // floor lets it saturate
      {DType::kE4M3, 511.0F, 0.5F, 1.0F},
      {DType::kE4M3, 512.0F, 0.5F, 0.5F},
      {DType::kE4M3, 256.0F, 1.0F, 1.0F},
      {DType::kE4M3, std::nextafter(256.0F, 0.0F), 1.0F, 2.0F},
      {DType::kE4M3, 224.0F, 2.0F, 2.0F},
      {DType::kE5M2, 57344.0F, 1.0F, 1.0F},
      {DType::kE5M2, 60000.0F, 0.5F, 1.0F},
      {DType::kE4M3, FLT_MAX, 0x1p-120F, 0x1p-119F},
      {DType::kE4M3, 0x1p-119F, 0x1p127F, 0x1p127F},
      {DType::kE4M3, 0x1p-149F, 0x1p127F, 0x1p127F},  // the exponent ends at 2^-127
      {DType::kE4M3, 0.0F, 1.0F, 1.0F},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.amax);
    QuantizeProblem p;
    p.x = {DType::kFP32};
    p.q = {row.fp8, Granularity::k1x32, ScaleFormat::kE8M0};
    EXPECT_EQ(encode_scale(row.amax, p), row.up);
    p.e8m0_rounding = E8M0Rounding::kOcpFloor;
    EXPECT_EQ(encode_scale(row.amax, p), row.floor);
  }
}

TEST(StoreScale, FormatsHoldWhatTheirNamesSay) {
  std::uint32_t word = 0;
  store_scale(&word, ScaleFormat::kE8M0, 0, 1.0F);
  store_scale(&word, ScaleFormat::kE8M0, 1, 0x1p127F);  // scale 2^-127
  store_scale(&word, ScaleFormat::kPackedPow2, 2, 0.5F);
  store_scale(&word, ScaleFormat::kPackedPow2, 3, 0x1p-120F);
  EXPECT_EQ(word, 0xF780007FU);  // the first block in the lowest byte
  EXPECT_EQ(load_scale(&word, ScaleFormat::kE8M0, 1), 0x1p-127F);
  EXPECT_EQ(load_scale(&word, ScaleFormat::kPackedPow2, 3), 0x1p120F);
  std::uint16_t half = 0;
  store_scale(&half, ScaleFormat::kBF16, 0, 3.0F);  // 1/3 = 0x3EAAAAAB
  EXPECT_EQ(half, 0x3EAB);
  EXPECT_EQ(load_scale(&half, ScaleFormat::kBF16, 0), std::bit_cast<float>(0x3EAB0000U));
}

// The formats change what is stored, never the codes of the format they are derived from.
TEST(Quantize, Bf16AndPackedScalesKeepTheCodes) {
  const Input x = random_input(130, 700, DType::kBF16);
  const auto codes = [&](ScaleFormat f) {
    const QuantizeProblem p = problem_of(x, Granularity::k1x128, DType::kE4M3, f);
    const Outputs out = run(x, p, expected(x, p));
    return std::pair(out.q, out.q_transposed);
  };
  EXPECT_EQ(codes(ScaleFormat::kBF16), codes(ScaleFormat::kF32));
  EXPECT_EQ(codes(ScaleFormat::kPackedPow2), codes(ScaleFormat::kF32Pow2));
}

// Row shards quantised apart equal the whole, wherever a block lies within a shard's rows.
TEST(Quantize, RowShardsQuantisedApartEqualTheWhole) {
  const Input x = random_input(384, 300, DType::kBF16);
  for (const Granularity g : {Granularity::kPerRow, Granularity::k1x128, Granularity::k128x128,
                              Granularity::k1x32, Granularity::k32x32}) {
    QuantizeProblem p = problem_of(x, g);
    p.output = QuantizeOutput::kRowwise;
    SCOPED_TRACE(to_text(Problem{p}));
    const Outputs whole = run(x, p, expected(x, p));
    std::vector<std::uint8_t> q;
    for (const std::int64_t row : {0, 128, 256}) {
      Input shard(128, x.cols, x.ld, x.dtype);
      std::copy_n(x.values.begin() + row * x.ld, 128 * x.ld, shard.values.begin());
      shard.encode();
      const Outputs part = run(shard, p, expected(shard, p));
      q.insert(q.end(), part.q.begin(), part.q.end());
    }
    EXPECT_EQ(q, whole.q);
  }
}

TEST(Quantize, EpsilonRaisesSmallMaximaOnly) {
  const Input x = random_input(130, 300, DType::kBF16);
  for (const Granularity g : kGranularities) {
    QuantizeProblem p = problem_of(x, g);
    p.amax_epsilon = 0.25F;
    check(x, p);
  }
}

TEST(Quantize, ThreadCountDoesNotChangeABit) {
  const Input x = random_input(515, 700, DType::kBF16);
  for (const Granularity g : kGranularities) {
    const QuantizeProblem p = problem_of(x, g);
    const Outputs want = expected(x, p);
    for (const int threads : {1, 2, 3, 7}) expect_same(run(x, p, want, threads), want);
  }
}

// The sticky control word of a caller must not reach the result.
TEST(Quantize, TheCallersRoundingModeIsIgnoredAndKept) {
  const Input x = random_input(40, 256, DType::kFP32);
  const QuantizeProblem p = problem_of(x, Granularity::k1x128);
  const Outputs want = expected(x, p);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const Outputs got = run(x, p, want);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  expect_same(got, want);
}

TEST(Dequantize, MultipliesByTheScaleOfTheBlock) {
  const Input x = random_input(150, 400, DType::kFP32);
  for (const Granularity g : kGranularities) {
    QuantizeProblem p = problem_of(x, g);
    p.output = QuantizeOutput::kRowwise;
    const Outputs out = run(x, p, expected(x, p));
    std::vector<float> restored(150 * 400);
    ASSERT_TRUE(dequantize(p.q, 150, 400, out.q.data(), 0, out.scale.data(), 0, restored.data()));
    // E4M3 keeps 4 significant bits; below its normal range half a subnormal step remains, which
    // is at most 2^-10 of an encoded 448.
    const float floor = g == Granularity::k1x128 || g == Granularity::k128x128 ? 1e-4F : 1e-3F;
    for (std::size_t i = 0; i < restored.size(); ++i) {
      ASSERT_NEAR(restored[i], x.values[i], std::fabs(x.values[i]) / 16 + floor) << i;
    }
  }
}

struct Refusal {
  QuantizeProblem problem;
  QuantizeArgs args;
  ErrorCode code;
  std::string_view names;  // what the sentence must speak of
};

TEST(Quantize, RefusesWithASentenceThatNamesTheArgument) {
  std::uint16_t x[256] = {};
  std::uint8_t q[256] = {};
  float scale[16] = {};
  QuantizeProblem good;
  good.cols = 128;
  const QuantizeArgs args{.rows = 2, .x = x, .q = q, .scale = scale};
  ASSERT_TRUE(quantize(good, args));

  const auto with = [&](auto change) {
    Refusal r{good, args, ErrorCode::kInvalidArgument, ""};
    change(r);
    return r;
  };
  const Refusal refusals[] = {
      with([](Refusal& r) { r.args.rows = -1, r.names = "rows is -1"; }),
      with([](Refusal& r) { r.problem.rows = 3, r.names = "rows is 2"; }),
      with([](Refusal& r) { r.args.ldx = 100, r.names = "ldx is 100"; }),
      with([](Refusal& r) { r.args.ldq = 100, r.names = "ld is 100"; }),
      with([](Refusal& r) { r.args.scale_ld = 1, r.names = "scale_ld is 1"; }),
      with([](Refusal& r) { r.args.x = nullptr, r.names = "x is null"; }),
      with([](Refusal& r) { r.args.q = nullptr, r.names = "q is null"; }),
      with([](Refusal& r) { r.args.scale = nullptr, r.names = "scale is null"; }),
      with([](Refusal& r) {
        r.problem.output = QuantizeOutput::kTransposed, r.names = "q_transposed is null";
      }),
      with([](Refusal& r) { r.problem.amax_epsilon = -1, r.names = "eps is -1"; }),
      with([](Refusal& r) { r.problem.amax_epsilon = kNan, r.names = "eps is nan"; }),
      with([](Refusal& r) {
        r.problem.q = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kF32};
        r.code = ErrorCode::kUnsupported, r.names = "1x32";
      }),
      with([](Refusal& r) {
        r.problem.q = {DType::kE4M3, Granularity::kPerRow, ScaleFormat::kPackedPow2};
        r.code = ErrorCode::kUnsupported, r.names = "e4m3:row:packed";
      }),
      with([](Refusal& r) {
        r.problem.x = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
        r.names = "x_scale is null";
      }),
  };
  for (const Refusal& r : refusals) {
    const Status s = quantize(r.problem, r.args);
    ASSERT_FALSE(s) << r.names;
    EXPECT_EQ(s.error().code, r.code) << s.error().message;
    EXPECT_NE(s.error().message.find(r.names), std::string::npos) << s.error().message;
  }
}

}  // namespace
}  // namespace octile::reference
