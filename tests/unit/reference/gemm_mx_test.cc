// The host GEMM of MX operands: the documented order of operations, bit for bit, with any exponent.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "generator/families.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/gemm/reference.h"
#include "runtime/reference/synthetic.h"
#include "tests/support/gemm_call.h"

namespace octile::reference {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// An operand [rows][k] whose E8M0 scales, of `run` rows and 32 of k each, are laid out by hand from
// the table in docs/numerics.md. Behind a row's scales lie NaNs.
struct Operand {
  DType dtype;
  std::int64_t rows, k, ld, run, scale_ld;
  std::vector<std::uint8_t> codes, scales;

  Operand(DType t, std::int64_t r, std::int64_t depth, std::int64_t rows_of_scale,
          std::uint64_t seed, int lowest, int highest)
      : dtype(t),
        rows(r),
        k(depth),
        ld(depth),
        run(rows_of_scale),
        scale_ld(round_up(ceil_div(k, 32), 4) + 4),
        scales(at(ceil_div(rows, run) * scale_ld), 255) {
    for (std::int64_t i = 0; i < rows * k; ++i) {
      codes.push_back(to_fp8(static_cast<float>(40 * random_normal(seed, at(i))), dtype));
    }
    for (std::int64_t i = 0; i < ceil_div(rows, run); ++i) {
      for (std::int64_t j = 0; j < ceil_div(k, 32); ++j) {
        const double share = random_uniform(seed + 1, at(i * scale_ld + j));
        scales[at(i * scale_ld + j)] =
            static_cast<std::uint8_t>(lowest + static_cast<int>(share * (highest - lowest + 1)));
      }
    }
  }
  float value(std::int64_t row, std::int64_t i) const {
    return from_fp8(codes[at(row * k + i)], dtype);
  }
  std::uint8_t& scale_code(std::int64_t row, std::int64_t i) {
    return scales[at(row / run * scale_ld + i / 32)];
  }
  float scale(std::int64_t row, std::int64_t i) const {
    const int code = scales[at(row / run * scale_ld + i / 32)];
    return code == 255 ? NAN : std::ldexp(1.0F, code - 127);
  }
};

struct Case {
  GemmProblem problem;
  Operand a, b;

  Case(std::int64_t m, std::int64_t n, std::int64_t k, Granularity of_b, int lowest = 110,
       int highest = 140)
      : a(DType::kE4M3, m, k, 1, 11, lowest, highest),
        b(DType::kE5M2, n, k, of_b == Granularity::k32x32 ? 32 : 1, 21, lowest, highest) {
    problem.n = n;
    problem.k = k;
    problem.a = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
    problem.b = {DType::kE5M2, of_b, ScaleFormat::kE8M0};
    problem.d = {DType::kFP32};
    problem.promote = 32;
  }
  GemmCall args(void* d) const { return tests::call_of(a, b, d, b.rows); }
  std::vector<float> run() const {
    std::vector<float> d(at(a.rows * b.rows));
    const Status s = gemm(problem, args(d.data()), 2);
    EXPECT_TRUE(s) << s.error().message;
    return d;
  }
  // Returns one element in the documented order of operations.
  float element(std::int64_t row, std::int64_t col) const {
    float acc = 0;
    for (std::int64_t k0 = 0; k0 < a.k; k0 += 32) {
      float partial = 0;
      if (problem.promote == kPromoteNone) {
        const double scale = double{a.scale(row, k0)} * double{b.scale(col, k0)};
        for (std::int64_t i = k0; i < std::min(a.k, k0 + 32); ++i)
          acc += static_cast<float>(double{a.value(row, i)} * double{b.value(col, i)} * scale);
        continue;
      }
      for (std::int64_t i = k0; i < std::min(a.k, k0 + 32); ++i) {
        partial += a.value(row, i) * b.value(col, i);
      }
      acc = std::fma(partial * a.scale(row, k0), b.scale(col, k0), acc);
    }
    return acc;
  }
};

constexpr Granularity kScalingsOfB[] = {Granularity::k1x32, Granularity::k32x32};

void expect_documented_bits(int promote) {
  for (const Granularity of_b : kScalingsOfB) {
    for (const auto& [lowest, highest] : {std::pair(110, 140), {0, 254}, {0, 20}, {230, 254}}) {
      for (const std::int64_t k : {1, 31, 32, 77, 128, 300}) {
        Case c(37, 70, k, of_b, lowest, highest);
        c.problem.promote = promote;
        const std::vector<float> d = c.run();
        for (std::int64_t i = 0; i < 37 * 70; ++i) {
          const float want = c.element(i / 70, i % 70);
          if (std::isnan(want)) {
            ASSERT_TRUE(std::isnan(d[at(i)]));
          } else {
            ASSERT_EQ(std::bit_cast<std::uint32_t>(d[at(i)]), std::bit_cast<std::uint32_t>(want))
                << to_text(Problem{c.problem}) << " at " << i << ", codes " << lowest << " to "
                << highest;
          }
        }
      }
    }
  }
}

TEST(GemmMx, KeepsTheDocumentedBits) { expect_documented_bits(32); }

TEST(GemmMx, WithScalesInTheInstructionKeepsTheDocumentedBits) {
  expect_documented_bits(kPromoteNone);
}

void expect_nan_in_its_row_or_columns(int promote) {
  for (const Granularity of_b : kScalingsOfB) {
    Case c(40, 70, 256, of_b);
    c.problem.promote = promote;
    c.a.scale_code(7, 200) = 255;
    c.b.scale_code(33, 3) = 255;
    const std::vector<float> d = c.run();
    for (std::int64_t row = 0; row < 40; ++row) {
      for (std::int64_t col = 0; col < 70; ++col) {
        const bool in_block = of_b == Granularity::k32x32 ? col / 32 == 1 : col == 33;
        ASSERT_EQ(std::isnan(d[at(row * 70 + col)]), row == 7 || in_block) << row << ", " << col;
      }
    }
  }
}

TEST(GemmMx, AScaleOfNanReachesItsRowOrItsColumnsOnly) {
  expect_nan_in_its_row_or_columns(32);
  expect_nan_in_its_row_or_columns(kPromoteNone);
}

TEST(GemmMx, Fp64IsTheProductOfTheDequantisedOperands) {
  for (const Granularity of_b : kScalingsOfB) {
    const Case c(40, 150, 300, of_b);
    std::vector<double> r(40 * 150), s(r.size());
    ASSERT_TRUE(gemm_fp64(c.problem, c.args(nullptr), {0, 40, 0, 150}, r.data(), s.data(), 2));
    for (std::int64_t i = 0; i < 40 * 150; ++i) {
      double want = 0, magnitude = 0;
      for (std::int64_t k = 0; k < 300; ++k) {
        const double x = double{c.a.value(i / 150, k)} * double{c.a.scale(i / 150, k)};
        const double y = double{c.b.value(i % 150, k)} * double{c.b.scale(i % 150, k)};
        want += x * y;
        magnitude += std::fabs(x * y);
      }
      ASSERT_NEAR(r[at(i)], want, 1e-12 * magnitude);
      ASSERT_NEAR(s[at(i)], magnitude, 1e-12 * magnitude);
    }
  }
}

TEST(GemmMx, OtherIntervalsAndMixedScalingsAreRefused) {
  std::vector<float> d(8 * 8);
  Case c(8, 8, 64, Granularity::k1x32);
  c.problem.promote = 64;
  const Status interval = gemm(c.problem, c.args(d.data()));
  ASSERT_FALSE(interval);
  EXPECT_EQ(interval.error().message,
            "a is e4m3:1x32, b is e5m2:1x32, promote is 64; MX is a in 1x32, b in 1x32 or 32x32 "
            "and promote=32 or none");
  c.problem.promote = 32;
  c.problem.b = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  const Status mixed = gemm(c.problem, c.args(d.data()));
  ASSERT_FALSE(mixed);
  EXPECT_EQ(mixed.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace octile::reference
