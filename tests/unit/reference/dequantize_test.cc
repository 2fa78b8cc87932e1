// The inverses on the host against their definitions, element by element.
#include "runtime/reference/quantize/reference_dequantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/reference/synthetic.h"
#include "tests/support/host_quantized.h"
#include "tests/support/quantize_case.h"
#include "tests/support/quantize_cells.h"

namespace octile {
namespace {

using tests::HostQuantized;

// Returns N(0,1) quantised to `type`. The codes include a NaN and, if the type has one, an
// infinity.
HostQuantized sample(const TensorType& type, std::int64_t rows, std::int64_t cols) {
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::ldexp(static_cast<float>(reference::random_normal(11, i)),
                      static_cast<int>(i / 100 % 9));
  }
  QuantizeProblem p;
  p.cols = cols;
  p.x = {DType::kFP32};
  p.q = type;
  HostQuantized q = tests::quantize_on_host(p, rows, x.data()).first;
  q.codes.front() = 0xFF;
  if (q.codes.size() > 1) q.codes[1] = 0x7C;
  return q;
}

std::uint32_t expected_bits(float value, DType type) {
  if (type == DType::kFP32) {
    return std::isnan(value) ? 0x7FFFFFFFU : std::bit_cast<std::uint32_t>(value);
  }
  return type == DType::kBF16 ? reference::float_to_bf16(value) : reference::float_to_fp16(value);
}

TEST(Dequantize, IsCodeTimesScaleRoundedToTheType) {
  constexpr std::int64_t kLd = 310;
  for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {130, 300}}) {
    for (const TensorType& type : tests::quantized_types()) {
      const HostQuantized x = sample(type, rows, cols);
      for (const DType out : {DType::kBF16, DType::kFP16, DType::kFP32}) {
        QuantizeProblem p;
        p.operation = QuantizeOperation::kDequantize;
        p.cols = cols;
        p.x = type;
        p.q = {out};
        SCOPED_TRACE(to_text(Problem(p)));
        const auto bytes = static_cast<std::size_t>(size_of(out));
        std::vector<char> q(static_cast<std::size_t>(rows * kLd) * bytes, '\x5A');
        QuantizeArguments args = tests::rowwise_args(rows, x.codes.data(), q.data(), nullptr);
        args.source_scales.x_scale = x.scales.data();
        args.ldq = kLd;
        ASSERT_TRUE(tests::run_reference(p, args));
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t c = 0; c < kLd; ++c) {
            std::uint32_t got = 0, want = bytes == 4 ? 0x5A5A5A5AU : 0x5A5AU;
            std::memcpy(&got, q.data() + static_cast<std::size_t>(r * kLd + c) * bytes, bytes);
            if (c < cols) want = expected_bits(x.value(r, c), out);
            ASSERT_EQ(got, want) << r << " " << c;
          }
        }
      }
    }
  }
}

// E4M3 keeps 4 significant bits. Below its normal range the error is half a subnormal step, which
// is at most 2^-10 of an encoded 448.
TEST(Dequantize, RestoresWhatWasQuantised) {
  constexpr std::int64_t kRows = 150, kCols = 400;
  std::vector<float> x(kRows * kCols);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(reference::random_normal(7, i));
  }
  for (const TensorType& type : tests::quantized_types()) {
    SCOPED_TRACE(to_text(type));
    QuantizeProblem p;
    p.cols = kCols;
    p.x = {DType::kFP32};
    p.q = type;
    p.q.dtype = DType::kE4M3;
    const HostQuantized q = tests::quantize_on_host(p, kRows, x.data()).first;
    std::vector<float> restored(x.size());
    ASSERT_TRUE(
        reference::dequantize(p.q, kRows, kCols, q.codes.data(), q.scales.data(), restored.data()));
    // bf16 scales have a relative error of up to 2^-9.
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(restored[i], x[i], std::fabs(x[i]) * (1.0F / 16 + 1.0F / 512) + 1e-4F) << i;
    }
  }
}

// Each row is written by hand: E4M3 code, E8M0 scale, fp32 bits.
TEST(Dequantize, SpecialValuesHaveTheWrittenBits) {
  struct Row {
    DType fp8;
    std::uint8_t code, scale;
    std::uint32_t bits;
  };
  const Row rows[] = {
      {DType::kE4M3, 0x38, 127, 0x3F800000},  // 1 * 1
      {DType::kE4M3, 0xB8, 128, 0xC0000000},  // -1 * 2
      {DType::kE4M3, 0x80, 130, 0x80000000},  // -0 stays
      {DType::kE4M3, 0x01, 0, 0x00002000},    // 2^-9 * 2^-127: subnormal
      {DType::kE4M3, 0x7E, 254, 0x7F800000},  // 448 * 2^127: beyond fp32
      {DType::kE4M3, 0xFF, 127, 0x7FFFFFFF},  // NaN of either sign
      {DType::kE4M3, 0x38, 255, 0x7FFFFFFF},  // the scale is NaN
      {DType::kE5M2, 0x7C, 1, 0x7F800000},   {DType::kE5M2, 0xFC, 1, 0xFF800000},
      {DType::kE5M2, 0x7D, 1, 0x7FFFFFFF},
  };
  for (const Row& row : rows) {
    float value = 0;
    ASSERT_TRUE(reference::dequantize({row.fp8, Granularity::k1x32, ScaleFormat::kE8M0}, 1, 1,
                                      &row.code, &row.scale, &value));
    EXPECT_EQ(std::bit_cast<std::uint32_t>(value), row.bits) << static_cast<int>(row.code);
  }
}

// The moved codes and scales equal those that quantising writes.
TEST(Transpose, IsTheTransposedCopyOfQuantising) {
  constexpr std::int64_t kRows = 300, kCols = 420;
  std::vector<float> x(kRows * kCols);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(reference::random_normal(12, i));
  }
  int compared = 0;
  for (const QuantizeProblem& cell : tests::inverse_cells(kCols)) {
    if (cell.operation != QuantizeOperation::kTranspose) continue;
    SCOPED_TRACE(to_text(Problem(cell)));
    QuantizeProblem both = cell;
    both.operation = QuantizeOperation::kQuantize;
    both.x = {DType::kFP32};
    both.output = QuantizeOutput::kBoth;
    const auto [row, transposed] = tests::quantize_on_host(both, kRows, x.data());
    const HostQuantized moved =
        tests::quantize_on_host(cell, kRows, row.codes.data(), row.scales.data()).second;
    EXPECT_EQ(moved.codes, transposed.codes);
    EXPECT_EQ(moved.scales, transposed.scales);
    ++compared;
  }
  EXPECT_EQ(compared, 7);
}

// The values that are quantised again equal those that dequantising writes.
TEST(Requantize, EqualsQuantisingTheDequantised) {
  constexpr std::int64_t kRows = 140, kCols = 300;
  int compared = 0;
  for (const QuantizeProblem& cell : tests::inverse_cells(kCols)) {
    if (cell.operation != QuantizeOperation::kQuantize) continue;
    SCOPED_TRACE(to_text(Problem(cell)));
    const HostQuantized x = sample(cell.x, kRows, kCols);
    std::vector<float> values(kRows * kCols);
    ASSERT_TRUE(reference::dequantize(cell.x, kRows, kCols, x.codes.data(), x.scales.data(),
                                      values.data()));
    QuantizeProblem plain = cell;
    plain.x = {DType::kFP32};
    const auto want = tests::quantize_on_host(plain, kRows, values.data());
    const auto got = tests::quantize_on_host(cell, kRows, x.codes.data(), x.scales.data());
    EXPECT_EQ(got.first.codes, want.first.codes);
    EXPECT_EQ(got.first.scales, want.first.scales);
    EXPECT_EQ(got.second.codes, want.second.codes);
    EXPECT_EQ(got.second.scales, want.second.scales);
    ++compared;
  }
  EXPECT_EQ(compared, 30);
}

TEST(Inverses, ThreadCountDoesNotChangeABit) {
  for (const QuantizeProblem& cell : tests::inverse_cells(300)) {
    tests::QuantizeCase one = tests::make_case(cell, {130, 300}, tests::Fill::kMixed);
    tests::QuantizeCase many = one;
    ASSERT_TRUE(one.run_reference(1));
    ASSERT_TRUE(many.run_reference(3));
    EXPECT_TRUE(tests::same_outputs(one, many)) << to_text(Problem(cell));
  }
}

TEST(Inverses, RefuseWithASentenceThatNamesTheArgument) {
  std::uint8_t x[256] = {};
  float out[256] = {};
  float scale[8] = {};
  QuantizeProblem p;
  p.operation = QuantizeOperation::kDequantize;
  p.cols = 128;
  p.x = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  p.q = {DType::kFP32};
  QuantizeArguments good = tests::rowwise_args(2, x, out, nullptr);
  good.source_scales.x_scale = scale;
  ASSERT_TRUE(tests::run_reference(p, good));
  const auto refused = [&](const QuantizeProblem& problem, auto change) {
    QuantizeArguments args = good;
    change(args);
    const Status s = tests::run_reference(problem, args);
    return s ? "accepted" : s.error().message;
  };
  using Args = QuantizeArguments;
  EXPECT_NE(refused(p, [](Args& a) { a.source_scales.x_scale = nullptr; }).find("x_scale is null"),
            std::string::npos);
  EXPECT_NE(refused(p, [](Args& a) { a.q = nullptr; }).find("q is null"), std::string::npos);
  EXPECT_NE(refused(p, [](Args& a) { a.ldq = 100; }).find("ldq is 100"), std::string::npos);
  EXPECT_NE(refused(p, [](Args& a) { a.source_scales.x_scale_ld = 1; }).find("scale_ld is 1"),
            std::string::npos);
  p.operation = QuantizeOperation::kTranspose;
  p.q = p.x = {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32};
  p.output = QuantizeOutput::kTransposed;
  EXPECT_NE(refused(p, [](Args&) {}).find("q_transposed is null"), std::string::npos);
  p.output = QuantizeOutput::kBoth;
  const auto give_all = [&](Args& a) {
    a.scale = a.scale_transposed = scale;
    a.q_transposed = x;
  };
  EXPECT_NE(refused(p, give_all).find("out is both; allowed is col"), std::string::npos);
}

}  // namespace
}  // namespace octile
