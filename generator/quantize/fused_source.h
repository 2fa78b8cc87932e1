// The values that a quantiser computes from its inputs before amax and cast: an activation by name,
// a caller's expression, RMSNorm or LayerNorm. The problem text holds it as `src=`.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"
#include "generator/core/expression.h"

namespace octile {

// The activations of transformer layers, by name. x1 is the linear half of a gated unit. In their
// gradients (d...), x0 is the gradient of the result, and x1 and x2 are the activation's inputs.
struct Activation {
  std::string_view name;    // "silu_mul"
  std::string_view text;    // canonical; two expressions are joined by ';'
  std::string_view source;  // where its formula comes from
};
std::span<const Activation> activations();

struct FusedSource {
  // One expression over x0..x3; or two over inputs of half the columns, of which the first writes
  // the left half of the columns and the second the right half.
  std::vector<Expr> parts;
  // True: x1 is a weight of one row, and x2 is the row's 1 / sqrt(mean(x0^2) + eps), not an input.
  bool norms = false;
  bool finds_rms = false;  // false: the caller gives x2 of every row
  // True: a layer norm, of which no expression is made (LayerNorm): the caller gives each row's
  // mean and 1 / sqrt(variance + eps).
  bool layer_norm = false;

  bool halves() const { return parts.size() == 2; }
  int inputs() const;  // tensors that the caller gives
};

// The value of a layer norm again, (x - mean) rstd weight + bias, rounded as PyTorch's kernels do.
float layer_norm(float x, float mean, float rstd, float weight, float bias);

// Reads the name of an activation, "rmsnorm", "rmsnorm_again", "layernorm_again", an expression
// (parse_expression), or two joined by ';'. Errors: kInvalidArgument with the place and what is
// allowed there.
Result<FusedSource> fused_source(std::string_view text);

// A call's knowledge of a source. An empty text is x itself. Cheap.
struct SourceShape {
  int inputs = 1;
  bool halves = false;
  bool norms = false;  // x1 is one row, and every row has a rstd
  bool finds_rms = false;
  bool layer_norm = false;  // x2 is one row too, and x3 is fp32, one for each row

  bool is_one_row(std::size_t input) const {
    return norms && (input == 1 || (layer_norm && input == 2));
  }
  int streams() const { return layer_norm ? 1 : inputs; }  // what a thread reads for each element
};
SourceShape source_shape(std::string_view text);

// Returns the one spelling of a source: names as they are, expressions as Expr prints them. A text
// that is not a source is returned as it is.
std::string canonical_source(std::string_view text);

}  // namespace octile
