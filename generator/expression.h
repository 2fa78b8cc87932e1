// Pointwise fusions (an activation before quantising, a bias after a GEMM) are written by the
// generator from this typed tree, never from a caller's string. Every node is an fp32 value; inputs
// are converted to fp32 on load.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "generator/error.h"

namespace octile {

enum class ExprOp : int {
  kInput,     // one of up to 4 inputs, by index
  kConstant,  // an fp32 constant, printed as its bits
  kAdd, kSub, kMul, kDiv, kMin, kMax,
  kNeg, kAbs, kExp, kTanh, kRsqrt, kReciprocal,
};

class Expr {
 public:
  static constexpr int kMaxInputs = 4;
  static Result<Expr> input(int index);  // 0 <= index < kMaxInputs
  static Expr constant(float value);
  static Expr unary(ExprOp op, Expr x);
  static Expr binary(ExprOp op, Expr x, Expr y);

  ExprOp op() const;
  int input_count() const;  // highest input index used + 1
  int node_count() const;
  // CUDA: an expression over `x0`..`x3` whose arithmetic is correctly rounded and never contracted
  // (__fadd_rn and its kin; exp, tanh and rsqrt through templates/lib).
  std::string to_cuda() const;
  // Canonical text: "mul(div(x0,add(1,exp(neg(x0)))),x1)". Parsed by parse_expression.
  std::string to_text() const;
  float evaluate(std::span<const float> inputs) const;  // host reference of the same arithmetic
  friend bool operator==(const Expr& a, const Expr& b) { return a.to_text() == b.to_text(); }

 private:
  struct Node;
  explicit Expr(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  std::shared_ptr<const Node> node_;
};

// Depth and node limits (64, 256) are enforced with a sentence.
Result<Expr> parse_expression(std::string_view text);

}  // namespace octile
