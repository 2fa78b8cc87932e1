#include "generator/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

namespace octile {
namespace {

struct Operation {
  ExprOp op;
  int arguments;
  std::string_view name;  // in canonical text
  std::string_view cuda;  // a function of that many arguments
};

// The _rn intrinsics are correctly rounded and exempt from contraction (CUDA C++ Programming Guide,
// mathematical functions). min and max are not fminf and fmaxf, which drop a NaN.
constexpr std::array<Operation, 12> kOperations{{
    {ExprOp::kAdd, 2, "add", "__fadd_rn"},
    {ExprOp::kSub, 2, "sub", "__fsub_rn"},
    {ExprOp::kMul, 2, "mul", "__fmul_rn"},
    {ExprOp::kDiv, 2, "div", "__fdiv_rn"},
    {ExprOp::kMin, 2, "min", "octile_min"},
    {ExprOp::kMax, 2, "max", "octile_max"},
    {ExprOp::kNeg, 1, "neg", "-"},
    {ExprOp::kAbs, 1, "abs", "fabsf"},
    {ExprOp::kExp, 1, "exp", "octile_exp"},
    {ExprOp::kTanh, 1, "tanh", "octile_tanh"},
    {ExprOp::kRsqrt, 1, "rsqrt", "octile_rsqrt"},
    {ExprOp::kReciprocal, 1, "reciprocal", "__frcp_rn"},
}};

const Operation* find_operation(ExprOp op) {
  const auto it = std::find_if(kOperations.begin(), kOperations.end(),
                               [&](const Operation& o) { return o.op == op; });
  return it == kOperations.end() ? nullptr : &*it;
}

const Operation* find_operation(std::string_view name) {
  const auto it = std::find_if(kOperations.begin(), kOperations.end(),
                               [&](const Operation& o) { return o.name == name; });
  return it == kOperations.end() ? nullptr : &*it;
}

std::string operation_names(int arguments) {
  std::string names;
  for (const Operation& o : kOperations) {
    if (arguments == 0 || o.arguments == arguments) {
      names.append(names.empty() ? "" : ", ").append(o.name);
    }
  }
  return names;
}

template <typename... Args>
tl::unexpected<Error> refuse(fmt::format_string<Args...> format, Args&&... args) {
  return fail(ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

float smaller(float x, float y) {
  if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<float>::quiet_NaN();
  if (x == y) return std::signbit(x) ? x : y;
  return x < y ? x : y;
}

float larger(float x, float y) {
  if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<float>::quiet_NaN();
  if (x == y) return std::signbit(x) ? y : x;
  return x < y ? y : x;
}

// In double and rounded once: off the correctly rounded value only within double's own error of a
// tie.
template <typename F>
float through_double(F f, float x) {
  return static_cast<float>(f(static_cast<double>(x)));
}

float apply(ExprOp op, float x, float y) {
  switch (op) {
    case ExprOp::kAdd:
      return x + y;
    case ExprOp::kSub:
      return x - y;
    case ExprOp::kMul:
      return x * y;
    case ExprOp::kDiv:
      return x / y;
    case ExprOp::kMin:
      return smaller(x, y);
    case ExprOp::kMax:
      return larger(x, y);
    case ExprOp::kNeg:
      return -x;
    case ExprOp::kAbs:
      return std::fabs(x);
    case ExprOp::kExp:
      return through_double([](double v) { return std::exp(v); }, x);
    case ExprOp::kTanh:
      return through_double([](double v) { return std::tanh(v); }, x);
    case ExprOp::kRsqrt:
      return through_double([](double v) { return 1 / std::sqrt(v); }, x);
    case ExprOp::kReciprocal:
      return 1 / x;
    default:  // leaves are not applied
      return std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace

struct Expr::Node {
  ExprOp op = ExprOp::kConstant;
  int index = 0;    // of kInput
  float value = 0;  // of kConstant
  std::shared_ptr<const Node> x, y;
  int nodes = 1;
  int depth = 1;
  int inputs = 0;
};

Result<Expr> Expr::make(Node node) {
  for (const auto& child : {node.x, node.y}) {
    if (!child) continue;
    node.nodes += child->nodes;  // each at most kMaxNodes: no overflow
    node.depth = std::max(node.depth, child->depth + 1);
    node.inputs = std::max(node.inputs, child->inputs);
  }
  if (node.nodes > kMaxNodes) {
    return refuse("an expression has {} nodes; allowed are at most {}", node.nodes, kMaxNodes);
  }
  if (node.depth > kMaxDepth) {
    return refuse("an expression is {} nodes deep; allowed are at most {}", node.depth, kMaxDepth);
  }
  return Expr(std::make_shared<const Node>(std::move(node)));
}

Result<Expr> Expr::input(int index) {
  if (index < 0 || index >= kMaxInputs) {
    return refuse("expression input is x{}; allowed are x0 to x{}", index, kMaxInputs - 1);
  }
  Node node;
  node.op = ExprOp::kInput;
  node.index = index;
  node.inputs = index + 1;
  return make(std::move(node));
}

Result<Expr> Expr::constant(float value) {
  if (!std::isfinite(value)) {
    return refuse("expression constant is {}; allowed are finite numbers", value);
  }
  Node node;
  node.value = value;
  return make(std::move(node));
}

Result<Expr> Expr::unary(ExprOp op, const Expr& x) {
  const Operation* operation = find_operation(op);
  if (operation == nullptr || operation->arguments != 1) {
    return refuse("expression operation {} does not take one argument; those that do are {}",
                  static_cast<int>(op), operation_names(1));
  }
  Node node;
  node.op = op;
  node.x = x.node_;
  return make(std::move(node));
}

Result<Expr> Expr::binary(ExprOp op, const Expr& x, const Expr& y) {
  const Operation* operation = find_operation(op);
  if (operation == nullptr || operation->arguments != 2) {
    return refuse("expression operation {} does not take two arguments; those that do are {}",
                  static_cast<int>(op), operation_names(2));
  }
  Node node;
  node.op = op;
  node.x = x.node_;
  node.y = y.node_;
  return make(std::move(node));
}

ExprOp Expr::op() const { return node_->op; }
int Expr::input_count() const { return node_->inputs; }
int Expr::node_count() const { return node_->nodes; }
int Expr::depth() const { return node_->depth; }

void Expr::print_text(const Node& node, std::string& out) {
  if (node.op == ExprOp::kInput) {
    out += fmt::format("x{}", node.index);
  } else if (node.op == ExprOp::kConstant) {
    out += fmt::format("{}", node.value);  // the shortest decimal that reads back to the same bits
  } else {
    out.append(find_operation(node.op)->name).append("(");
    print_text(*node.x, out);
    if (node.y) {
      out += ",";
      print_text(*node.y, out);
    }
    out += ")";
  }
}

void Expr::print_cuda(const Node& node, std::string& out) {
  if (node.op == ExprOp::kInput) {
    out += fmt::format("x{}", node.index);
  } else if (node.op == ExprOp::kConstant) {
    out += fmt::format("__uint_as_float(0x{:08x}u)", std::bit_cast<std::uint32_t>(node.value));
  } else {
    out.append(find_operation(node.op)->cuda).append("(");
    print_cuda(*node.x, out);
    if (node.y) {
      out += ", ";
      print_cuda(*node.y, out);
    }
    out += ")";
  }
}

float Expr::value_of(const Node& node, std::span<const float> inputs) {
  if (node.op == ExprOp::kInput) return inputs[static_cast<std::size_t>(node.index)];
  if (node.op == ExprOp::kConstant) return node.value;
  const float x = value_of(*node.x, inputs);
  return apply(node.op, x, node.y ? value_of(*node.y, inputs) : 0.0F);
}

std::string Expr::to_text() const {
  std::string out;
  print_text(*node_, out);
  return out;
}

std::string Expr::to_cuda() const {
  std::string out;
  print_cuda(*node_, out);
  return out;
}

float Expr::evaluate(std::span<const float> inputs) const { return value_of(*node_, inputs); }

// ---- parsing
// -------------------------------------------------------------------------------------

namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), rest_(text) {}

  Result<Expr> parse() {
    Result<Expr> expr = expression(1);
    if (expr && !rest_.empty()) return expected("the end");
    return expr;
  }

 private:
  // expression := 'x' digit | number | name '(' expression [',' expression] ')'
  Result<Expr> expression(int depth) {
    if (depth > Expr::kMaxDepth) {  // before recursing: the text is the caller's
      return refuse("an expression is more than {0} nodes deep; allowed are at most {0}",
                    Expr::kMaxDepth);
    }
    if (rest_.empty()) return expected_operand();
    const char c = rest_.front();
    if (c == '-' || c == '.' || is_digit(c)) return number();
    const std::size_t end = std::min(rest_.find_first_of("(),"), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    if (word.size() == 2 && word[0] == 'x' && is_digit(word[1])) {
      rest_.remove_prefix(2);
      return Expr::input(word[1] - '0');
    }
    const Operation* operation = find_operation(word);
    if (operation == nullptr) return expected_operand();
    rest_.remove_prefix(end);
    return call(*operation, depth);
  }

  Result<Expr> call(const Operation& operation, int depth) {
    if (!take('(')) return expected("'('");
    Result<Expr> x = expression(depth + 1);
    if (!x) return x;
    if (operation.arguments == 1) {
      if (!take(')')) return expected("')'");
      return Expr::unary(operation.op, *x);
    }
    if (!take(',')) return expected("','");
    Result<Expr> y = expression(depth + 1);
    if (!y) return y;
    if (!take(')')) return expected("')'");
    return Expr::binary(operation.op, *x, *y);
  }

  Result<Expr> number() {
    float value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) return expected("a decimal number that fp32 can hold");
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return Expr::constant(value);
  }

  bool take(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  tl::unexpected<Error> expected(std::string_view what) const {
    const std::size_t at = text_.size() - rest_.size();
    return refuse("expression: at character {} ('{}') is expected {}", at + 1,
                  rest_.substr(0, kExcerpt), what);
  }

  tl::unexpected<Error> expected_operand() const {
    return expected(
        fmt::format("x0 to x{}, a number, or one of {}", Expr::kMaxInputs - 1, operation_names(0)));
  }

  static constexpr std::size_t kExcerpt = 16;  // of the rest, for a message
  std::string_view text_;
  std::string_view rest_;
};

// sqrt(2/pi) and 0.044715: Gaussian Error Linear Units, arXiv 1606.08415, section 2.
#define OCTILE_GELU_TANH \
  "mul(mul(0.5,x0),add(1,tanh(mul(0.7978846,add(x0,mul(0.044715,mul(x0,mul(x0,x0))))))))"

constexpr std::array<Activation, 6> kActivations{{
    {"relu", "max(x0,0)", "max(x, 0)"},
    {"relu2", "mul(max(x0,0),max(x0,0))", "squared ReLU: Primer, arXiv 2109.08668"},
    {"silu", "div(x0,add(1,exp(neg(x0))))", "x * sigmoid(x): arXiv 1702.03118"},
    {"silu_mul", "mul(div(x0,add(1,exp(neg(x0)))),x1)",
     "SwiGLU: GLU Variants Improve Transformer, arXiv 2002.05202, section 2"},
    {"gelu_tanh", OCTILE_GELU_TANH, "tanh form of GELU: arXiv 1606.08415, section 2"},
    {"gelu_tanh_mul", "mul(" OCTILE_GELU_TANH ",x1)",
     "GEGLU with the tanh form: arXiv 2002.05202, section 2"},
}};

#undef OCTILE_GELU_TANH

}  // namespace

Result<Expr> parse_expression(std::string_view text) { return Parser(text).parse(); }

std::span<const Activation> activations() { return kActivations; }

Result<Expr> activation(std::string_view name) {
  std::string names;
  for (const Activation& a : kActivations) {
    if (a.name == name) return parse_expression(a.text);
    names.append(names.empty() ? "" : ", ").append(a.name);
  }
  return refuse("activation is '{}'; allowed are {}", name, names);
}

}  // namespace octile
