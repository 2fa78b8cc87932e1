// GEMMs of a training step through the C API: tokens in k, sums that are added to D, a bias, a
// sentry and an SM limit. Host runs against the documented order of operations.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "runtime/reference/cast.h"
#include "runtime/reference/synthetic.h"
#include "tests/support/api_handles.h"
#include "tests/support/gemm_call.h"
#include "tests/support/gemm_plan_test.h"

namespace octile::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kM = 23;  // scales are padded to 24
constexpr std::int64_t kN = 40;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// A transposed 1x128 copy, laid out by hand from the table in docs/numerics.md: codes
// [rows][roundup(tokens,16)] and scales [ceil(tokens/128)][roundup(rows,4)].
struct TokenOperand {
  std::int64_t tokens, ld, scale_ld;
  Bytes codes, scales;

  TokenOperand(std::int64_t rows, std::int64_t count, std::uint64_t seed)
      : tokens(count),
        ld(round_up(count, 16)),
        scale_ld(round_up(rows, 4)),
        codes(at(rows * ld)),
        scales(at(ceil_div(count, 128) * scale_ld * 4)) {
    for (std::int64_t i = 0; i < rows * ld; ++i) {
      const double x = 40 * reference::random_normal(seed, at(i));
      // Codes beyond the last token are NaN, so that reading them shows.
      codes.at<std::uint8_t>()[i] =
          i % ld < tokens ? reference::to_fp8(static_cast<float>(x), DType::kE4M3) : 0x7F;
    }
    for (std::int64_t i = 0; i < ceil_div(tokens, 128) * scale_ld; ++i) {
      scales.at<float>()[i] =
          static_cast<float>(0.001 + reference::random_uniform(seed + 1, at(i)));
    }
  }
  float value(std::int64_t row, std::int64_t token) {
    return reference::from_fp8(codes.at<std::uint8_t>()[row * ld + token], DType::kE4M3);
  }
  float scale(std::int64_t row, std::int64_t token) {
    return scales.at<float>()[token / 128 * scale_ld + row];
  }
};

// A weight gradient's operands and its D, which begins with numbers in every element.
struct WeightGradient {
  TokenOperand a, b;
  Bytes d{kM * kN * 4};

  explicit WeightGradient(std::int64_t tokens) : a(kM, tokens, 1), b(kN, tokens, 3) {}

  GemmArguments args() {
    GemmArguments args;
    args.tokens = a.tokens;
    args.a = a.codes.at();
    args.a_scale = a.scales.at();
    args.b = b.codes.at();
    args.b_scale = b.scales.at();
    args.d = d.at();
    return args;
  }
  // Returns the sum in the documented order of operations.
  float sum(std::int64_t row, std::int64_t col) {
    float acc = 0;
    for (std::int64_t k0 = 0; k0 < a.tokens; k0 += 128) {
      float partial = 0;
      for (std::int64_t k = k0; k < std::min(a.tokens, k0 + 128); ++k) {
        partial += a.value(row, k) * b.value(col, k);
      }
      acc = std::fma(partial, a.scale(row, k0) * b.scale(col, k0), acc);
    }
    return acc;
  }
};

octile_gemm_desc weight_gradient_desc() {
  octile_gemm_desc desc = e4m3_desc(kN, OCTILE_DYNAMIC, OCTILE_SCALE_1X128, OCTILE_SCALE_1X128);
  desc.m = kM;
  desc.accumulate = 1;
  return desc;
}

class GemmOutputs : public GemmPlanTest {
 protected:
  static void run(const PlanHandle& plan, const GemmArguments& args) {
    ASSERT_EQ(tests::run_gemm(plan.get(), args), OCTILE_OK) << octile_last_error();
  }
};

// ---- tokens in k

TEST_F(GemmOutputs, ADescriptionMakesThePlanOfItsText) {
  octile_gemm_desc desc = weight_gradient_desc();
  desc.bias_dtype = OCTILE_FP32;
  desc.sentry = OCTILE_SENTRY_WORD;
  const PlanHandle plan = plan_of(desc);
  char text[256];
  std::size_t size = sizeof(text);
  ASSERT_EQ(octile_plan_problem(plan.get(), text, &size), OCTILE_OK);
  EXPECT_STREQ(text,
               "gemm m=23 n=40 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 bias=fp32 "
               "sentry=1");
}

// One plan serves every token count; a second call adds to the sums of the first.
TEST_F(GemmOutputs, SumsOverTokensAreAddedToD) {
  const PlanHandle plan = plan_of(weight_gradient_desc());
  std::vector<float> want(at(kM * kN));
  Bytes d(kM * kN * 4);
  for (std::int64_t i = 0; i < kM * kN; ++i) {
    want[at(i)] = static_cast<float>(reference::random_normal(5, at(i)));
  }
  std::memcpy(d.at(), want.data(), want.size() * 4);
  for (const std::int64_t tokens : {1, 77, 4097, 0, 77}) {
    SCOPED_TRACE(tokens);
    WeightGradient g(tokens);
    GemmArguments args = g.args();
    args.d = d.at();
    run(plan, args);
    for (std::int64_t i = 0; i < kM * kN; ++i) {
      if (tokens > 0) want[at(i)] += g.sum(i / kN, i % kN);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(d.at<float>()[i]),
                std::bit_cast<std::uint32_t>(want[at(i)]))
          << i;
    }
  }
}

TEST_F(GemmOutputs, SumsAreAddedToBf16AndRoundedOnce) {
  octile_gemm_desc desc = weight_gradient_desc();
  desc.d_dtype = OCTILE_BF16;
  const PlanHandle plan = plan_of(desc);
  WeightGradient g(77);
  std::vector<float> old(at(kM * kN));
  for (std::int64_t i = 0; i < kM * kN; ++i) {
    const auto x = static_cast<float>(100 * reference::random_normal(6, at(i)));
    g.d.at<std::uint16_t>()[i] = reference::float_to_bf16(x);
    old[at(i)] = reference::bf16_to_float(g.d.at<std::uint16_t>()[i]);
  }
  run(plan, g.args());
  for (std::int64_t i = 0; i < kM * kN; ++i) {
    ASSERT_EQ(g.d.at<std::uint16_t>()[i],
              reference::float_to_bf16(old[at(i)] + g.sum(i / kN, i % kN)))
        << i;
  }
}

// With no token D keeps every bit if the plan accumulates and becomes zero if it does not. The
// operands may be null.
TEST_F(GemmOutputs, NoTokenAddsNothing) {
  octile_gemm_desc desc = weight_gradient_desc();
  const PlanHandle adding = plan_of(desc);
  desc.accumulate = 0;
  const PlanHandle writing = plan_of(desc);
  Bytes d(kM * kN * 4);
  std::memset(d.at(), 0xff, kM * kN * 4);  // NaNs that are not the canonical one
  d.at<float>()[3] = -0.0F;
  const std::vector<unsigned char> before(d.at<unsigned char>(),
                                          d.at<unsigned char>() + kM * kN * 4);
  GemmArguments args;
  args.d = d.at();
  run(adding, args);
  EXPECT_EQ(std::memcmp(d.at(), before.data(), before.size()), 0);
  run(writing, args);
  for (std::int64_t i = 0; i < kM * kN; ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(d.at<float>()[i]), 0U) << i;
  }
}

TEST_F(GemmOutputs, AnSmLimitChangesNoBit) {
  octile_gemm_desc desc = weight_gradient_desc();
  desc.accumulate = 0;
  const PlanHandle plan = plan_of(desc);
  WeightGradient g(300);
  GemmArguments args = g.args();
  run(plan, args);
  const std::vector<float> all(g.d.at<float>(), g.d.at<float>() + kM * kN);
  args.sm_limit = 1;
  run(plan, args);
  EXPECT_EQ(std::memcmp(g.d.at(), all.data(), all.size() * 4), 0);
}

// ---- bias

TEST_F(GemmOutputs, ABiasIsAddedToTheSumsBeforeRounding) {
  for (const octile_dtype type : {OCTILE_BF16, OCTILE_FP32}) {
    SCOPED_TRACE(type);
    octile_gemm_desc desc = weight_gradient_desc();
    desc.accumulate = 0;
    desc.d_dtype = OCTILE_BF16;
    desc.bias_dtype = type;
    const PlanHandle plan = plan_of(desc);
    WeightGradient g(200);
    Bytes bias(kN * 4);
    std::vector<float> added(at(kN));
    for (std::int64_t j = 0; j < kN; ++j) {
      const auto x = static_cast<float>(100 * reference::random_normal(7, at(j)));
      bias.at<float>()[j] = added[at(j)] = x;
    }
    for (std::int64_t j = 0; type == OCTILE_BF16 && j < kN; ++j) {
      bias.at<std::uint16_t>()[j] = reference::float_to_bf16(added[at(j)]);
      added[at(j)] = reference::bf16_to_float(bias.at<std::uint16_t>()[j]);
    }
    GemmArguments args = g.args();
    args.bias = bias.at();
    run(plan, args);
    for (std::int64_t i = 0; i < kM * kN; ++i) {
      ASSERT_EQ(g.d.at<std::uint16_t>()[i],
                reference::float_to_bf16(g.sum(i / kN, i % kN) + added[at(i % kN)]))
          << i;
    }
  }
}

TEST_F(GemmOutputs, AnEmptySumIsTheBias) {
  octile_gemm_desc desc = weight_gradient_desc();
  desc.bias_dtype = OCTILE_FP32;
  const PlanHandle adding = plan_of(desc);
  desc.accumulate = 0;
  const PlanHandle writing = plan_of(desc);
  Bytes d(kM * kN * 4);
  Bytes bias(kN * 4);
  for (std::int64_t j = 0; j < kN; ++j) bias.at<float>()[j] = static_cast<float>(j) / 8;
  GemmArguments args;
  args.d = d.at();
  args.bias = bias.at();
  for (const float times : {1.0F, 2.0F}) {
    run(times == 1.0F ? writing : adding, args);
    for (std::int64_t i = 0; i < kM * kN; ++i) {
      ASSERT_EQ(d.at<float>()[i], times * bias.at<float>()[i % kN]) << i;
    }
  }
}

// ---- sentry

// The word is set by the values that D stores, and otherwise keeps its value.
TEST_F(GemmOutputs, TheSentryIsSetByWhatDStores) {
  for (const octile_dtype type : {OCTILE_BF16, OCTILE_FP16, OCTILE_FP32}) {
    SCOPED_TRACE(type);
    octile_gemm_desc desc = weight_gradient_desc();
    desc.accumulate = 0;
    desc.d_dtype = type;
    desc.sentry = OCTILE_SENTRY_WORD;
    const PlanHandle plan = plan_of(desc);
    WeightGradient g(200);
    // One of A's scales in its last row and K-block; it makes the sums of that row.
    float& scale = g.a.scales.at<float>()[g.a.scale_ld + kM - 1];
    GemmArguments args = g.args();
    const auto word_after = [&](float value, std::uint32_t preset) {
      scale = value;
      std::uint32_t word = preset;
      args.monitor.sentry = &word;
      EXPECT_EQ(tests::run_gemm(plan.get(), args), OCTILE_OK) << octile_last_error();
      return word;
    };
    // Sums of 200 products of N(0, 40^2) codes stay below 65504 with scales below 0.01.
    for (std::int64_t i = 0; i < 2 * g.a.scale_ld; ++i) g.a.scales.at<float>()[i] *= 0.01F;
    EXPECT_EQ(word_after(0.01F, 0), 0U);
    EXPECT_EQ(word_after(0.01F, 7), 7U);
    EXPECT_EQ(word_after(kInfinity, 0), 1U);
    EXPECT_EQ(word_after(kInfinity, 7), 1U);
    EXPECT_EQ(word_after(std::numeric_limits<float>::quiet_NaN(), 0), 1U);
    EXPECT_EQ(word_after(1e38F, 0), 1U) << "the sum leaves the range of fp32";
    EXPECT_EQ(word_after(1e4F, 0), type == OCTILE_FP16 ? 1U : 0U);
    EXPECT_EQ(word_after(0.01F, 0), 0U) << "the padding or an earlier D was read";
  }
}

// A host run adds the square of each fp32 result, exactly.
TEST_F(GemmOutputs, ASentryOfSquaresSumsThem) {
  octile_gemm_desc desc = weight_gradient_desc();
  desc.accumulate = 0;
  desc.d_dtype = OCTILE_FP32;
  desc.sentry = OCTILE_SENTRY_SQUARES;
  const PlanHandle plan = plan_of(desc);
  char text[256];
  std::size_t size = sizeof(text);
  ASSERT_EQ(octile_plan_problem(plan.get(), text, &size), OCTILE_OK);
  EXPECT_NE(std::string(text).find(" sentry=squares"), std::string::npos) << text;
  WeightGradient g(200);
  GemmArguments args = g.args();
  octile_squares squares{};
  args.monitor.sentry = &squares.sentry;
  ASSERT_EQ(tests::run_gemm(plan.get(), args), OCTILE_OK) << octile_last_error();
  double expected = 0;
  for (std::int64_t row = 0; row < kM; ++row) {
    for (std::int64_t column = 0; column < kN; ++column) {
      const float x = static_cast<const float*>(args.d)[row * kN + column];
      expected += x * x;
    }
  }
  double sum = -1;
  ASSERT_EQ(octile_sum_of_squares(&squares, &sum), OCTILE_OK);
  EXPECT_GT(sum, 0);
  EXPECT_NEAR(sum / expected, 1, 1e-12);
  EXPECT_EQ(squares.sentry, 0U);

  ASSERT_EQ(tests::run_gemm(plan.get(), args), OCTILE_OK);
  double twice = 0;
  ASSERT_EQ(octile_sum_of_squares(&squares, &twice), OCTILE_OK);
  EXPECT_NEAR(twice / sum, 2, 1e-15);

  g.a.scales.at<float>()[0] = kInfinity;
  ASSERT_EQ(tests::run_gemm(plan.get(), args), OCTILE_OK);
  ASSERT_EQ(octile_sum_of_squares(&squares, &sum), OCTILE_OK);
  EXPECT_EQ(sum, std::numeric_limits<double>::infinity());
  EXPECT_EQ(squares.sentry, 1U);
}

// ---- FP8 D

octile_gemm_desc quantised_desc() {
  octile_gemm_desc desc = weight_gradient_desc();
  desc.n = 48;
  desc.accumulate = 0;
  desc.d_dtype = OCTILE_E4M3;
  desc.d_granularity = OCTILE_SCALE_1X128;
  return desc;
}

TEST_F(GemmOutputs, ADescriptionOfFp8DHasItsScales) {
  octile_gemm_desc desc = quantised_desc();
  desc.d_scale_format = OCTILE_SCALE_F32_POW2;
  const PlanHandle plan = plan_of(desc);
  char text[256];
  std::size_t size = sizeof(text);
  ASSERT_EQ(octile_plan_problem(plan.get(), text, &size), OCTILE_OK);
  EXPECT_STREQ(text,
               "gemm m=23 n=48 k=? a=e4m3:1x128 b=e4m3:1x128 d=e4m3:1x128:pow2 acc=0 promote=128");
}

TEST_F(GemmOutputs, ScalesOfDArePaddedWithOne) {
  octile_gemm_desc desc = quantised_desc();
  desc.n = 32;  // as many rows of B as there are
  Bytes scales(28 * 4);
  WeightGradient g(77);
  GemmArguments args = g.args();
  args.d_scales.scale = scales.at<float>();
  args.ldd = 32;
  run(plan_of(desc), args);
  EXPECT_EQ(scales.at<float>()[23], 1.0F);
  EXPECT_GT(scales.at<float>()[22], 0.0F);
}

// Scales per row and per tensor multiply the finished sum, before the bias, and only as many are
// read as there are rows.
TEST_F(GemmOutputs, ScalesForAllOfK) {
  for (const octile_granularity granularity : {OCTILE_SCALE_PER_ROW, OCTILE_SCALE_PER_TENSOR}) {
    octile_gemm_desc desc = weight_gradient_desc();
    desc.a_granularity = desc.b_granularity = granularity;
    desc.promote = 256;
    desc.bias_dtype = OCTILE_FP32;
    desc.accumulate = 0;
    const PlanHandle plan = plan_of(desc);
    WeightGradient g(700);
    const std::vector<float> bias(kN, 0.3F);
    GemmArguments args = g.args();
    args.bias = bias.data();
    ASSERT_EQ(tests::run_gemm(plan.get(), args), OCTILE_OK) << octile_last_error();
    const std::int64_t step = granularity == OCTILE_SCALE_PER_ROW ? 1 : 0;
    for (std::int64_t row = 0; row < kM; ++row) {
      for (std::int64_t col = 0; col < kN; ++col) {
        float acc = 0;
        for (std::int64_t k0 = 0; k0 < 700; k0 += 256) {
          float partial = 0;
          for (std::int64_t k = k0; k < std::min<std::int64_t>(700, k0 + 256); ++k) {
            partial += g.a.value(row, k) * g.b.value(col, k);
          }
          acc += partial;
        }
        const float scale = g.a.scales.at<float>()[row * step] * g.b.scales.at<float>()[col * step];
        ASSERT_EQ(g.d.at<float>()[row * kN + col], scale * acc + 0.3F) << row << ", " << col;
      }
    }
  }
}

TEST_F(GemmOutputs, ScalesForAllOfKThatNothingReads) {
  octile_gemm_desc desc = weight_gradient_desc();
  desc.a_granularity = desc.b_granularity = OCTILE_SCALE_PER_TENSOR;
  WeightGradient g(77);
  GemmArguments aligned_to_4 = g.args();
  aligned_to_4.a_scale = g.a.scales.at(4);
  run(plan_of(desc), aligned_to_4);
  desc.a_granularity = desc.b_granularity = OCTILE_SCALE_PER_ROW;
  GemmArguments empty = g.args();
  empty.tokens = 0;
  empty.a_scale = empty.b_scale = nullptr;
  run(plan_of(desc), empty);
}

}  // namespace
}  // namespace octile::test
