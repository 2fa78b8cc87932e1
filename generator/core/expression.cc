#include "generator/core/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "generator/core/elementary.h"

namespace octile {
namespace {

struct Operation {
  ExprOp op;
  int arguments;
  std::string_view name;  // in canonical text
  std::string_view cuda;  // a function of that many arguments
};

// The _rn intrinsics are correctly rounded and never contracted (CUDA C++ Programming Guide,
// mathematical functions). min and max are not fminf and fmaxf, because those drop a NaN.
constexpr std::array<Operation, 15> kOperations{{
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
    {ExprOp::kSigmoid, 1, "sigmoid", "octile_sigmoid"},
    {ExprOp::kNormCdf, 1, "normcdf", "octile_normcdf"},
    {ExprOp::kNormPdf, 1, "normpdf", "octile_normpdf"},
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

// Operators of other languages, which texts of expressions do not have.
constexpr std::array<std::pair<char, std::string_view>, 4> kOperators{
    {{'+', "add"}, {'-', "sub"}, {'*', "mul"}, {'/', "div"}}};

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

template <typename F>
void each(std::size_t count, float* x, const float* y, F f) {
  for (std::size_t i = 0; i < count; ++i) x[i] = f(x[i], y[i]);
}

// Sets x = op(x, y), element by element. Operations of one argument do not read y.
void apply(ExprOp op, std::size_t count, float* x, const float* y) {
  const auto unary = [&](float (*f)(float)) {
    for (std::size_t i = 0; i < count; ++i) x[i] = f(x[i]);
  };
  switch (op) {
    case ExprOp::kAdd:
      return each(count, x, y, [](float a, float b) { return a + b; });
    case ExprOp::kSub:
      return each(count, x, y, [](float a, float b) { return a - b; });
    case ExprOp::kMul:
      return each(count, x, y, [](float a, float b) { return a * b; });
    case ExprOp::kDiv:
      return each(count, x, y, [](float a, float b) { return a / b; });
    case ExprOp::kMin:
      return each(count, x, y, elementary::min);
    case ExprOp::kMax:
      return each(count, x, y, elementary::max);
    case ExprOp::kNeg:
      return unary([](float a) { return -a; });
    case ExprOp::kAbs:
      return unary([](float a) { return std::fabs(a); });
    case ExprOp::kExp:
      return unary(elementary::exp);
    case ExprOp::kTanh:
      return unary(elementary::tanh);
    case ExprOp::kRsqrt:
      return unary(elementary::rsqrt);
    case ExprOp::kReciprocal:
      return unary([](float a) { return 1 / a; });
    case ExprOp::kSigmoid:
      return unary(elementary::sigmoid);
    case ExprOp::kNormCdf:
      return unary(elementary::normcdf);
    case ExprOp::kNormPdf:
      return unary(elementary::normpdf);
    case ExprOp::kInput:
    case ExprOp::kConstant:
      return;  // leaves are not applied
  }
}

constexpr std::size_t kPiece =
    32;  // elements evaluated together: a level of the tree has this number on the stack

}  // namespace

struct Expr::Node {
  ExprOp op = ExprOp::kConstant;
  int index = 0;    // kInput only
  float value = 0;  // kConstant only
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
std::vector<Expr> Expr::arguments() const {
  std::vector<Expr> all;
  for (const auto& child : {node_->x, node_->y}) {
    if (child) all.push_back(Expr(child));
  }
  return all;
}
int Expr::input_count() const { return node_->inputs; }
int Expr::node_count() const { return node_->nodes; }
int Expr::depth() const { return node_->depth; }
bool Expr::contains(ExprOp op) const {
  if (node_->op == op) return true;
  return std::ranges::any_of(arguments(), [&](const Expr& part) { return part.contains(op); });
}

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

// A part of a tree that is printed as a name.
struct Expr::Named {
  std::string text;
  int nodes;
  std::string_view name;
};

void Expr::print_cuda(const Node& node, const Named* named, std::string& out) {
  if (named != nullptr && node.nodes == named->nodes) {
    std::string text;
    print_text(node, text);
    if (text == named->text) {
      out += named->name;
      return;
    }
  }
  if (node.op == ExprOp::kInput) {
    out += fmt::format("x{}", node.index);
  } else if (node.op == ExprOp::kConstant) {
    out += fmt::format("__uint_as_float(0x{:08x}u)", std::bit_cast<std::uint32_t>(node.value));
  } else {
    out.append(find_operation(node.op)->cuda).append("(");
    print_cuda(*node.x, named, out);
    if (node.y) {
      out += ", ";
      print_cuda(*node.y, named, out);
    }
    out += ")";
  }
}

void Expr::evaluate(const Node& node, std::span<const float* const> inputs, std::size_t count,
                    float* out) {
  if (node.op == ExprOp::kInput) {
    std::copy_n(inputs[static_cast<std::size_t>(node.index)], count, out);
    return;
  }
  if (node.op == ExprOp::kConstant) {
    std::fill_n(out, count, node.value);
    return;
  }
  evaluate(*node.x, inputs, count, out);
  // Written below. NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init)
  std::array<float, kPiece> second;
  if (node.y) evaluate(*node.y, inputs, count, second.data());
  apply(node.op, count, out, second.data());
}

std::string Expr::to_text() const {
  std::string out;
  print_text(*node_, out);
  return out;
}

std::string Expr::to_cuda() const {
  std::string out;
  print_cuda(*node_, nullptr, out);
  return out;
}

std::string Expr::to_cuda(const Expr& part, std::string_view name) const {
  const Named named{part.to_text(), part.node_count(), name};
  std::string out;
  print_cuda(*node_, &named, out);
  return out;
}

float Expr::evaluate(std::span<const float> inputs) const {
  std::array<const float*, kMaxInputs> pointers{};
  for (std::size_t i = 0; i < std::min(inputs.size(), pointers.size()); ++i) {
    pointers[i] = &inputs[i];
  }
  float value = 0;
  evaluate(*node_, pointers, 1, &value);
  return value;
}

void Expr::evaluate(std::span<const float* const> inputs, std::size_t count, float* out) const {
  std::array<const float*, kMaxInputs> here{};
  for (std::size_t begin = 0; begin < count; begin += kPiece) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] != nullptr) here[i] = inputs[i] + begin;
    }
    evaluate(*node_, here, std::min(kPiece, count - begin), out + begin);
  }
}

// ---- parsing

namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), rest_(text) {}

  Result<Expr> parse() {
    Result<Expr> expr = expression(1);
    if (expr && !rest_.empty()) return expected("the end");
    return expr;
  }

  // If the text has an operator, returns "; operators are written as functions: mul(x0,x0) for
  // x0*x0", by the text's own operands if they are x0 to x3 or numbers.
  static std::string operators_text(std::string_view text) {
    const auto is_operand = [](std::string_view t) {
      return !t.empty() && t.find_first_not_of("x0123456789.") == std::string_view::npos;
    };
    for (const auto& [sign, name] : kOperators) {
      const std::size_t at = text.find(sign, 1);  // a sign in front is a number's
      if (at == std::string_view::npos || text[at - 1] == '(' || text[at - 1] == ',' ||
          text[at - 1] == 'e')
        continue;
      std::string_view left = text.substr(0, at);
      std::string_view right = text.substr(at + 1);
      if (!is_operand(left) || !is_operand(right)) left = right = "x0";
      return fmt::format("; operators are written as functions: {0}({1},{2}) for {1}{3}{2}", name,
                         left, right, sign);
    }
    return {};
  }

 private:
  // expression := 'x' digit | number | name '(' expression [',' expression] ')'
  Result<Expr> expression(int depth) {
    if (depth > Expr::kMaxDepth) {  // checked before recursing, because the text is the caller's
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
    return refuse("expression: at character {} ('{}') is expected {}{}", at + 1,
                  rest_.substr(0, kExcerpt), what, operators_text(text_));
  }

  tl::unexpected<Error> expected_operand() const {
    return expected(
        fmt::format("x0 to x{}, a number, or one of {}", Expr::kMaxInputs - 1, operation_names(0)));
  }

  static constexpr std::size_t kExcerpt = 16;  // characters of the rest that a message shows
  std::string_view text_;
  std::string_view rest_;
};

}  // namespace

Result<Expr> parse_expression(std::string_view text) { return Parser(text).parse(); }

std::string expression_functions() {
  std::string all;
  for (const Operation& o : kOperations)
    all.append(
        fmt::format("{}{}({})", all.empty() ? "" : ", ", o.name, o.arguments == 1 ? "a" : "a,b"));
  return all;
}

}  // namespace octile
