// Which part of a source a table may hold, and that the table has that part's values.
#include "generator/quantize/lookup.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "generator/quantize/config.h"
#include "generator/quantize/fused_source.h"

namespace octile {
namespace {

float bf16(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }
std::uint32_t value_bits(const Expr& part, std::uint32_t bits) {
  const std::array<float, 1> x{bf16(bits)};
  return std::bit_cast<std::uint32_t>(part.evaluate(x));
}

TEST(Lookup, HoldsTheLargestPartThatIsConstantAtBothEnds) {
  EXPECT_EQ(lookup_of("silu")->part.to_text(), "sigmoid(x0)");
  EXPECT_EQ(lookup_of("mul(x0,sub(1,sigmoid(x0)))")->part.to_text(), "sub(1,sigmoid(x0))");
  EXPECT_EQ(lookup_of("mul(x0,exp(neg(mul(x0,x0))))")->part.to_text(), "exp(neg(mul(x0,x0)))");
  ASSERT_NE(lookup_of("gelu"), nullptr);
  EXPECT_EQ(lookup_of("gelu")->part.to_text(), "normcdf(x0)");
  const auto gelu = lookup_of("gelu_tanh");
  ASSERT_NE(gelu, nullptr);
  EXPECT_EQ(gelu->part.op(), ExprOp::kSigmoid);
  EXPECT_GT(gelu->part.node_count(), 5);
}

TEST(Lookup, BelowAndBeyondItsMagnitudesThePartStaysWhatItIs) {
  for (const char* source : {"silu", "gelu", "gelu_tanh", "add(x0,exp(x0))"}) {
    SCOPED_TRACE(source);
    const auto lookup = lookup_of(source);
    ASSERT_NE(lookup, nullptr);
    ASSERT_LT(lookup->last - lookup->first, kLookupMagnitudes);
    for (const std::uint32_t sign : {0U, 0x8000U}) {
      for (std::uint32_t m = 0; m <= 0x7f80; ++m) {
        const std::uint32_t place = m < lookup->first  ? lookup->first
                                    : m > lookup->last ? lookup->last
                                                       : m;
        ASSERT_EQ(value_bits(lookup->part, m | sign), value_bits(lookup->part, place | sign)) << m;
      }
    }
    // No smaller table would suffice.
    const auto moves = [&](std::uint32_t a, std::uint32_t b) {
      return value_bits(lookup->part, a) != value_bits(lookup->part, b) ||
             value_bits(lookup->part, a | 0x8000U) != value_bits(lookup->part, b | 0x8000U);
    };
    EXPECT_TRUE(moves(lookup->first, lookup->first + 1U));
    EXPECT_TRUE(moves(lookup->last, lookup->last - 1U));
  }
}

TEST(Lookup, IsNullWhereATableWouldNotDo) {
  EXPECT_EQ(lookup_of("relu"), nullptr) << "nothing costly";
  EXPECT_EQ(lookup_of("mul(x0,tanh(x0))"), nullptr) << "tanh is its argument near 0";
  EXPECT_EQ(lookup_of("sigmoid(x0)"), nullptr) << "a NaN would be lost";
  EXPECT_EQ(lookup_of("silu_mul"), nullptr) << "two inputs";
  EXPECT_EQ(lookup_of("silu(x0"), nullptr) << "no source";
  EXPECT_EQ(lookup_of("rmsnorm"), nullptr);
  EXPECT_EQ(lookup_of("x0;mul(x0,sigmoid(x0))"), nullptr) << "two expressions";
}

TEST(Lookup, IsOneForAllThreads) {
  std::array<std::shared_ptr<const Lookup>, 4> found;
  {
    std::vector<std::jthread> threads;
    for (auto& lookup : found) {
      threads.emplace_back([&lookup] { lookup = lookup_of("mul(x0,exp(x0))"); });
    }
  }
  ASSERT_NE(found[0], nullptr);
  for (const auto& lookup : found) EXPECT_EQ(lookup, found[0]);
}

TEST(Lookup, IsOfRowsOfBf16ThatStream) {
  QuantizeProblem p;
  p.cols = 7168;
  p.q = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  p.source = "gelu_tanh";
  EXPECT_NE(lookup_of(p), nullptr);
  p.x = {DType::kFP16};
  EXPECT_EQ(lookup_of(p), nullptr);
  p.x = {DType::kBF16};
  p.grouping = Grouping::kContiguous;
  EXPECT_EQ(lookup_of(p), nullptr);
  p.grouping = Grouping::kNone;
  p.output = QuantizeOutput::kBoth;
  EXPECT_EQ(lookup_of(p), nullptr);
}

TEST(Expression, PrintsAPartByAName) {
  const Expr whole = *parse_expression("mul(x0,add(sigmoid(x0),sigmoid(x1)))");
  const Expr part = *parse_expression("sigmoid(x0)");
  EXPECT_EQ(whole.to_cuda(part, "known"), "__fmul_rn(x0, __fadd_rn(known, octile_sigmoid(x1)))");
  EXPECT_EQ(whole.to_cuda(whole, "known"), "known");
  ASSERT_EQ(whole.arguments().size(), 2U);
  EXPECT_EQ(whole.arguments()[0].to_text(), "x0");
  EXPECT_TRUE(whole.arguments()[0].arguments().empty());
}

}  // namespace
}  // namespace octile
