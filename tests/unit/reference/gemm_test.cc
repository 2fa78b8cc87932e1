#include "runtime/reference/gemm/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string_view>
#include <vector>

#include "generator/families.h"
#include "runtime/prove/gemm/tolerance.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/synthetic.h"
#include "tests/support/gemm_call.h"

namespace octile::reference {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// An operand [rows][k] with rows `ld` apart. Its scales are laid out by hand from the table in
// docs/numerics.md.
struct Operand {
  TensorType type;
  std::int64_t rows, k, ld, scale_ld;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;

  Operand(TensorType t, std::int64_t r, std::int64_t depth, std::uint64_t seed,
          std::int64_t gap = 0)
      : type(t), rows(r), k(depth), ld(depth + gap) {
    const std::int64_t k_blocks = ceil_div(k, 128);
    const bool square = t.granularity == Granularity::k128x128;
    scale_ld = square ? round_up(k_blocks, 4) : round_up(rows, 4);
    const std::int64_t count = t.granularity == Granularity::kPerTensor ? 1
                               : t.granularity == Granularity::kPerRow  ? scale_ld
                               : square ? ceil_div(rows, 128) * scale_ld
                                        : k_blocks * scale_ld;
    scales.resize(at(count));
    for (std::int64_t i = 0; i < count; ++i) {
      scales[at(i)] = t.scale == ScaleFormat::kF32Pow2
                          ? std::ldexp(1.0F, static_cast<int>(random_bits(seed, at(i)) % 25) - 12)
                          : static_cast<float>(0.001 + random_uniform(seed + 100, at(i)));
    }
    codes.assign(at(rows * ld), 0x7F);  // gaps are NaN, so that reading them shows
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < k; ++i) {
        const double x = 40 * random_normal(seed, at(row * k + i));
        codes[at(row * ld + i)] = to_fp8(static_cast<float>(x), t.dtype);
      }
    }
  }
  float value(std::int64_t row, std::int64_t i) const {
    return from_fp8(codes[at(row * ld + i)], type.dtype);
  }
  float scale(std::int64_t row, std::int64_t i) const {
    switch (type.granularity) {
      case Granularity::kPerTensor:
        return scales[0];
      case Granularity::kPerRow:
        return scales[at(row)];
      case Granularity::k1x128:
        return scales[at(i / 128 * scale_ld + row)];
      default:
        return scales[at(row / 128 * scale_ld + i / 128)];
    }
  }
};

constexpr TensorType type_of(Granularity g, DType fp8 = DType::kE4M3) {
  return {fp8, g, ScaleFormat::kF32};
}

struct Case {
  GemmProblem problem;
  Operand a, b;
  std::int64_t m, ldd;
  std::vector<float> old_d;  // [m][ldd]

  Case(std::int64_t rows, std::int64_t n, std::int64_t k, TensorType ta, TensorType tb,
       std::int64_t gap = 0)
      : a(ta, rows, k, 11, gap), b(tb, n, k, 12, gap), m(rows), ldd(n + gap) {
    problem.n = n;
    problem.k = k;
    problem.a = ta;
    problem.b = tb;
    problem.d.dtype = DType::kFP32;
    for (std::int64_t i = 0; i < m * ldd; ++i) {
      old_d.push_back(static_cast<float>(random_normal(13, at(i))));
    }
  }
  GemmCall args(void* d) const { return tests::call_of(a, b, d, ldd); }
};

// Computes one element in the documented order of operations.
float element(const Case& c, std::int64_t row, std::int64_t col) {
  const std::int64_t k = c.problem.k;
  const std::int64_t interval = c.problem.promote == kPromoteNone ? k : c.problem.promote;
  const auto of_all_k = [](const Operand& x) {
    return x.type.granularity == Granularity::kPerTensor ||
           x.type.granularity == Granularity::kPerRow;
  };
  const bool at_end = of_all_k(c.a) && of_all_k(c.b);
  float acc = 0;
  if (has_scales_inside(c.problem)) {
    for (std::int64_t i = 0; i < k; ++i) {
      const double scale = double{c.a.scale(row, i)} * double{c.b.scale(col, i)};
      acc += static_cast<float>(double{c.a.value(row, i)} * double{c.b.value(col, i)} * scale);
    }
    return c.problem.accumulate ? c.old_d[at(row * c.ldd + col)] + acc : acc;
  }
  for (std::int64_t k0 = 0; k0 < k; k0 += interval) {
    float partial = 0;
    for (std::int64_t i = k0; i < std::min(k, k0 + interval); ++i) {
      partial += c.a.value(row, i) * c.b.value(col, i);
    }
    const float scale = c.a.scale(row, k0) * c.b.scale(col, k0);
    acc = at_end ? acc + partial : std::fma(partial, scale, acc);
  }
  if (at_end && k > 0) acc = (c.a.scale(row, 0) * c.b.scale(col, 0)) * acc;
  return c.problem.accumulate ? c.old_d[at(row * c.ldd + col)] + acc : acc;
}

std::vector<float> run_fp32(const Case& c, int threads = 2) {
  std::vector<float> d = c.old_d;
  const Status s = gemm(c.problem, c.args(d.data()), threads);
  EXPECT_TRUE(s) << s.error().message;
  return d;
}

// Checks the elements and the gaps between rows.
void expect_documented_bits(const Case& c) {
  const std::vector<float> d = run_fp32(c);
  for (std::int64_t row = 0; row < c.m; ++row) {
    for (std::int64_t col = 0; col < c.ldd; ++col) {
      const float want = col < c.problem.n ? element(c, row, col) : c.old_d[at(row * c.ldd + col)];
      ASSERT_EQ(std::bit_cast<std::uint32_t>(d[at(row * c.ldd + col)]),
                std::bit_cast<std::uint32_t>(want))
          << to_text(Problem{c.problem}) << " at " << row << ", " << col;
    }
  }
}

constexpr Granularity kAllGranularities[] = {Granularity::kPerTensor, Granularity::kPerRow,
                                             Granularity::k1x128, Granularity::k128x128};

TEST(Gemm, EveryPairOfGranularitiesKeepsTheDocumentedBits) {
  for (const Granularity a : kAllGranularities) {
    for (const Granularity b : kAllGranularities) {
      expect_documented_bits(Case(133, 140, 300, type_of(a), type_of(b)));
    }
  }
}

TEST(Gemm, EveryShapeOfTailKeepsTheDocumentedBits) {
  const TensorType a = type_of(Granularity::k1x128), b = type_of(Granularity::k128x128);
  for (const std::int64_t m : {1, 6, 7, 193}) {
    for (const std::int64_t n : {1, 8, 17, 257}) {
      for (const std::int64_t k : {1, 16, 128, 144}) expect_documented_bits(Case(m, n, k, a, b));
    }
  }
}

TEST(Gemm, PromotionIntervalsChangeTheOrderAsDocumented) {
  for (const int promote : {32, 64, 128}) {
    Case c(9, 20, 400, type_of(Granularity::k1x128), type_of(Granularity::k128x128));
    c.problem.promote = promote;
    expect_documented_bits(c);
  }
  for (const int promote : {128, 256, 512, kPromoteNone}) {
    for (const auto& [a, b] : {std::pair(Granularity::kPerRow, Granularity::kPerTensor),
                               std::pair(Granularity::kPerRow, Granularity::kPerRow),
                               std::pair(Granularity::kPerTensor, Granularity::kPerTensor)}) {
      Case c(9, 20, 1100, type_of(a), type_of(b));
      c.problem.promote = promote;
      expect_documented_bits(c);
    }
  }
}

constexpr TensorType power_type(Granularity g) { return {DType::kE4M3, g, ScaleFormat::kF32Pow2}; }

TEST(Gemm, ScalesInTheInstructionKeepTheDocumentedBits) {
  for (const Granularity b : {Granularity::k1x128, Granularity::k128x128}) {
    for (const std::int64_t k : {1, 127, 128, 300}) {
      Case c(133, 140, k, power_type(Granularity::k1x128), power_type(b));
      c.problem.promote = kPromoteNone;
      expect_documented_bits(c);
      c.problem.accumulate = true;
      expect_documented_bits(c);
    }
  }
}

// The exponent of a scale is all that counts, and 255 is NaN.
TEST(Gemm, AnInstructionReadsTheExponentOfAScale) {
  Case c(6, 8, 100, power_type(Granularity::k1x128), power_type(Granularity::k1x128));
  c.problem.promote = kPromoteNone;
  std::fill(c.b.scales.begin(), c.b.scales.end(), 0x1p100F);
  const float given[] = {0x1p-127F, 0.0F, -1.0F, 1.5F, INFINITY, NAN};
  const float read[] = {0x1p-127F, 0x1p-127F, 1.0F, 1.0F, NAN, NAN};
  std::copy(std::begin(read), std::end(read), c.a.scales.begin());
  const std::vector<float> want = run_fp32(c);
  std::copy(std::begin(given), std::end(given), c.a.scales.begin());
  const std::vector<float> d = run_fp32(c);
  for (std::size_t i = 0; i < d.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(d[i]), std::bit_cast<std::uint32_t>(want[i])) << i;
    ASSERT_EQ(std::isnan(d[i]), i / 8 >= 4) << i;
  }
  EXPECT_NE(d[0], 0.0F);
}

// The intervals differ in the order of additions, so at least some bits do.
TEST(Gemm, EveryIntervalHasBitsOfItsOwn) {
  std::set<std::vector<float>> results;
  for (const int promote : {128, 256, 512, kPromoteNone}) {
    Case c(9, 20, 1100, type_of(Granularity::kPerRow), type_of(Granularity::kPerRow));
    c.problem.promote = promote;
    results.insert(run_fp32(c));
  }
  EXPECT_EQ(results.size(), 4U);
}

// With an empty K no scale is read.
TEST(Gemm, AnEmptySumNeedsNoScales) {
  Case c(3, 8, 0, type_of(Granularity::kPerRow), type_of(Granularity::kPerRow));
  const std::vector<float> bias(8, 2.5F);
  c.problem.bias = DType::kFP32;
  std::vector<float> d(24);
  GemmCall args = c.args(d.data());
  args.a_scale = args.b_scale = nullptr;
  args.bias = bias.data();
  ASSERT_TRUE(gemm(c.problem, args));
  EXPECT_EQ(d, std::vector<float>(24, 2.5F));
}

TEST(Gemm, MixedFormatsStridesAndAccumulation) {
  Case c(50, 70, 272, type_of(Granularity::k1x128, DType::kE5M2), type_of(Granularity::k1x128), 16);
  expect_documented_bits(c);
  c.problem.accumulate = true;
  expect_documented_bits(c);
}

TEST(Gemm, RoundsOnceToTheOutputType) {
  Case c(20, 30, 256, type_of(Granularity::k1x128), type_of(Granularity::k128x128));
  const std::vector<float> exact = run_fp32(c);
  std::vector<std::uint16_t> d(at(c.m * c.ldd));
  for (const DType out : {DType::kBF16, DType::kFP16}) {
    c.problem.d.dtype = out;
    ASSERT_TRUE(gemm(c.problem, c.args(d.data())));
    for (std::size_t i = 0; i < d.size(); ++i) {
      ASSERT_EQ(d[i], out == DType::kBF16 ? float_to_bf16(exact[i]) : float_to_fp16(exact[i]));
    }
  }
}

// By the steps of docs/numerics.md "Quantising", one after the other.
TEST(Gemm, Fp8DIsTheQuantisedSums) {
  for (const DType fp8 : {DType::kE4M3, DType::kE5M2}) {
    for (const ScaleFormat format : {ScaleFormat::kF32, ScaleFormat::kF32Pow2}) {
      Case c(21, 272, 256, type_of(Granularity::k1x128), type_of(Granularity::k128x128));
      const std::vector<float> sums = run_fp32(c);
      c.problem.d = {fp8, Granularity::k1x128, format};
      constexpr std::int64_t kScaleLd = 28;
      std::vector<std::uint8_t> d(at(c.m * c.ldd), 0xAA);
      std::vector<float> scales(at(3 * kScaleLd), 7.0F);
      GemmCall args = c.args(d.data());
      args.d_scale = scales.data();
      args.d_scale_ld = kScaleLd;
      ASSERT_TRUE(gemm(c.problem, args));
      for (std::int64_t row = 0; row < kScaleLd; ++row) {
        for (std::int64_t col0 = 0; col0 < 272; col0 += 128) {
          const float scale = scales[at(col0 / 128 * kScaleLd + row)];
          if (row >= c.m) {
            ASSERT_EQ(scale, row < 24 ? 1.0F : 7.0F);
            continue;
          }
          const std::int64_t end = std::min<std::int64_t>(col0 + 128, 272);
          float amax = 0;
          for (std::int64_t col = col0; col < end; ++col)
            amax = std::max(amax, std::fabs(sums[at(row * c.ldd + col)]));
          ASSERT_GT(amax, 0.0F);
          float encode = max_finite(fp8) / amax;
          if (format == ScaleFormat::kF32Pow2) encode = std::ldexp(1.0F, std::ilogb(encode));
          ASSERT_EQ(scale, 1 / encode);
          for (std::int64_t col = col0; col < end; ++col)
            ASSERT_EQ(d[at(row * c.ldd + col)], to_fp8(sums[at(row * c.ldd + col)] * encode, fp8));
        }
      }
    }
  }
}

TEST(Gemm, ThreadCountDoesNotChangeABit) {
  const Case c(400, 530, 384, type_of(Granularity::k1x128), type_of(Granularity::k128x128));
  const std::vector<float> one = run_fp32(c, 1);
  for (const int threads : {2, 3, 8}) EXPECT_EQ(run_fp32(c, threads), one);
}

TEST(Gemm, NanReachesItsRowOrColumnOnly) {
  Case c(40, 50, 256, type_of(Granularity::k1x128), type_of(Granularity::k128x128));
  c.a.codes[at(7 * c.a.ld + 200)] = 0x7F;
  c.b.codes[at(33 * c.b.ld + 3)] = 0xFF;
  const std::vector<float> d = run_fp32(c);
  for (std::int64_t row = 0; row < 40; ++row) {
    for (std::int64_t col = 0; col < 50; ++col) {
      const float value = d[at(row * c.ldd + col)];
      ASSERT_EQ(std::isnan(value), row == 7 || col == 33) << row << ", " << col;
      if (std::isnan(value)) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(value), 0x7FFFFFFFU);
      }
    }
  }
}

TEST(Gemm, InfinityTimesZeroIsNan) {
  Case c(2, 2, 16, type_of(Granularity::kPerTensor, DType::kE5M2),
         type_of(Granularity::kPerTensor));
  c.a.codes[0] = 0x7C;
  c.b.codes[0] = 0x00;
  c.b.codes[at(c.b.ld)] = 0xB8;  // -1
  const std::vector<float> d = run_fp32(c);
  EXPECT_TRUE(std::isnan(d[0]));
  EXPECT_EQ(d[1], -std::numeric_limits<float>::infinity());
}

TEST(Gemm, EmptySizes) {
  Case no_rows(0, 16, 128, type_of(Granularity::k1x128), type_of(Granularity::k128x128));
  EXPECT_TRUE(gemm(no_rows.problem, no_rows.args(nullptr)));
  Case no_k(3, 16, 0, type_of(Granularity::k1x128), type_of(Granularity::k128x128));
  EXPECT_EQ(run_fp32(no_k), std::vector<float>(48, 0.0F));
  no_k.problem.accumulate = true;
  no_k.old_d[5] = -0.0F;
  const std::vector<float> kept = run_fp32(no_k);
  EXPECT_EQ(kept, no_k.old_d);
  EXPECT_TRUE(std::signbit(kept[5]));
}

TEST(Gemm, DynamicKComesFromTheCall) {
  Case c(10, 12, 300, type_of(Granularity::k1x128), type_of(Granularity::k1x128));
  const std::vector<float> want = run_fp32(c);
  c.problem.m = 10;
  c.problem.k = kDynamic;
  std::vector<float> d(want.size());
  ASSERT_TRUE(gemm(c.problem, c.args(d.data())));
  EXPECT_EQ(d, want);
}

TEST(GemmFp64, IsTheProductOfTheDequantisedOperands) {
  for (const Granularity g : kAllGranularities) {
    const Case c(140, 150, 400, type_of(g), type_of(g, DType::kE5M2));
    constexpr Fp64Window kWindow{3, 130, 5, 140};
    std::vector<double> r(130 * 140), s(130 * 140);
    ASSERT_TRUE(gemm_fp64(c.problem, c.args(nullptr), kWindow, r.data(), s.data(), 2));
    for (std::int64_t i = 0; i < kWindow.rows; ++i) {
      for (std::int64_t j = 0; j < kWindow.cols; ++j) {
        double want = 0, magnitude = 0;
        for (std::int64_t k = 0; k < 400; ++k) {
          const double x = double{c.a.value(3 + i, k)} * double{c.a.scale(3 + i, k)};
          const double y = double{c.b.value(5 + j, k)} * double{c.b.scale(5 + j, k)};
          want += x * y;
          magnitude += std::fabs(x * y);
        }
        ASSERT_NEAR(r[at(i * 140 + j)], want, 1e-12 * magnitude);
        ASSERT_NEAR(s[at(i * 140 + j)], magnitude, 1e-12 * magnitude);
      }
    }
  }
}

// fp32 sums over 128 elements of K lose far less than the 2^-13 that docs/numerics.md allows the
// tensor core.
TEST(Gemm, StaysWellInsideTheContractsTolerance) {
  for (const DType out : {DType::kBF16, DType::kFP16, DType::kFP32}) {
    Case c(64, 96, 1152, type_of(Granularity::k1x128), type_of(Granularity::k128x128));
    c.problem.d.dtype = out;
    for (float& scale : c.a.scales) scale *= 1e-3F;  // keeps fp16 finite
    std::vector<float> d(at(c.m * c.ldd));
    ASSERT_TRUE(gemm(c.problem, c.args(d.data())));
    std::vector<double> r(at(c.m * c.problem.n)), s(r.size());
    const Fp64Window all{0, c.m, 0, c.problem.n};
    ASSERT_TRUE(gemm_fp64(c.problem, c.args(nullptr), all, r.data(), s.data()));
    const ToleranceReport report = check_tolerance(d.data(), out, c.ldd, all, r, s, 0.01);
    EXPECT_TRUE(report.ok) << report.to_text();
  }
}

// complete() refuses arguments; the host refuses problems that it does not define.
TEST(Gemm, RefusesProblemsWithASentenceThatNamesTheField) {
  const Case good(4, 8, 256, type_of(Granularity::k1x128), type_of(Granularity::k128x128));
  std::vector<float> d(32);
  struct Refusal {
    std::string_view names;
    void (*change)(GemmProblem& problem);
  };
  const Refusal refusals[] = {
      {"promote is 256", [](GemmProblem& p) { p.promote = 256; }},
      {"promote is none and a is e4m3:1x128, b is e4m3:128x128; block scales are then pow2",
       [](GemmProblem& p) { p.promote = kPromoteNone; }},
      {"a is bf16",
       [](GemmProblem& p) { p.a = {DType::kBF16, Granularity::kNone, ScaleFormat::kNone}; }},
      {"e8m0", [](GemmProblem& p) { p.a.scale = ScaleFormat::kE8M0; }},
  };
  for (const auto& [names, change] : refusals) {
    GemmProblem problem = good.problem;
    change(problem);
    const Status s = gemm(problem, good.args(d.data()));
    ASSERT_FALSE(s) << names;
    EXPECT_EQ(s.error().code, ErrorCode::kUnsupported) << s.error().message;
    EXPECT_NE(s.error().message.find(names), std::string::npos) << s.error().message;
  }
}

}  // namespace
}  // namespace octile::reference
