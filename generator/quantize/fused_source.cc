#include "generator/quantize/fused_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace octile {
namespace {

// GELU's tanh form, 0.5 x (1 + tanh(z)) with z = sqrt(2/pi) (x + 0.044715 x^3), is x sigmoid(2 z),
// which does not cancel as 1 + tanh does. GELU: arXiv 1606.08415, section 2.
#define OCTILE_SILU(x) "mul(" x ",sigmoid(" x "))"
#define OCTILE_SILU_GRADIENT(x) "mul(sigmoid(" x "),add(1,mul(" x ",sub(1,sigmoid(" x ")))))"
#define OCTILE_GELU_SIGMOID(x) \
  "sigmoid(mul(1.595769,add(" x ",mul(0.044715,mul(" x ",mul(" x "," x "))))))"
#define OCTILE_GELU(x) "mul(" x "," OCTILE_GELU_SIGMOID(x) ")"
// s + x s (1 - s) d(2 z)/dx; 3 * 0.044715 = 0.134145.
#define OCTILE_GELU_GRADIENT(x)                                                    \
  "mul(" OCTILE_GELU_SIGMOID(x) ",add(1,mul(mul(" x ",sub(1," OCTILE_GELU_SIGMOID( \
      x) ")),mul(1.595769,add(1,mul(0.134145,mul(" x "," x ")))))))"

// GELU by erf, x (1 + erf(x / sqrt(2))) / 2. Its slope is normcdf(x) + x normpdf(x).
#define OCTILE_GELU_ERF(x) "mul(" x ",normcdf(" x "))"
#define OCTILE_GELU_ERF_GRADIENT(x) "add(normcdf(" x "),mul(" x ",normpdf(" x ")))"

#define OCTILE_RELU2 "mul(max(x0,0),max(x0,0))"
// 1 above 0, even of the smallest x, else 0.
#define OCTILE_STEP(x) "min(max(mul(mul(" x ",1e+38),1e+38),0),1)"

constexpr std::array<Activation, 20> kActivations{{
    {"relu", "max(x0,0)", "max(x, 0)"},
    {"relu2", OCTILE_RELU2, "squared ReLU: Primer, arXiv 2109.08668"},
    {"relu_mul", "mul(max(x0,0),x1)", "ReGLU: arXiv 2002.05202, section 2"},
    {"relu2_mul", "mul(" OCTILE_RELU2 ",x1)", "the same of relu2"},
    {"silu", OCTILE_SILU("x0"), "x * sigmoid(x): arXiv 1702.03118"},
    {"silu_mul", "mul(" OCTILE_SILU("x0") ",x1)",
     "SwiGLU: GLU Variants Improve Transformer, arXiv 2002.05202, section 2"},
    {"gelu", OCTILE_GELU_ERF("x0"), "x times the normal distribution: arXiv 1606.08415, section 2"},
    {"gelu_mul", "mul(" OCTILE_GELU_ERF("x0") ",x1)", "GEGLU: arXiv 2002.05202, section 2"},
    {"gelu_tanh", OCTILE_GELU("x0"), "tanh form of GELU: arXiv 1606.08415, section 2"},
    {"gelu_tanh_mul", "mul(" OCTILE_GELU("x0") ",x1)",
     "GEGLU with the tanh form: arXiv 2002.05202, section 2"},
    {"drelu", "mul(x0," OCTILE_STEP("x1") ")", "gradient of relu"},
    {"drelu2", "mul(x0,mul(2,max(x1,0)))", "gradient of relu2"},
    {"drelu_mul", "mul(mul(x0,x2)," OCTILE_STEP("x1") ");mul(x0,max(x1,0))",
     "gradients of relu_mul: of the gate, then of the linear half"},
    {"drelu2_mul", "mul(mul(x0,x2),mul(2,max(x1,0)));mul(x0,mul(max(x1,0),max(x1,0)))",
     "gradients of relu2_mul, in the same order"},
    {"dsilu", "mul(x0," OCTILE_SILU_GRADIENT("x1") ")", "gradient of silu"},
    {"dsilu_mul", "mul(mul(x0,x2)," OCTILE_SILU_GRADIENT("x1") ");mul(x0," OCTILE_SILU("x1") ")",
     "gradients of silu_mul: of the gate, then of the linear half"},
    {"dgelu", "mul(x0," OCTILE_GELU_ERF_GRADIENT("x1") ")", "gradient of gelu"},
    {"dgelu_mul",
     "mul(mul(x0,x2)," OCTILE_GELU_ERF_GRADIENT("x1") ");mul(x0," OCTILE_GELU_ERF("x1") ")",
     "gradients of gelu_mul: of the gate, then of the linear half"},
    {"dgelu_tanh", "mul(x0," OCTILE_GELU_GRADIENT("x1") ")", "gradient of gelu_tanh"},
    {"dgelu_tanh_mul",
     "mul(mul(x0,x2)," OCTILE_GELU_GRADIENT("x1") ");mul(x0," OCTILE_GELU("x1") ")",
     "gradients of gelu_tanh_mul: of the gate, then of the linear half"},
}};

#undef OCTILE_RELU2
#undef OCTILE_STEP
#undef OCTILE_SILU
#undef OCTILE_SILU_GRADIENT
#undef OCTILE_GELU_SIGMOID
#undef OCTILE_GELU
#undef OCTILE_GELU_GRADIENT
#undef OCTILE_GELU_ERF
#undef OCTILE_GELU_ERF_GRADIENT

constexpr std::string_view kRmsNorm = "rmsnorm";
// The same of rows whose x2 the caller gives, as the norm's forward pass left it.
constexpr std::string_view kRmsNormAgain = "rmsnorm_again";
// Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4.
constexpr std::string_view kRmsNormText = "mul(mul(x0,x2),x1)";
// Layer Normalization, arXiv 1607.06450, of rows whose mean and 1 / sqrt(variance + eps) the caller
// gives. The expression is read for each element.
constexpr std::string_view kLayerNormAgain = "layernorm_again";
constexpr std::string_view kLayerNormText = "x0";

const Activation* find_activation(std::string_view name) {
  const auto it = std::ranges::find(kActivations, name, &Activation::name);
  return it == kActivations.end() ? nullptr : it;
}

bool is_norm(std::string_view text) {
  return text == kRmsNorm || text == kRmsNormAgain || text == kLayerNormAgain;
}

bool is_name(std::string_view text) { return is_norm(text) || find_activation(text) != nullptr; }

std::string names() {
  std::string text;
  for (const Activation& a : kActivations) text.append(a.name).append(", ");
  return text.append(kRmsNorm)
      .append(", ")
      .append(kRmsNormAgain)
      .append(", ")
      .append(kLayerNormAgain);
}

// Returns true for a text that is a misspelt name rather than a misspelt expression.
bool is_word(std::string_view text) {
  return text.find_first_of("(),;.+-*/") == std::string_view::npos && text.size() > 2;
}

std::string canonical_text(const FusedSource& source) {
  std::string text;
  for (const Expr& part : source.parts) {
    text.append(text.empty() ? "" : ";").append(part.to_text());
  }
  return text;
}

// Inputs are numbered from x0 on without a gap, because the caller gives all of them.
Status check_inputs(std::string_view text, const FusedSource& source) {
  const std::string canonical = canonical_text(source);
  int missing = 0;
  while (canonical.find(fmt::format("x{}", missing)) != std::string::npos) ++missing;
  if (missing > 0 && missing >= source.inputs()) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("a source is '{}', which reads {}; allowed are expressions over x0, or "
                          "over x0 to x1, x2 or x3 that read all of these",
                          text,
                          source.inputs() == 0
                              ? "no input"
                              : fmt::format("x{} and not x{}", source.inputs() - 1, missing)));
}

}  // namespace

std::span<const Activation> activations() { return kActivations; }

int FusedSource::inputs() const {
  if (norms) return layer_norm ? 4 : 2;
  int count = 0;
  for (const Expr& part : parts) count = std::max(count, part.input_count());
  return count;
}

float layer_norm(float x, float mean, float rstd, float weight, float bias) {
  return std::fma((x - mean) * rstd, weight, bias);
}

Result<FusedSource> fused_source(std::string_view text) {
  FusedSource source;
  source.norms = is_norm(text);
  source.finds_rms = text == kRmsNorm;
  source.layer_norm = text == kLayerNormAgain;
  const Activation* named = find_activation(text);
  if (!is_name(text) && is_word(text)) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("a source is '{}'; allowed are {}, and calls of functions over x0 to x{} "
                    "such as mul(x0,sigmoid(x0)), with {}",
                    text, names(), Expr::kMaxInputs - 1, expression_functions()));
  }
  std::string_view rest = named != nullptr    ? named->text
                          : source.layer_norm ? kLayerNormText
                          : source.norms      ? kRmsNormText
                                              : text;
  while (true) {
    const std::size_t cut = std::min(rest.find(';'), rest.size());
    Result<Expr> part = parse_expression(rest.substr(0, cut));
    if (!part) return tl::unexpected<Error>(part.error());
    source.parts.push_back(std::move(*part));
    if (cut == rest.size()) break;
    rest.remove_prefix(cut + 1);
    if (source.parts.size() == 2) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a source has a third expression, '{}'; allowed are one, or two "
                              "joined by ';', of the left and right half of the columns",
                              rest));
    }
  }
  if (source.layer_norm) return source;
  if (const Status complete = check_inputs(text, source); !complete) {
    return tl::unexpected<Error>(complete.error());
  }
  return source;
}

SourceShape source_shape(std::string_view text) {
  if (text.empty()) return {};
  if (text == kLayerNormAgain) return {4, false, true, false, true};
  if (is_norm(text)) return {2, false, true, text == kRmsNorm};
  if (const Activation* named = find_activation(text)) text = named->text;
  SourceShape shape;
  shape.halves = text.find(';') != std::string_view::npos;
  // No operation's name has an x followed by a digit.
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    const int index = text[i + 1] - '0';
    if (text[i] == 'x' && index >= 0 && index < Expr::kMaxInputs) {
      shape.inputs = std::max(shape.inputs, index + 1);
    }
  }
  return shape;
}

std::string canonical_source(std::string_view text) {
  const Result<FusedSource> source = fused_source(text);
  return is_name(text) || !source ? std::string(text) : canonical_text(*source);
}

}  // namespace octile
