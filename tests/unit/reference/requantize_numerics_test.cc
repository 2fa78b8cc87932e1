// Quantising twice with power-of-two scales, row-wise and then in columns, against quantising in
// columns at once. The results are equal except for the elements that docs/numerics.md names
// ("Quantising twice"), and those differ exactly when it says so. The rules are written here once
// more, in FP64.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/reference/synthetic.h"
#include "tests/support/host_quantized.h"

namespace octile {
namespace {

using tests::HostQuantized;

// An FP8 format; values are multiplied by `scale` = 2^s first.
struct Grid {
  int mantissa_bits;
  int least_exponent;  // of a normal number
  double largest;

  double threshold(int s) const { return std::ldexp(1.0, least_exponent + s); }
  double step(double x, int s) const {
    const int e = x == 0 ? least_exponent : std::ilogb(std::ldexp(x, -s));
    return std::ldexp(1.0, std::max(e, least_exponent) - mantissa_bits + s);
  }
  double rounded(double x, int s) const {
    const double r = std::nearbyint(x / step(x, s)) * step(x, s);
    return std::copysign(std::min(std::fabs(r), std::ldexp(largest, s)), x);
  }
};
constexpr Grid kE4M3{3, -6, 448};
constexpr Grid kE5M2{2, -14, 57344};

enum Place { kKept, kLost, kTwice, kMoved, kSaturated, kPlaces };
constexpr std::array<std::string_view, kPlaces> kNames{"kept", "lost", "twice", "moved",
                                                       "saturated"};

// Returns the class of x for the scales 2^a (first), 2^b (at once) and 2^moved (second).
Place place_of(double x, const Grid& g, int a, int b, int moved) {
  const double magnitude = std::fabs(x);
  if (magnitude > std::ldexp(g.largest, a)) return kSaturated;
  const bool beyond = magnitude > std::ldexp(g.largest, std::min(b, moved));
  if (b != moved && (beyond || magnitude < g.threshold(std::max(b, moved)))) return kMoved;
  if (a > b && magnitude < g.threshold(a)) return kLost;
  if (a < b && magnitude < g.threshold(b)) return kTwice;
  return kKept;
}

// Returns true if the two ways differ for x.
bool differs(double x, const Grid& g, int a, int b, int moved) {
  const double first = g.rounded(x, a);
  switch (place_of(x, g, a, b, moved)) {
    case kKept:
      return false;
    case kLost:  // the second step sees only the bits that the first scale left
      return g.rounded(x, b) != first;
    case kTwice: {  // only halfway between two codes, if the even one lies on the other side of x
      const double step = g.step(first, b);
      const bool halfway = std::fabs(std::remainder(first, step)) == step / 2;
      const double even = g.rounded(first, b);
      return halfway && x != first && (even > first) != (x > first);
    }
    default:
      return g.rounded(x, b) != g.rounded(first, moved);
  }
}

int exponent_of(float scale) { return std::ilogb(scale); }

struct Tally {
  std::array<std::int64_t, kPlaces> elements{}, different{};
  std::int64_t blocks_moved = 0;
};

// Returns elements whose rows and columns differ in size by up to 2^20, so that either scale may be
// the larger.
std::vector<float> spread_input(std::int64_t rows, std::int64_t cols) {
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / cols, col = static_cast<std::int64_t>(i) % cols;
    const int exponent = static_cast<int>(row * 7 % 21 - 10 + col * 5 % 21 - 10);
    x[i] = std::ldexp(static_cast<float>(reference::random_normal(5, i)), exponent);
  }
  return x;
}

Tally compare(const QuantizeProblem& single, std::int64_t rows, const std::vector<float>& x) {
  const Grid& g = single.q.dtype == DType::kE4M3 ? kE4M3 : kE5M2;
  const auto [first, at_once] = tests::quantize_on_host(single, rows, x.data());
  QuantizeProblem again = single;
  again.x = single.q;
  again.output = QuantizeOutput::kTransposed;
  const HostQuantized second =
      tests::quantize_on_host(again, rows, first.codes.data(), first.scales.data()).second;
  Tally tally;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < single.cols; ++c) {
      const double value = x[static_cast<std::size_t>(r * single.cols + c)];
      const int a = exponent_of(first.scale(r, c)), b = exponent_of(at_once.scale(r, c));
      const int moved = exponent_of(second.scale(r, c));
      // The model equals the quantiser.
      EXPECT_EQ(first.value(r, c), g.rounded(value, a));
      EXPECT_EQ(at_once.value(r, c), g.rounded(value, b));
      const bool different = at_once.value(r, c) != second.value(r, c);
      EXPECT_EQ(different, differs(value, g, a, b, moved))
          << value << " with scales 2^" << a << ", 2^" << b << ", 2^" << moved;
      const Place place = place_of(value, g, a, b, moved);
      ++tally.elements[place];
      tally.different[place] += different ? 1 : 0;
      tally.blocks_moved += b != moved ? 1 : 0;
    }
  }
  return tally;
}

void print(const QuantizeProblem& p, const Tally& t) {
  fmt::print("{}:", to_text(Problem(p)));
  for (std::size_t i = 0; i < kPlaces; ++i) {
    fmt::print(" {} {} of {}", kNames[i], t.different[i], t.elements[i]);
  }
  fmt::print("; under a moved scale {}\n", t.blocks_moved);
}

std::vector<QuantizeProblem> recipes(std::int64_t cols) {
  std::vector<QuantizeProblem> all;
  for (const DType fp8 : {DType::kE4M3, DType::kE5M2}) {
    QuantizeProblem p;
    p.cols = cols;
    p.x = {DType::kFP32};
    p.output = QuantizeOutput::kBoth;
    p.q = {fp8, Granularity::k1x128, ScaleFormat::kF32Pow2};
    all.push_back(p);
    p.q = {fp8, Granularity::k1x128, ScaleFormat::kUe8m0x4};
    all.push_back(p);
    p.q = {fp8, Granularity::k1x32, ScaleFormat::kE8M0};
    all.push_back(p);
    p.e8m0_rounding = E8M0Rounding::kOcpFloor;
    all.push_back(p);
  }
  return all;
}

TEST(RequantizeNumerics, TwiceDiffersFromOnceExactlyWhereTheContractSays) {
  constexpr std::int64_t kRows = 384, kCols = 512;
  const std::vector<float> x = spread_input(kRows, kCols);
  for (const QuantizeProblem& p : recipes(kCols)) {
    SCOPED_TRACE(to_text(Problem(p)));
    const Tally t = compare(p, kRows, x);
    print(p, t);
    const bool floor = p.e8m0_rounding == E8M0Rounding::kOcpFloor;
    EXPECT_GT(t.elements[kKept], kRows * kCols / 4);
    EXPECT_GT(t.different[kLost], 0);
    EXPECT_GT(t.blocks_moved, 0);
    EXPECT_EQ(t.elements[kSaturated] > 0, floor);
    // E5M2 keeps 9 decades above its subnormals, so few elements lie in them.
    const bool subnormals = p.q.dtype == DType::kE4M3;
    EXPECT_EQ(t.different[kTwice] > 0, subnormals);
  }
}

// For ordinary activations, the remaining difference comes from moved scales.
TEST(RequantizeNumerics, OrdinaryActivationsSurviveQuantisingTwice) {
  constexpr std::int64_t kRows = 512, kCols = 1024;
  std::vector<float> x(kRows * kCols);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(reference::random_normal(9, i));
  }
  QuantizeProblem p = recipes(kCols).front();
  const Tally t = compare(p, kRows, x);
  print(p, t);
  std::int64_t different = 0;
  for (const std::int64_t d : t.different) different += d;
  EXPECT_LT(different, kRows * kCols / 1000);
}

// With fp32 scales the second rounding acts on other numbers, so more than half of the elements
// differ.
TEST(RequantizeNumerics, OrdinaryScalesRoundTwice) {
  constexpr std::int64_t kRows = 256, kCols = 256;
  const std::vector<float> x = spread_input(kRows, kCols);
  QuantizeProblem p = recipes(kCols).front();
  p.q.scale = ScaleFormat::kF32;
  const auto [first, at_once] = tests::quantize_on_host(p, kRows, x.data());
  QuantizeProblem again = p;
  again.x = p.q;
  const HostQuantized second =
      tests::quantize_on_host(again, kRows, first.codes.data(), first.scales.data()).second;
  std::int64_t different = 0;
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kCols; ++c) {
      different += at_once.value(r, c) != second.value(r, c) ? 1 : 0;
    }
  }
  fmt::print("fp32 scales: {} of {} elements differ\n", different, kRows * kCols);
  EXPECT_GT(different, kRows * kCols / 2);
}

// The scale of a second quantisation moves if the first rounds a block's largest element across
// 1.75 times a power of two.
TEST(RequantizeNumerics, ScalesMoveWhereTheLargestElementIsRoundedAcrossTheFormat) {
  struct Row {
    DType fp8;
    float significand;
    int up, floor;  // by how much the second exponent is larger
  };
  const Row rows[] = {
      {DType::kE4M3, 1.75F, 0, 0},   {DType::kE4M3, 1.7501F, -1, 0}, {DType::kE4M3, 1.8125F, -1, 0},
      {DType::kE4M3, 1.8126F, 0, 0}, {DType::kE4M3, 1.9374F, 0, 0},  {DType::kE4M3, 1.9375F, 0, 1},
      {DType::kE5M2, 1.75F, 0, 0},   {DType::kE5M2, 1.8749F, -1, 0}, {DType::kE5M2, 1.875F, 0, 1},
      {DType::kE5M2, 1.99F, 0, 1},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.significand);
    for (const E8M0Rounding rounding : {E8M0Rounding::kUp, E8M0Rounding::kOcpFloor}) {
      // A larger neighbour in the row keeps the element from determining the first scale.
      std::vector<float> x(std::size_t{32} * 32, 0.0F);
      x[0] = row.significand;
      x[1] = 16.0F;
      QuantizeProblem p;
      p.cols = 32;
      p.x = {DType::kFP32};
      p.q = {row.fp8, Granularity::k1x32, ScaleFormat::kE8M0};
      p.output = QuantizeOutput::kBoth;
      p.e8m0_rounding = rounding;
      const auto [first, at_once] = tests::quantize_on_host(p, 32, x.data());
      p.x = p.q;
      const HostQuantized second =
          tests::quantize_on_host(p, 32, first.codes.data(), first.scales.data()).second;
      const int by = exponent_of(second.scale(0, 0)) - exponent_of(at_once.scale(0, 0));
      EXPECT_EQ(by, rounding == E8M0Rounding::kUp ? row.up : row.floor);
    }
  }
}

// fp32's last binade: 448 * 2^120 is beyond it.
TEST(RequantizeNumerics, WhatRoundsBeyondFp32BecomesInfinite) {
  QuantizeProblem p;
  p.cols = 1;
  p.x = {DType::kFP32};
  p.q = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32Pow2};
  for (const auto& [x, finite] : {std::pair{FLT_MAX, false},
                                  {std::ldexp(248.0F, 120), false},
                                  {std::ldexp(247.9F, 120), true}}) {
    p.x = {DType::kFP32};
    const HostQuantized first = tests::quantize_on_host(p, 1, &x).first;
    EXPECT_EQ(std::isfinite(first.value(0, 0)), finite) << x;
    p.x = p.q;
    const HostQuantized second =
        tests::quantize_on_host(p, 1, first.codes.data(), first.scales.data()).first;
    EXPECT_EQ(second.code(0, 0) != reference::nan_code(DType::kE4M3), finite) << x;
  }
}

}  // namespace
}  // namespace octile
