// The host quantiser against the plain implementation: shapes, strides, formats, threads and
// refusals.
#include "runtime/reference/quantize/reference.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/plain_quantize.h"
#include "tests/support/quantize_case.h"
#include "tests/support/quantize_cells.h"

namespace octile::reference::plain {
namespace {

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
  QuantizeArguments args = tests::rowwise_args(70, x.bytes.data(), q.data(), scale.data());
  args.ldq = kLdq;
  args.scale_ld = kScaleLd;
  ASSERT_TRUE(tests::run_reference(p, args));
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

// DeepGEMM requires scale_ld = ceil(k/128), so no padding may be written then.
TEST(Quantize, TightScaleStrideIsHonoured) {
  const Input x = random_input(100, 128 * 5, DType::kBF16);
  QuantizeProblem p = problem_of(x, Granularity::k128x128);
  p.output = QuantizeOutput::kRowwise;
  const Outputs want = expected(x, p);
  std::vector<std::uint8_t> q(want.q.size());
  std::vector<float> scale(6, -5.0F);
  QuantizeArguments args = tests::rowwise_args(100, x.bytes.data(), q.data(), scale.data());
  args.scale_ld = 5;
  ASSERT_TRUE(tests::run_reference(p, args));
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

// The formats change the stored scales but never the codes of the format from which they derive.
TEST(Quantize, Bf16AndPackedScalesKeepTheCodes) {
  const Input x = random_input(130, 700, DType::kBF16);
  const auto codes = [&](ScaleFormat f) {
    const QuantizeProblem p = problem_of(x, Granularity::k1x128, DType::kE4M3, f);
    const Outputs out = run(x, p, expected(x, p));
    return std::pair(out.q, out.q_transposed);
  };
  EXPECT_EQ(codes(ScaleFormat::kBF16), codes(ScaleFormat::kF32));
  EXPECT_EQ(codes(ScaleFormat::kUe8m0x4), codes(ScaleFormat::kF32Pow2));
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

// A caller's floating-point control word must not affect the result.
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

struct Refusal {
  QuantizeProblem problem;
  QuantizeArguments args;
  ErrorCode code;
  std::string_view names;  // words that the error sentence must contain
};

TEST(Quantize, RefusesWithASentenceThatNamesTheArgument) {
  std::uint16_t x[256] = {};
  std::uint8_t q[256] = {};
  float scale[16] = {};
  QuantizeProblem good;
  good.cols = 128;
  const QuantizeArguments args = tests::rowwise_args(2, x, q, scale);
  ASSERT_TRUE(tests::run_reference(good, args));

  const auto with = [&](auto change) {
    Refusal r{good, args, ErrorCode::kInvalidArgument, ""};
    change(r);
    return r;
  };
  const Refusal refusals[] = {
      with([](Refusal& r) { r.args.rows = -1, r.names = "rows is -1"; }),
      with([](Refusal& r) { r.problem.rows = 3, r.names = "rows is 2"; }),
      with([](Refusal& r) { r.args.ldx = 100, r.names = "ldx is 100"; }),
      with([](Refusal& r) { r.args.ldq = 100, r.names = "ldq is 100"; }),
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
        r.problem.q = {DType::kE4M3, Granularity::kPerRow, ScaleFormat::kUe8m0x4};
        r.code = ErrorCode::kUnsupported, r.names = "e4m3:row:ue8m0x4";
      }),
      with([](Refusal& r) {
        r.problem.x = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
        r.names = "x_scale is null";
      }),
  };
  for (const Refusal& r : refusals) {
    const Status s = tests::run_reference(r.problem, r.args);
    ASSERT_FALSE(s) << r.names;
    EXPECT_EQ(s.error().code, r.code) << s.error().message;
    EXPECT_NE(s.error().message.find(r.names), std::string::npos) << s.error().message;
  }
}

}  // namespace
}  // namespace octile::reference::plain
