#include "generator/core/expression.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace octile {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Expr parsed(std::string_view text) {
  const auto e = parse_expression(text);
  EXPECT_TRUE(e) << text << ": " << (e ? "" : e.error().message);
  return e ? *e : *Expr::constant(0);
}

std::string error_of(std::string_view text) {
  const auto e = parse_expression(text);
  if (e) return "parsed as: " + e->to_text();
  EXPECT_EQ(e.error().code, ErrorCode::kInvalidArgument);
  return e.error().message;
}

float eval(std::string_view text, float x0 = 0, float x1 = 0) {
  return parsed(text).evaluate(std::array{x0, x1});
}

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

TEST(Expression, EveryOperationPrints) {
  struct Row {
    std::string_view text, cuda;
  };
  for (const Row& r : std::vector<Row>{
           {"x0", "x0"},
           {"x3", "x3"},
           {"1", "__uint_as_float(0x3f800000u)"},
           {"-0", "__uint_as_float(0x80000000u)"},
           {"0.1", "__uint_as_float(0x3dcccccdu)"},
           {"add(x0,x1)", "__fadd_rn(x0, x1)"},
           {"sub(x0,x1)", "__fsub_rn(x0, x1)"},
           {"mul(x0,x1)", "__fmul_rn(x0, x1)"},
           {"div(x0,x1)", "__fdiv_rn(x0, x1)"},
           {"min(x0,x1)", "octile_min(x0, x1)"},
           {"max(x0,x1)", "octile_max(x0, x1)"},
           {"neg(neg(x0))", "-(-(x0))"},
           {"abs(x0)", "fabsf(x0)"},
           {"exp(x0)", "octile_exp(x0)"},
           {"tanh(x0)", "octile_tanh(x0)"},
           {"rsqrt(x0)", "octile_rsqrt(x0)"},
           {"reciprocal(x0)", "__frcp_rn(x0)"},
           {"sigmoid(x0)", "octile_sigmoid(x0)"},
           {"normcdf(x0)", "octile_normcdf(x0)"},
           {"normpdf(x0)", "octile_normpdf(x0)"},
       }) {
    const Expr e = parsed(r.text);
    EXPECT_EQ(e.to_text(), r.text);
    EXPECT_EQ(e.to_cuda(), r.cuda);
  }
}

TEST(Expression, BuildingAndParsingAgree) {
  const Expr x = *Expr::input(0);
  const Expr gate =
      *Expr::binary(ExprOp::kDiv, x,
                    *Expr::binary(ExprOp::kAdd, *Expr::constant(1),
                                  *Expr::unary(ExprOp::kExp, *Expr::unary(ExprOp::kNeg, x))));
  const Expr e = *Expr::binary(ExprOp::kMul, gate, *Expr::input(1));
  EXPECT_EQ(e.to_text(), "mul(div(x0,add(1,exp(neg(x0)))),x1)");
  EXPECT_EQ(e, parsed(e.to_text()));
  EXPECT_FALSE(e == gate);
  EXPECT_EQ(e.op(), ExprOp::kMul);
  EXPECT_EQ(e.input_count(), 2);
  EXPECT_EQ(e.node_count(), 9);
  EXPECT_EQ(e.depth(), 6);
  EXPECT_EQ(parsed("x2").input_count(), 3);
  EXPECT_EQ(parsed("7").input_count(), 0);
}

TEST(Expression, BuildersRefuseWhatTheyCannotHold) {
  const Expr x = *Expr::input(0);
  EXPECT_EQ(Expr::input(4).error().message, "expression input is x4; allowed are x0 to x3");
  EXPECT_FALSE(Expr::input(-1));
  EXPECT_EQ(Expr::constant(kInf).error().message,
            "expression constant is inf; allowed are finite numbers");
  EXPECT_FALSE(Expr::constant(kNan));
  EXPECT_EQ(Expr::unary(ExprOp::kAdd, x).error().message,
            "expression operation 2 does not take one argument; those that do are neg, abs, exp, "
            "tanh, rsqrt, reciprocal, sigmoid, normcdf, normpdf");
  EXPECT_EQ(Expr::binary(ExprOp::kNeg, x, x).error().message,
            "expression operation 8 does not take two arguments; those that do are add, sub, mul, "
            "div, min, max");
  EXPECT_FALSE(Expr::unary(ExprOp::kInput, x));
  EXPECT_FALSE(Expr::binary(ExprOp::kConstant, x, x));
}

TEST(Expression, LimitsHold) {
  // 63 operations over a leaf make a depth of 64.
  std::string deep;
  for (int i = 0; i < 63; ++i) deep += "neg(";
  const std::string closing(63, ')');
  EXPECT_EQ(parsed(deep + "x0" + closing).depth(), 64);
  EXPECT_EQ(error_of(deep + "neg(x0)" + closing),
            "an expression is more than 64 nodes deep; allowed are at most 64");
  // A caller's text cannot exhaust the stack.
  std::string hostile;
  for (int i = 0; i < 1000000; ++i) hostile += "neg(";
  EXPECT_EQ(error_of(hostile), "an expression is more than 64 nodes deep; allowed are at most 64");

  // Sharing doubles the tree: 2^8 - 1 = 255 nodes, then 511.
  Expr e = *Expr::input(0);
  for (int i = 0; i < 7; ++i) e = *Expr::binary(ExprOp::kAdd, e, e);
  EXPECT_EQ(e.node_count(), 255);
  EXPECT_TRUE(Expr::unary(ExprOp::kNeg, e));
  const auto wide = Expr::binary(ExprOp::kAdd, e, e);
  ASSERT_FALSE(wide);
  EXPECT_EQ(wide.error().message, "an expression has 511 nodes; allowed are at most 256");
  Expr tall = *Expr::input(0);
  for (int i = 0; i < 63; ++i) tall = *Expr::unary(ExprOp::kNeg, tall);
  EXPECT_EQ(Expr::unary(ExprOp::kNeg, tall).error().message,
            "an expression is 65 nodes deep; allowed are at most 64");
}

TEST(Expression, RefusesMalformedTextAtItsPlace) {
  const std::string operand =
      "is expected x0 to x3, a number, or one of add, sub, mul, div, min, max, neg, abs, exp, "
      "tanh, rsqrt, reciprocal, sigmoid, normcdf, normpdf";
  EXPECT_EQ(error_of(""), "expression: at character 1 ('') " + operand);
  EXPECT_EQ(error_of("sin(x0)"), "expression: at character 1 ('sin(x0)') " + operand);
  EXPECT_EQ(error_of("add(x0,"), "expression: at character 8 ('') " + operand);
  EXPECT_EQ(error_of("add(x0, x1)"), "expression: at character 8 (' x1)') " + operand);
  EXPECT_EQ(error_of("add(x0)"), "expression: at character 7 (')') is expected ','");
  EXPECT_EQ(error_of("neg(x0,x1)"), "expression: at character 7 (',x1)') is expected ')'");
  EXPECT_EQ(error_of("neg"), "expression: at character 4 ('') is expected '('");
  EXPECT_EQ(error_of("neg(x0"), "expression: at character 7 ('') is expected ')'");
  EXPECT_EQ(error_of("neg(x0))"), "expression: at character 8 (')') is expected the end");
  EXPECT_EQ(error_of("x0;system"), "expression: at character 1 ('x0;system') " + operand);
  EXPECT_EQ(error_of("1e99"),
            "expression: at character 1 ('1e99') is expected a decimal number that fp32 can hold");
  EXPECT_EQ(error_of("-"),
            "expression: at character 1 ('-') is expected a decimal number that fp32 can hold");
  EXPECT_EQ(error_of("-inf"), "expression constant is -inf; allowed are finite numbers");
  EXPECT_EQ(error_of("x4"), "expression input is x4; allowed are x0 to x3");
  EXPECT_EQ(error_of("1x0"), "expression: at character 2 ('x0') is expected the end");
}

// A user who writes operators is shown the function, by the text's own operands where they are
// simple.
TEST(Expression, OperatorsAreToldTheirFunctions) {
  const auto told = [](std::string_view text) {
    const std::string message = error_of(std::string(text));
    const std::size_t at = message.find("; operators are written as functions: ");
    return at == std::string::npos ? std::string() : message.substr(message.rfind(": ") + 2);
  };
  EXPECT_EQ(told("x0*x0"), "mul(x0,x0) for x0*x0");
  EXPECT_EQ(told("x0+0.5"), "add(x0,0.5) for x0+0.5");
  EXPECT_EQ(told("x1/x2"), "div(x1,x2) for x1/x2");
  EXPECT_EQ(told("x0-x1"), "sub(x0,x1) for x0-x1");
  EXPECT_EQ(told("mul(x0,x1)-x2"), "sub(x0,x0) for x0-x0");
  EXPECT_EQ(told("mul(x0,-1"), "");
  EXPECT_EQ(told("mul(-1e-3,x0"), "");
  EXPECT_EQ(told("neg(x0"), "");
  EXPECT_EQ(told("-inf"), "");
}

// Every function that is listed is one, with the arguments of the list.
TEST(Expression, ListsItsFunctions) {
  std::string list = expression_functions();
  EXPECT_EQ(std::count(list.begin(), list.end(), '('), 15);
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = list.find(')', at) + 1;
    std::string call = list.substr(at, end - at);
    std::replace(call.begin() + static_cast<std::ptrdiff_t>(call.find('(')), call.end(), 'a', '1');
    std::replace(call.begin() + static_cast<std::ptrdiff_t>(call.find('(')), call.end(), 'b', '2');
    EXPECT_EQ(parsed(call).to_text(), call);
    at = end + 2;
  }
}

TEST(Expression, ConstantsKeepTheirBits) {
  std::mt19937 random(3);
  for (int i = 0; i < 100000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    const Expr e = *Expr::constant(value);
    const auto back = parse_expression(e.to_text());
    ASSERT_TRUE(back) << e.to_text();
    ASSERT_EQ(bits(back->evaluate({})), bits(value)) << e.to_text();
    ASSERT_EQ(back->to_cuda(), e.to_cuda());
  }
}

// ---- random trees ----------------------------------------------------------------------------

Expr random_tree(std::mt19937& random, int depth) {
  if (depth == 0 || random() % 5 == 0) {
    if (random() % 3 == 0) return *Expr::constant(static_cast<float>(random() % 100) / 16);
    return *Expr::input(static_cast<int>(random() % 4));
  }
  const auto op = static_cast<ExprOp>(2 + random() % 15);
  const Expr x = random_tree(random, depth - 1);
  if (const auto e = Expr::unary(op, x)) return *e;
  return *Expr::binary(op, x, random_tree(random, depth - 1));
}

TEST(Expression, RandomTreesSurviveTheirText) {
  std::mt19937 random(4);
  for (int i = 0; i < 5000; ++i) {
    const Expr e = random_tree(random, 6);
    const auto back = parse_expression(e.to_text());
    ASSERT_TRUE(back) << e.to_text() << ": " << back.error().message;
    ASSERT_EQ(*back, e);
    ASSERT_EQ(back->node_count(), e.node_count());
    const std::array inputs{0.5F, -3.0F, 100.0F, 1e-3F};
    const float x = e.evaluate(inputs), y = back->evaluate(inputs);
    ASSERT_TRUE(bits(x) == bits(y) || (std::isnan(x) && std::isnan(y))) << e.to_text();
  }
}

TEST(Expression, PrintedCudaIsCallsOfKnownFunctions) {
  const std::set<std::string> known{
      "__fadd_rn",      "__fsub_rn",       "__fmul_rn",      "__fdiv_rn",
      "__frcp_rn",      "octile_min",      "octile_max",     "octile_exp",
      "octile_tanh",    "octile_rsqrt",    "octile_sigmoid", "octile_normcdf",
      "octile_normpdf", "__uint_as_float", "fabsf",          "-"};
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    const std::string cuda = random_tree(random, 6).to_cuda();
    int open = 0;
    std::string word;
    for (const char c : cuda) {
      if (c == '(') {
        ASSERT_TRUE(known.count(word) == 1) << "'" << word << "' in " << cuda;
        ++open;
      } else if (c == ')') {
        ASSERT_GT(open, 0) << cuda;
        --open;
      }
      // The compiler could fuse or round an infix operator as it likes.
      ASSERT_TRUE(std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                  std::strchr("_(), -", c) != nullptr)
          << cuda;
      const bool separator = c == '(' || c == ')' || c == ',' || c == ' ';
      word = separator ? "" : word + c;
    }
    ASSERT_EQ(open, 0) << cuda;
  }
}

// ---- values ----------------------------------------------------------------------------------

TEST(Expression, ArithmeticIsRoundedAtEachNode) {
  // fma(x0, x1, -1) would keep the low bits of the multiplication; two roundings do not.
  const float a = 1 + 0x1p-12F;
  EXPECT_EQ(eval("sub(mul(x0,x0),1)", a), 0x1p-11F);
  EXPECT_NE(std::fma(a, a, -1.0F), 0x1p-11F);
  EXPECT_EQ(eval("div(1,x0)", 3), 1.0F / 3.0F);
  EXPECT_EQ(eval("reciprocal(x0)", 3), 1.0F / 3.0F);
  EXPECT_EQ(eval("mul(x0,x1)", 0x1p-100F, 0x1p-40F), 0x1p-140F);  // subnormals are kept
  EXPECT_EQ(eval("div(x0,x1)", 1, 0), kInf);
  EXPECT_EQ(eval("abs(neg(x0))", 5), 5);
  EXPECT_EQ(bits(eval("neg(x0)", 0.0F)), bits(-0.0F));
}

TEST(Expression, MinAndMaxShowNan) {
  EXPECT_EQ(eval("min(x0,x1)", 2, -3), -3);
  EXPECT_EQ(eval("max(x0,x1)", 2, -3), 2);
  EXPECT_TRUE(std::isnan(eval("max(x0,0)", kNan)));
  EXPECT_TRUE(std::isnan(eval("max(0,x0)", kNan)));
  EXPECT_TRUE(std::isnan(eval("min(x0,0)", kNan)));
  EXPECT_TRUE(std::isnan(eval("min(0,x0)", kNan)));
  for (const auto& [x, y] : {std::pair{0.0F, -0.0F}, std::pair{-0.0F, 0.0F}}) {
    EXPECT_EQ(bits(eval("max(x0,x1)", x, y)), bits(0.0F));
    EXPECT_EQ(bits(eval("min(x0,x1)", x, y)), bits(-0.0F));
  }
}

// Returns the distance in representable numbers between finite values of one sign.
std::int64_t ulps(float x, float y) {
  return std::abs(std::int64_t{bits(x)} - std::int64_t{bits(y)});
}

TEST(Expression, TranscendentalsAgreeWithTheLibraryOfTheHost) {
  for (float x = -20; x < 20; x += 0.37F) {
    EXPECT_LE(ulps(eval("exp(x0)", x), std::exp(x)), 1) << x;
    EXPECT_LE(ulps(eval("tanh(x0)", x), std::tanh(x)), 1) << x;
    if (x > 0) {
      const long double exact = 1 / std::sqrt(static_cast<long double>(x));
      EXPECT_EQ(eval("rsqrt(x0)", x), static_cast<float>(exact)) << x;
    }
  }
  EXPECT_EQ(eval("rsqrt(x0)", 0), kInf);
  EXPECT_TRUE(std::isnan(eval("rsqrt(x0)", -1)));
}

TEST(Expression, ManyElementsAreEvaluatedAsOne) {
  constexpr std::size_t kCount = 300;  // more than are evaluated together
  const Expr e = parsed("sub(mul(x0,x2),max(exp(x1),0.25))");
  std::vector<std::vector<float>> inputs(3, std::vector<float>(kCount));
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (auto& input : inputs)
    std::generate(input.begin(), input.end(), [&] { return normal(random); });
  std::vector<float> many(kCount);
  e.evaluate(std::array<const float*, 3>{inputs[0].data(), inputs[1].data(), inputs[2].data()},
             kCount, many.data());
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(many[i], e.evaluate(std::array{inputs[0][i], inputs[1][i], inputs[2][i]})) << i;
  }
}

}  // namespace
}  // namespace octile
