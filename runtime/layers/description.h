// The description of a layer, and the problems of its passes.
//
//   forward    quantise X and W; Y = X W^T + bias                  (Pass::kFprop)
//   backward   quantise dY; dX = dY W; dW (+)= dY^T X              (Pass::kDgrad, Pass::kWgrad)
#pragma once

#include <cstdint>
#include <optional>

#include "generator/core/error.h"
#include "generator/core/recipe.h"
#include "generator/families.h"
#include "generator/gemm/passes.h"
#include "generator/gemm/problem.h"
#include "generator/quantize/problem.h"

namespace octile::layers {

// n, k and token counts that a GEMM sums over are multiples of this.
inline constexpr std::int64_t kMultiple = 16;
inline constexpr std::int64_t kMostHistory = 65536;

// The tensors that are quantised. The values are those of octile_layer_tensor.
enum class Role : int { kX = 0, kW = 1, kDy = 2 };
inline constexpr int kRoles = 3;

// Copies of one tensor: those that a call reads, or those that it makes.
struct Copies {
  bool rowwise = false, transposed = false;
  bool any() const { return rowwise || transposed; }
  friend Copies operator|(Copies a, Copies b) {
    return {a.rowwise || b.rowwise, a.transposed || b.transposed};
  }
  friend Copies operator&(Copies a, Copies b) {
    return {a.rowwise && b.rowwise, a.transposed && b.transposed};
  }
  friend bool operator==(const Copies&, const Copies&) = default;
};
// `copies` has one at least.
QuantizeOutput output_of(Copies copies);

// The copies of dY that a backward pass reads, or makes for the sums of its columns.
Copies copies_of_dy(bool input_gradient, bool weight_gradient, bool bias_gradient);

struct Description {
  const Recipe* recipe = nullptr;
  std::int64_t n = 0, k = 0;
  std::int64_t experts = 0;  // 0: a linear layer
  DType dtype = DType::kBF16, weight_dtype = DType::kBF16, weight_gradient_dtype = DType::kBF16;
  bool accumulate = false;  // into dW
  std::optional<DType> bias = std::nullopt;
  bool sentry = false;
  std::int64_t history = 0;  // steps whose maxima are remembered

  std::int64_t tensors() const { return experts == 0 ? 1 : experts; }  // of W, each with its scales
  std::int64_t columns(Role role) const { return role == Role::kDy ? n : k; }
  bool is_delayed() const { return recipe->delayed; }
  DType type_of(Role role) const { return role == Role::kW ? weight_dtype : dtype; }
};

// Checks what the support matrix does not know: extents, and options that fit together. Errors:
// kInvalidArgument, naming the field as the C API does.
Status check(const Description& description);

// The quantiser of a tensor, for every row count. extra: dY's columns are summed, too; W is not
// quantised if it has not changed.
QuantizeProblem quantizer(const Description& description, Role role, QuantizeOutput output,
                          bool extra);

// The tensors of one call of the quantiser, or of the kernel that transposes: stacked ones of W.
std::int64_t stacked_tensors(const Description& description, Role role);

// Whether W^T has the codes and scales of W, so that it is made of them. Errors: kUnsupported.
Status check_holdable(const Description& description);

// The kernel that makes W^T of the codes of W, of a description that check_holdable() takes.
QuantizeProblem transposer(const Description& description);

// The GEMM of a pass, for every token count.
GemmProblem gemm(const Description& description, Pass pass);

// The smallest quantiser whose kernel updates the scales of X, or of dY. It depends on the
// FP8 type alone.
QuantizeProblem scale_update(const Description& description, Role role);

}  // namespace octile::layers
