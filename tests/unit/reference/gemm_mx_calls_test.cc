// MX operands through the C API: plans, and a host run on the results of quantise plans.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/reference/cast.h"
#include "runtime/reference/synthetic.h"
#include "tests/support/api_handles.h"
#include "tests/support/gemm_plan_test.h"

namespace octile::test {
namespace {

constexpr std::int64_t kM = 40;
constexpr std::int64_t kN = 72;
constexpr std::int64_t kK = 208;  // 7 scales a row
constexpr std::int64_t kScalesOfRow = 8;

octile_gemm_desc mx_desc(octile_granularity of_b) {
  return e4m3_desc(kN, kK, OCTILE_SCALE_1X32, of_b);
}

class GemmMxCalls : public GemmPlanTest {
 protected:
  // Quantises N(0, 1) and returns the values in bf16.
  std::vector<float> quantize(std::int64_t rows, const char* granularity, std::uint64_t seed,
                              Bytes& codes, Bytes& scales) {
    Bytes x(static_cast<std::size_t>(rows * kK * 2));
    std::vector<float> values;
    for (std::int64_t i = 0; i < rows * kK; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const std::uint16_t bits =
          reference::float_to_bf16(static_cast<float>(reference::random_normal(seed, at)));
      x.at<std::uint16_t>()[i] = bits;
      values.push_back(reference::load_as_float(&bits, DType::kBF16, 0));
    }
    const PlanHandle plan = make_plan(
        library, "host",
        "quantize rows=? cols=208 x=bf16 q=e4m3:" + std::string(granularity) + " out=row");
    QuantizeArguments args;
    args.rows = rows;
    args.x = x.at();
    args.q = codes.at();
    args.scale = scales.at();
    const octile_quantize_args call = args.call();
    EXPECT_EQ(octile_quantize_run(plan.get(), &call, nullptr), OCTILE_OK) << octile_last_error();
    return values;
  }
  octile_gemm_args args() {
    octile_gemm_args args = {};
    args.struct_size = sizeof(args);
    args.tokens = kM;
    args.a = a.at();
    args.a_scale = a_scale.at();
    args.b = b.at();
    args.b_scale = b_scale.at();
    args.d = d.at();
    return args;
  }

  Bytes a{kM * kK}, b{kN * kK}, a_scale{kM * kScalesOfRow}, b_scale{kN * kScalesOfRow};
  Bytes d{kM * kN * 4};
};

// A GEMM reads what a quantiser writes, without strides of the caller's.
TEST_F(GemmMxCalls, MultipliesWhatQuantisersWrote) {
  for (const char* granularity : {"1x32", "32x32"}) {
    const std::vector<float> x = quantize(kM, "1x32", 1, a, a_scale);
    const std::vector<float> y = quantize(kN, granularity, 2, b, b_scale);
    const bool square = std::string(granularity) == "32x32";
    const PlanHandle plan = plan_of(mx_desc(square ? OCTILE_SCALE_32X32 : OCTILE_SCALE_1X32));
    const octile_gemm_args call = args();
    ASSERT_EQ(octile_gemm_run(plan.get(), &call, nullptr), OCTILE_OK) << octile_last_error();
    for (std::int64_t i = 0; i < kM * kN; ++i) {
      double sum = 0, magnitude = 0;
      for (std::int64_t k = 0; k < kK; ++k) {
        const double product = double{x[static_cast<std::size_t>(i / kN * kK + k)]} *
                               double{y[static_cast<std::size_t>(i % kN * kK + k)]};
        sum += product;
        magnitude += std::fabs(product);
      }
      // Each element is at most a sixteenth of itself off, and mostly much less.
      ASSERT_NEAR(d.at<float>()[i], sum, 0.03 * magnitude) << granularity << " at " << i;
    }
  }
}

TEST_F(GemmMxCalls, AnIntervalOfZeroIs32) {
  const PlanHandle plan = plan_of(mx_desc(OCTILE_SCALE_32X32));
  char text[256];
  std::size_t size = sizeof(text);
  ASSERT_EQ(octile_plan_problem(plan.get(), text, &size), OCTILE_OK);
  EXPECT_STREQ(text, "gemm m=? n=72 k=208 a=e4m3:1x32 b=e4m3:32x32 d=fp32 acc=0 promote=32");
}

}  // namespace
}  // namespace octile::test
