// The expression tree of pointwise fusions (an activation before quantising). The generator writes
// their code from this typed tree, never from a caller's string. Every node is an fp32 value;
// inputs are converted to fp32 on load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"

namespace octile {

enum class ExprOp : int {
  kInput,     // one of up to 4 inputs, by index
  kConstant,  // a finite fp32 constant, printed as its bits
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMin,  // NaN if either is NaN, so that a later check for NaN still sees it; -0 < +0
  kMax,
  kNeg,
  kAbs,
  kExp,
  kTanh,
  kRsqrt,
  kReciprocal,
  kSigmoid,  // 1 / (1 + exp(-x))
  kNormCdf,  // the standard normal distribution's cumulative function, (1 + erf(x / sqrt(2))) / 2
  kNormPdf,  // its density, exp(-x^2 / 2) / sqrt(2 pi)
};

class Expr {
 public:
  static constexpr int kMaxInputs = 4;
  // A larger tree is refused, so that printing and evaluating may recurse. Shared subtrees count
  // each time they are used.
  static constexpr int kMaxDepth = 64;
  static constexpr int kMaxNodes = 256;

  static Result<Expr> input(int index);       // 0 <= index < kMaxInputs
  static Result<Expr> constant(float value);  // finite
  static Result<Expr> unary(ExprOp op, const Expr& x);
  static Result<Expr> binary(ExprOp op, const Expr& x, const Expr& y);

  ExprOp op() const;
  // Returns the operands; a leaf has none.
  std::vector<Expr> arguments() const;
  int input_count() const;  // the highest input index used, plus 1
  int node_count() const;
  int depth() const;               // 1 for a leaf
  bool contains(ExprOp op) const;  // anywhere in the tree
  // Returns a CUDA expression over `x0`..`x3` whose arithmetic is correctly rounded and never
  // contracted (__fadd_rn and the like). exp, tanh, sigmoid, rsqrt, min and max are calls of device
  // functions of templates/lib/math.cuh: octile_exp(x); normcdf and normpdf, of lib/normal.cuh.
  std::string to_cuda() const;
  // Returns the same with each occurrence of `part` replaced by `name`.
  std::string to_cuda(const Expr& part, std::string_view name) const;
  // Returns the canonical text, which parse_expression reads:
  // "mul(div(x0,add(1,exp(neg(x0)))),x1)".
  std::string to_text() const;
  // Returns the value by the host's reference of the same arithmetic, bit for bit (elementary.h).
  // inputs.size() >= input_count().
  float evaluate(std::span<const float> inputs) const;
  // Evaluates `count` elements. inputs[i] points to the elements of input i, and may be anything if
  // the expression does not read that input.
  void evaluate(std::span<const float* const> inputs, std::size_t count, float* out) const;
  friend bool operator==(const Expr& a, const Expr& b) { return a.to_text() == b.to_text(); }

 private:
  struct Node;
  explicit Expr(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  static Result<Expr> make(Node node);
  static void print_text(const Node& node, std::string& out);
  struct Named;
  static void print_cuda(const Node& node, const Named* named, std::string& out);
  static void evaluate(const Node& node, std::span<const float* const> inputs, std::size_t count,
                       float* out);
  std::shared_ptr<const Node> node_;
};

// Reads function notation without spaces: x0..x3, decimal constants, add sub mul div min max (two
// arguments), neg abs exp tanh rsqrt reciprocal sigmoid
// normcdf normpdf (one). Errors: kInvalidArgument naming the
// place and what is allowed there, also for a tree beyond Expr's limits.
// A text with an operator, "x0*x0", is told the function.
Result<Expr> parse_expression(std::string_view text);

// Returns the functions of an expression: "add(a,b), sub(a,b), ...".
std::string expression_functions();

}  // namespace octile
