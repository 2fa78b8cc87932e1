// Fused sources, RMSNorm and bias gradients on the host are compared with plain arithmetic in
// double. Results must not depend on how the work is distributed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "generator/quantize/fused_source.h"
#include "runtime/reference/cast.h"
#include "tests/support/quantize_case.h"

namespace octile {
namespace {

using tests::Fill;

QuantizeProblem problem_of(const std::string& fields) {
  return std::get<QuantizeProblem>(
      parse_problem("quantize rows=? cols=2 q=e4m3:1x128 out=row " + fields).value());
}

double element(const std::vector<char>& x, std::int64_t index) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, x.data() + 2 * index, 2);
  return static_cast<double>(reference::bf16_to_float(bits));
}

TEST(ReferenceFused, ATapIsWhatTheExpressionSays) {
  tests::QuantizeCase c =
      tests::make_case(problem_of("x=bf16 src=silu_mul tap=1"), {9, 300}, Fill::kNormal);
  ASSERT_TRUE(c.run_reference(2));
  for (std::int64_t r = 0; r < 9; ++r) {
    for (std::int64_t i = 0; i < 300; ++i) {
      const double g = element(c.x, r * c.ldx + i), u = element(c.more[0], r * c.more_ld[0] + i);
      const double exact = g / (1 + std::exp(-g)) * u;
      EXPECT_NEAR(static_cast<double>(c.tap[static_cast<std::size_t>(r * 300 + i)]), exact,
                  4e-7 * std::fabs(exact));
    }
  }
}

TEST(ReferenceFused, HalvesLieSideBySide) {
  tests::QuantizeCase c =
      tests::make_case(problem_of("x=bf16 src=x0;neg(x1) tap=1"), {3, 130}, Fill::kNormal);
  ASSERT_TRUE(c.run_reference(1));
  for (std::int64_t r = 0; r < 3; ++r) {
    for (std::int64_t i = 0; i < 65; ++i) {
      const auto at = static_cast<std::size_t>(r * 130 + i);
      EXPECT_EQ(c.tap[at], element(c.x, r * c.ldx + i));
      EXPECT_EQ(c.tap[at + 65], -element(c.more[0], r * c.more_ld[0] + i));
    }
  }
}

TEST(ReferenceFused, TheSourceXIsX) {
  for (const char* output : {"row", "both"}) {
    QuantizeProblem plain = problem_of("x=bf16");
    if (std::string(output) == "both") plain.output = QuantizeOutput::kBoth;
    QuantizeProblem fused = plain;
    fused.source = "x0";
    tests::QuantizeCase a = tests::make_case(plain, {130, 264}, Fill::kInfinities);
    tests::QuantizeCase b = tests::make_case(fused, {130, 264}, Fill::kInfinities);
    ASSERT_TRUE(a.run_reference(1));
    ASSERT_TRUE(b.run_reference(2));
    EXPECT_TRUE(tests::same_outputs(a, b));
  }
}

// If scales lie along the rows, the rows of contiguous groups give the result of one tensor, for
// any source.
TEST(ReferenceFused, ContiguousGroupsOfASourceAreOneTensor) {
  const QuantizeProblem plain = problem_of("x=bf16 src=silu_mul tap=1");
  tests::QuantizeCase one = tests::make_case(plain, {130, 264, 8, 8}, Fill::kMixed);
  tests::QuantizeCase packed = one;
  const std::vector<std::int32_t> offsets{0, 41, 41, 130};
  packed.problem.grouping = Grouping::kContiguous;
  QuantizeArguments args;
  packed.fill(args);
  args.groups.offsets = offsets.data();
  args.groups.group_count = 3;
  const Status status = tests::run_reference(packed.problem, args, 2);
  ASSERT_TRUE(status) << status.error().message;
  ASSERT_TRUE(one.run_reference(2));
  EXPECT_TRUE(tests::same_outputs(one, packed));
}

TEST(ReferenceFused, RowsAreNormed) {
  constexpr std::int64_t kCols = 5000;  // more than one pass over the sums
  tests::QuantizeCase c = tests::make_case(problem_of("x=bf16 src=rmsnorm tap=1 norm_eps=0.5"),
                                           {3, kCols}, Fill::kNormal);
  ASSERT_TRUE(c.run_reference(2));
  for (std::int64_t r = 0; r < 3; ++r) {
    double squares = 0;
    for (std::int64_t i = 0; i < kCols; ++i) {
      squares += element(c.x, r * c.ldx + i) * element(c.x, r * c.ldx + i);
    }
    const double rstd = 1 / std::sqrt(squares / kCols + 0.5);
    EXPECT_NEAR(static_cast<double>(c.rstd[static_cast<std::size_t>(r)]), rstd, 1e-6 * rstd);
    for (std::int64_t i = 0; i < kCols; i += 7) {
      const double exact = element(c.x, r * c.ldx + i) * rstd * element(c.more[0], i);
      EXPECT_NEAR(static_cast<double>(c.tap[static_cast<std::size_t>(r * kCols + i)]), exact,
                  1e-6 * std::fabs(exact));
    }
  }
}

// A norm's result in bf16 is quantised transposed; so is the norm's input, by the 1 / rms found.
TEST(ReferenceFused, ANormAgainHasTheBitsOfItsResult) {
  constexpr std::int64_t kRows = 140, kCols = 200;
  tests::QuantizeCase normed = tests::make_case(problem_of("x=bf16 src=rmsnorm tap=1 via=bf16"),
                                                {kRows, kCols}, Fill::kNormal);
  ASSERT_TRUE(normed.run_reference(2));
  for (const char* q : {"e4m3:1x128:pow2", "e4m3:tensor:f32", "e4m3:1x32:e8m0", "e5m2:row:f32"}) {
    SCOPED_TRACE(q);
    const auto problem = [&](const std::string& fields) {
      return std::get<QuantizeProblem>(
          parse_problem("quantize rows=? cols=2 x=bf16 out=both q=" + (q + fields)).value());
    };
    tests::QuantizeCase again =
        tests::make_case(problem(" src=rmsnorm_again via=bf16"), {kRows, kCols}, Fill::kNormal);
    again.rstd = normed.rstd;
    tests::QuantizeCase plain = tests::make_case(problem(""), {kRows, kCols}, Fill::kZeros);
    for (std::size_t i = 0; i < normed.tap.size(); ++i) {
      const std::uint16_t bits = reference::float_to_bf16(normed.tap[i]);
      EXPECT_EQ(reference::bf16_to_float(bits), normed.tap[i]);
      std::memcpy(plain.x.data() + 2 * i, &bits, sizeof bits);
    }
    ASSERT_TRUE(again.run_reference(2));
    ASSERT_TRUE(plain.run_reference(2));
    EXPECT_EQ(again.rstd, normed.rstd);  // read only
    plain.rstd = again.rstd;
    EXPECT_TRUE(tests::same_outputs(again, plain));
  }
}

// The same of a layer norm, whose mean and 1 / sqrt(variance + eps) are given.
TEST(ReferenceFused, ALayerNormAgainHasTheBitsOfItsResult) {
  constexpr std::int64_t kRows = 140, kCols = 200;
  for (const char* q : {"e4m3:1x128:pow2", "e4m3:tensor:f32", "e4m3:1x32:e8m0", "e5m2:row:f32"}) {
    SCOPED_TRACE(q);
    const auto problem = [&](const std::string& fields) {
      return std::get<QuantizeProblem>(
          parse_problem("quantize rows=? cols=2 x=bf16 out=col q=" + (q + fields)).value());
    };
    tests::QuantizeCase again =
        tests::make_case(problem(" src=layernorm_again via=bf16"), {kRows, kCols}, Fill::kNormal);
    tests::QuantizeCase plain = tests::make_case(problem(""), {kRows, kCols}, Fill::kZeros);
    std::vector<float> means(static_cast<std::size_t>(kRows));
    for (std::size_t r = 0; r < means.size(); ++r) means[r] = 0.25F - static_cast<float>(r) / 64;
    std::memcpy(again.more[2].data(), means.data(), means.size() * sizeof(float));
    for (std::int64_t r = 0; r < kRows; ++r) {
      const auto row = static_cast<std::size_t>(r);
      for (std::int64_t i = 0; i < kCols; ++i) {
        const double x = element(again.x, r * again.ldx + i);
        const double rstd = static_cast<double>(again.rstd[row]);
        const float y = layer_norm(static_cast<float>(x), means[row], again.rstd[row],
                                   static_cast<float>(element(again.more[0], i)),
                                   static_cast<float>(element(again.more[1], i)));
        const double scaled =
            (x - static_cast<double>(means[row])) * rstd * element(again.more[0], i);
        EXPECT_NEAR(static_cast<double>(y), scaled + element(again.more[1], i),
                    3e-7 * (std::fabs(scaled) + 1));
        const std::uint16_t bits = reference::float_to_bf16(y);
        std::memcpy(plain.x.data() + 2 * (r * kCols + i), &bits, sizeof bits);
      }
    }
    const std::vector<float> given = again.rstd;
    ASSERT_TRUE(again.run_reference(2));
    ASSERT_TRUE(plain.run_reference(2));
    EXPECT_EQ(again.rstd, given);  // read only
    plain.rstd = again.rstd;
    EXPECT_TRUE(tests::same_outputs(again, plain));
  }
}

TEST(ReferenceFused, BiasGradientsAreTheSumsOfTheColumns) {
  constexpr std::int64_t kRows = 300, kCols = 200;
  tests::QuantizeCase c =
      tests::make_case(problem_of("x=bf16 dbias=1"), {kRows, kCols}, Fill::kNormal);
  tests::QuantizeCase again = c;
  ASSERT_TRUE(c.run_reference(1));
  ASSERT_TRUE(again.run_reference(3));
  EXPECT_TRUE(tests::same_outputs(c, again));  // equal whichever thread sums which block
  for (std::int64_t i = 0; i < kCols; ++i) {
    double sum = 0;
    for (std::int64_t r = 0; r < kRows; ++r) sum += element(c.x, r * c.ldx + i);
    EXPECT_NEAR(static_cast<double>(c.bias_gradient[static_cast<std::size_t>(i)]), sum, 1e-4);
  }
}

TEST(ReferenceFused, ANaNReachesTheBiasGradient) {
  tests::QuantizeCase c = tests::make_case(problem_of("x=bf16 dbias=1"), {130, 8}, Fill::kOneNaN);
  ASSERT_TRUE(c.run_reference(1));
  EXPECT_EQ(std::ranges::count_if(c.bias_gradient, [](float v) { return std::isnan(v); }), 1);
}

}  // namespace
}  // namespace octile
