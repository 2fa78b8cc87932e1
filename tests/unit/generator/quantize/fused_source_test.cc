#include "generator/quantize/fused_source.h"

#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "generator/families.h"

namespace octile {
namespace {

std::string error_of(std::string_view text) {
  const auto source = fused_source(text);
  if (source) return "a source";
  EXPECT_EQ(source.error().code, ErrorCode::kInvalidArgument);
  return source.error().message;
}

double value(std::string_view name, std::array<float, 3> x, std::size_t part = 0) {
  const auto source = fused_source(name);
  EXPECT_TRUE(source) << name;
  return static_cast<double>(source->parts[part].evaluate(x));
}

double silu(double x) { return x / (1 + std::exp(-x)); }
double gelu_erf(double x) { return x * std::erfc(-x / std::sqrt(2.0)) / 2; }
double gelu(double x) {
  const double pi = std::acos(-1.0);
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
}
// Returns the slope of f at x by central differences.
template <typename F>
double slope(F f, double x) {
  constexpr double kStep = 1e-5;
  return (f(x + kStep) - f(x - kStep)) / (2 * kStep);
}

TEST(FusedSource, ActivationsMatchTheirDefinitions) {
  for (float x0 = -6; x0 < 6; x0 += 0.113F) {
    const double x = x0, y = 0.75, d = 1.25;
    const double relu = std::max(x, 0.0);
    EXPECT_NEAR(value("silu", {x0}), silu(x), 1e-6) << x;
    EXPECT_NEAR(value("silu_mul", {x0, 0.75F}), silu(x) * y, 1e-6) << x;
    EXPECT_NEAR(value("gelu", {x0}), gelu_erf(x), 2e-6) << x;
    EXPECT_NEAR(value("gelu_mul", {x0, 0.75F}), gelu_erf(x) * y, 2e-6) << x;
    EXPECT_NEAR(value("gelu_tanh", {x0}), gelu(x), 2e-6) << x;
    EXPECT_NEAR(value("gelu_tanh_mul", {x0, 0.75F}), gelu(x) * y, 2e-6) << x;
    EXPECT_EQ(value("relu", {x0}), relu) << x;
    EXPECT_NEAR(value("relu2", {x0}), relu * relu, 4e-6) << x;
    EXPECT_NEAR(value("relu_mul", {x0, 0.75F}), relu * y, 1e-6) << x;
    EXPECT_NEAR(value("relu2_mul", {x0, 0.75F}), relu * relu * y, 4e-6) << x;
    EXPECT_EQ(value("drelu", {1.25F, x0}), x > 0 ? d : 0) << x;
    EXPECT_NEAR(value("drelu2", {1.25F, x0}), d * 2 * relu, 4e-6) << x;
    EXPECT_NEAR(value("drelu_mul", {1.25F, x0, 0.75F}), x > 0 ? d * y : 0, 1e-6) << x;
    EXPECT_NEAR(value("drelu_mul", {1.25F, x0, 0.75F}, 1), d * relu, 1e-6) << x;
    EXPECT_NEAR(value("drelu2_mul", {1.25F, x0, 0.75F}), d * y * 2 * relu, 4e-6) << x;
    EXPECT_NEAR(value("drelu2_mul", {1.25F, x0, 0.75F}, 1), d * relu * relu, 8e-6) << x;
    const double silu_slope = slope(silu, x), gelu_slope = slope(gelu, x);
    EXPECT_NEAR(value("dsilu", {1.25F, x0}), d * silu_slope, 2e-6) << x;
    EXPECT_NEAR(value("dsilu_mul", {1.25F, x0, 0.75F}), d * y * silu_slope, 2e-6) << x;
    EXPECT_NEAR(value("dsilu_mul", {1.25F, x0, 0.75F}, 1), d * silu(x), 2e-6) << x;
    const double erf_slope = slope(gelu_erf, x);
    EXPECT_NEAR(value("dgelu", {1.25F, x0}), d * erf_slope, 2e-6) << x;
    EXPECT_NEAR(value("dgelu_mul", {1.25F, x0, 0.75F}), d * y * erf_slope, 2e-6) << x;
    EXPECT_NEAR(value("dgelu_mul", {1.25F, x0, 0.75F}, 1), d * gelu_erf(x), 2e-6) << x;
    EXPECT_NEAR(value("dgelu_tanh", {1.25F, x0}), d * gelu_slope, 4e-6) << x;
    EXPECT_NEAR(value("dgelu_tanh_mul", {1.25F, x0, 0.75F}), d * y * gelu_slope, 4e-6) << x;
    EXPECT_NEAR(value("dgelu_tanh_mul", {1.25F, x0, 0.75F}, 1), d * gelu(x), 4e-6) << x;
  }
}

// Relative errors stay small even if the activation itself is small, because nothing cancels.
TEST(FusedSource, NegativeGatesKeepTheirDigits) {
  for (float x0 = -80; x0 < -1; x0 += 0.37F) {
    EXPECT_NEAR(value("silu", {x0}) / silu(x0), 1, 5e-7) << x0;
  }
  for (float x0 = -12.9F; x0 < -1; x0 += 0.037F) {
    const double x = x0, slope = std::erfc(-x / std::sqrt(2.0)) / 2 +
                                 x * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
    EXPECT_NEAR(value("gelu", {x0}) / gelu_erf(x), 1, 1e-6) << x0;
    EXPECT_NEAR(value("dgelu", {1, x0}) / slope, 1, 4e-6) << x0;
  }
  EXPECT_NEAR(value("silu", {-1000}), 0, 1e-34);
  EXPECT_NEAR(value("gelu", {-1000}), 0, 1e-34);
}

// A gate is closed at 0 and below, and open above, however little.
TEST(FusedSource, ReluIsAStepForEveryGate) {
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  for (const float gate : {kLeast, 1e-38F, 1.0F, std::numeric_limits<float>::max()})
    EXPECT_EQ(value("drelu", {1.25F, gate}), 1.25) << gate;
  for (const float gate : {0.0F, -0.0F, -kLeast, -1.0F, std::numeric_limits<float>::lowest()})
    EXPECT_EQ(value("drelu", {1.25F, gate}), 0) << gate;
}

TEST(FusedSource, WhatIsNotFiniteStaysVisible) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const Activation& a : activations()) {
    const FusedSource source = *fused_source(a.name);
    for (const Expr& part : source.parts) {
      EXPECT_FALSE(std::isfinite(part.evaluate(std::array{NAN, 1.0F, 1.0F}))) << a.name;
      EXPECT_FALSE(std::isfinite(part.evaluate(std::array{kInf, 1.0F, 1.0F}))) << a.name;
    }
  }
}

TEST(FusedSource, ActivationTableIsCanonical) {
  for (const Activation& a : activations()) {
    EXPECT_EQ(canonical_source(a.text), a.text) << a.name;
    EXPECT_EQ(canonical_source(a.name), a.name);
    EXPECT_FALSE(a.source.empty()) << a.name;
    const bool gradient = a.name.starts_with("d"), gated = a.name.ends_with("_mul");
    const FusedSource source = *fused_source(a.name);
    EXPECT_EQ(source.inputs(), 1 + (gradient ? 1 : 0) + (gated ? 1 : 0)) << a.name;
    EXPECT_EQ(source.halves(), gradient && gated) << a.name;
  }
}

TEST(FusedSource, ShapesAreReadOffTheText) {
  for (const std::string text :
       {"silu_mul", "dsilu_mul", "rmsnorm", "rmsnorm_again", "layernorm_again", "relu",
        "max(x0,exp(x1))", "x0;mul(x1,add(x2,x3))"}) {
    const FusedSource source = *fused_source(text);
    const SourceShape shape = source_shape(text);
    EXPECT_EQ(shape.inputs, source.inputs()) << text;
    EXPECT_EQ(shape.halves, source.halves()) << text;
    EXPECT_EQ(shape.norms, source.norms) << text;
    EXPECT_EQ(shape.finds_rms, source.finds_rms) << text;
    EXPECT_EQ(shape.layer_norm, source.layer_norm) << text;
  }
  EXPECT_EQ(source_shape("").inputs, 1);
}

TEST(FusedSource, SpellingsBecomeOne) {
  EXPECT_EQ(canonical_source("mul(0.50,x0);x0"), "mul(0.5,x0);x0");
  EXPECT_EQ(canonical_source("no source"), "no source");
}

TEST(FusedSource, ErrorsNameThePlaceAndWhatIsAllowed) {
  EXPECT_EQ(
      error_of("swish"),
      "a source is 'swish'; allowed are relu, relu2, relu_mul, relu2_mul, silu, silu_mul, "
      "gelu, gelu_mul, gelu_tanh, gelu_tanh_mul, drelu, drelu2, drelu_mul, drelu2_mul, dsilu, "
      "dsilu_mul, dgelu, dgelu_mul, dgelu_tanh, dgelu_tanh_mul, rmsnorm, rmsnorm_again, "
      "layernorm_again, and calls of functions over x0 to "
      "x3 such as "
      "mul(x0,sigmoid(x0)), with " +
          expression_functions());
  EXPECT_THAT(error_of("x0*x0"),
              ::testing::EndsWith("operators are written as functions: mul(x0,x0) for x0*x0"));
  EXPECT_EQ(error_of("mul(x0,x1"), "expression: at character 10 ('') is expected ')'");
  EXPECT_EQ(error_of("x4"), "expression input is x4; allowed are x0 to x3");
  EXPECT_EQ(
      error_of("mul(2,3)"),
      "a source is 'mul(2,3)', which reads no input; allowed are expressions over x0, or over "
      "x0 to x1, x2 or x3 that read all of these");
  EXPECT_EQ(error_of("mul(x0,x2)"),
            "a source is 'mul(x0,x2)', which reads x2 and not x1; allowed are expressions over x0, "
            "or over x0 to x1, x2 or x3 that read all of these");
  EXPECT_EQ(error_of("x0;x0;neg(x0)"),
            "a source has a third expression, 'neg(x0)'; allowed are one, or two joined by ';', of "
            "the left and right half of the columns");
  EXPECT_NE(error_of("x0;").find("is expected"), std::string::npos);
}

TEST(FusedSource, ProblemsHoldThem) {
  const std::string text =
      "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row src=mul(0.5,x0) tap=1";
  const auto problem = parse_problem(
      "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row "
      "tap=1 src=mul(0.50,x0)");
  ASSERT_TRUE(problem) << problem.error().message;
  EXPECT_EQ(to_text(*problem), text);
  const auto refused = [](std::string_view fields) {
    const auto parsed = parse_problem("quantize rows=? cols=513 x=bf16 q=e4m3:1x128 out=row " +
                                      std::string(fields));
    return parsed ? std::string("parsed") : parsed.error().message;
  };
  EXPECT_EQ(
      refused("src=dsilu_mul"),
      "cols is 513; allowed is an even number with src=dsilu_mul, whose halves are as wide as "
      "its inputs");
  EXPECT_EQ(refused("tap=1"), "tap is 1; allowed is 0 without src: the cast sees x itself");
  EXPECT_NE(refused("src=swish").find("src: a source is 'swish'; allowed are"), std::string::npos);
}

}  // namespace
}  // namespace octile
