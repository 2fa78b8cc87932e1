#include "experts.h"

#include <optional>
#include <stdexcept>
#include <string>

#include "plans.h"
#include "recipes.h"
#include "scaling.h"
#include "sentry.h"
#include "weights.h"

namespace octile::binding {
namespace {

constexpr RecipeCode kBlockwise = 0;

[[noreturn]] void refuse(const std::string& text) {
  throw std::invalid_argument("octile: " + text);
}

struct Groups {
  Place place;
  std::int64_t tokens, experts, n, k;
  const std::int32_t* offsets;
};

std::string shape_text(const Tensor& tensor) {
  std::string text = "[";
  for (const std::int64_t size : tensor.sizes()) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

// shared_dimension: the dimension of the weight that the columns of x (2) or dy (1) run along.
Groups groups_of(const Tensor& x, const Tensor& weight, const Tensor& offsets, int shared_dimension,
                 const char* name) {
  if (weight.dim() != 3) refuse("weight is " + shape_text(weight) + "; allowed is [experts, n, k]");
  if (x.dim() != 2 || x.size(1) != weight.size(shared_dimension)) {
    refuse(std::string(name) + " is " + shape_text(x) + "; with weights " + shape_text(weight) +
           " [tokens, " + std::to_string(weight.size(shared_dimension)) + "] is allowed");
  }
  const Groups groups{.place = place_of(x),
                      .tokens = x.size(0),
                      .experts = weight.size(0),
                      .n = weight.size(1),
                      .k = weight.size(2),
                      .offsets = static_cast<const std::int32_t*>(offsets.data_ptr())};
  if (groups.n % kMultiple != 0 || groups.k % kMultiple != 0 || groups.n == 0 || groups.k == 0) {
    refuse("weight is " + shape_text(weight) + "; allowed n and k are multiples of 16 above 0");
  }
  std::int32_t type = 0;
  aoti_torch_get_dtype(offsets.get(), &type);
  if (type != aoti_torch_dtype_int32() || offsets.dim() != 1 || !offsets.is_contiguous() ||
      offsets.size(0) != groups.experts + 1) {
    refuse("offsets is " + shape_text(offsets) + "; allowed is int32 [" +
           std::to_string(groups.experts + 1) + "], contiguous");
  }
  if (!(place_of(weight) == groups.place && place_of(offsets) == groups.place)) {
    refuse("weight or offsets is on another device than " + std::string(name));
  }
  return groups;
}

// Tokens of all groups in FP8.
struct Tokens {
  std::optional<Quantized> rowwise, transposed;
};

Tokens quantize_tokens(const Tensor& x, const Groups& groups, RecipeCode recipe, Role role,
                       bool rowwise, bool transposed, const Scaling& scaling) {
  const Output output = !rowwise     ? Output::kTransposed
                        : transposed ? Output::kBoth
                                     : Output::kRowwise;
  octile_plan* plan =
      quantizer(recipe, role, output, element_type(x, "x"), x.size(1), false, true, groups.place);
  const auto copy = [&](bool flip) {
    return allocate(plan, groups.place, groups.tokens, groups.experts, flip, codes_of(recipe, role),
                    scale_type(recipe), ScaleShape::kFlat);
  };
  Tokens tokens;
  if (rowwise) tokens.rowwise = copy(false);
  if (transposed) tokens.transposed = copy(true);
  quantize(plan, groups.place,
           {.rows = groups.tokens,
            .x = x.data_ptr(),
            .offsets = groups.offsets,
            .groups = groups.experts,
            .encode_scale = scaling.encode,
            .amax = scaling.amax},
           {.rowwise = rowwise ? target_of(present(tokens.rowwise)) : Target{},
            .transposed = transposed ? target_of(present(tokens.transposed)) : Target{}});
  return tokens;
}

octile_gemm_args operands(const Groups& groups, const Quantized& a, const Quantized& b,
                          const Tensor& d) {
  octile_gemm_args args{};
  args.tokens = groups.tokens;
  args.a = a.codes.data_ptr();
  args.a_scale = a.scales.data_ptr();
  args.b = b.codes.data_ptr();
  args.b_scale = b.scales.data_ptr();
  args.d = d.data_ptr();
  args.group_offsets = groups.offsets;
  return args;
}

void add_weight_gradient(const Tokens& gradient, const Tensor& x_codes, const Tensor& x_scales,
                         const Groups& groups, RecipeCode recipe, const Tensor& dw, bool accumulate,
                         const std::optional<Tensor>& sentry) {
  const std::int64_t columns = present(gradient.transposed).codes.size(1);
  if (x_codes.dim() != 2 || x_codes.size(0) != groups.k || x_codes.size(1) != columns) {
    refuse("x_codes is " + shape_text(x_codes) + "; the forward pass of these tokens kept [" +
           std::to_string(groups.k) + ", " + std::to_string(columns) + "]");
  }
  octile_gemm_args args = operands(groups, present(gradient.transposed), {x_codes, x_scales}, dw);
  args.lda = columns;
  args.ldb = x_codes.size(1);
  args.sentry = sentry_of(sentry, Product::kWeightGradient, groups.place);
  multiply(weight_gradient_gemm(recipe, groups.n, groups.k, element_type(dw, "main_grad"),
                                accumulate, groups.experts, groups.place, args.sentry != nullptr),
           groups.place, args);
}

Tensor input_gradient_of(const Tensor& dy, const Tokens& gradient, const Tensor& weight,
                         const Groups& groups, RecipeCode recipe,
                         const std::optional<Tensor>& state, const std::optional<Tensor>& sentry) {
  const octile_dtype type = element_type(dy, "dy");
  Tensor dx = empty(groups.place, {groups.tokens, groups.k}, torch_type(type));
  const WeightCodes codes =
      weight_codes(weight, groups.place, recipe, false, true,
                   scaling_of(state, recipe, Role::kWeight, true, groups.place, groups.experts));
  octile_gemm_args args = operands(groups, present(gradient.rowwise), codes.transposed(), dx);
  args.sentry = sentry_of(sentry, Product::kInputGradient, groups.place);
  multiply(input_gradient_gemm(recipe, groups.n, groups.k, type, groups.experts, groups.place,
                               args.sentry != nullptr),
           groups.place, args);
  return dx;
}

// dY in those of its copies that are needed.
Tokens quantize_gradient(const Tensor& dy, const Groups& groups, RecipeCode recipe, bool rowwise,
                         bool transposed, const std::optional<Tensor>& state) {
  return quantize_tokens(
      dy, groups, recipe, Role::kGradient, rowwise, transposed,
      scaling_of(state, recipe, Role::kGradient, true, groups.place, groups.experts));
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> experts_forward(Tensor x, Tensor weight, Tensor offsets,
                                                   std::int64_t recipe, bool keep_x,
                                                   bool input_gradient,
                                                   std::optional<Tensor> scaling,
                                                   std::optional<Tensor> sentry) {
  check_recipe(recipe);
  const Groups groups = groups_of(x, weight, offsets, 2, "x");
  const OnDevice device(groups.place);
  x = contiguous(x);
  const auto state_of = [&](Role role, bool record) {
    return scaling_of(scaling, recipe, role, record, groups.place, groups.experts);
  };
  const Tokens tokens = quantize_tokens(x, groups, recipe, Role::kActivation, true, keep_x,
                                        state_of(Role::kActivation, keep_x || input_gradient));
  if (keep_x || input_gradient) note_pass(weight, Pass::kForward);
  const WeightCodes codes = weight_codes(contiguous(weight), groups.place, recipe, true,
                                         input_gradient, state_of(Role::kWeight, true));
  const octile_dtype type = element_type(x, "x");
  Tensor y = empty(groups.place, {groups.tokens, groups.n}, torch_type(type));
  octile_gemm_args args = operands(groups, present(tokens.rowwise), codes.rowwise(), y);
  args.sentry = sentry_of(sentry, Product::kOutput, groups.place);
  multiply(forward_gemm(recipe, groups.n, groups.k, type, octile_dtype{}, groups.experts,
                        groups.place, args.sentry != nullptr),
           groups.place, args);
  if (!keep_x) return {y, nothing(groups.place), nothing(groups.place)};
  return {y, present(tokens.transposed).codes, present(tokens.transposed).scales};
}

std::tuple<Tensor, Tensor> experts_backward(Tensor dy, Tensor weight, Tensor offsets,
                                            Tensor x_codes, Tensor x_scales, std::int64_t recipe,
                                            bool input_gradient, bool weight_gradient,
                                            std::optional<Tensor> scaling,
                                            std::optional<Tensor> sentry) {
  check_recipe(recipe);
  const Groups groups = groups_of(dy, weight, offsets, 1, "dy");
  const OnDevice device(groups.place);
  note_pass(weight, Pass::kBackward);
  dy = contiguous(dy);
  const Tokens gradient = quantize_gradient(dy, groups, recipe, input_gradient,
                                            weight_gradient || !input_gradient, scaling);
  Tensor dx = input_gradient ? input_gradient_of(dy, gradient, contiguous(weight), groups, recipe,
                                                 scaling, sentry)
                             : nothing(groups.place);
  if (!weight_gradient) return {dx, nothing(groups.place)};
  Tensor dw = empty(groups.place, {groups.experts, groups.n, groups.k},
                    torch_type(element_type(weight, "weight")));
  add_weight_gradient(gradient, x_codes, x_scales, groups, recipe, dw, false, sentry);
  return {dx, dw};
}

Tensor experts_backward_into(Tensor dy, Tensor weight, Tensor offsets, Tensor x_codes,
                             Tensor x_scales, Tensor main_grad, std::int64_t recipe,
                             bool input_gradient, std::optional<Tensor> scaling,
                             std::optional<Tensor> sentry) {
  check_recipe(recipe);
  const Groups groups = groups_of(dy, weight, offsets, 1, "dy");
  const OnDevice device(groups.place);
  note_pass(weight, Pass::kBackward);
  if (main_grad.numel() != weight.numel() || !main_grad.is_contiguous() ||
      !(place_of(main_grad) == groups.place)) {
    refuse("main_grad is " + shape_text(main_grad) + "; allowed is contiguous " +
           shape_text(weight) + " on dy's device");
  }
  dy = contiguous(dy);
  const Tokens gradient = quantize_gradient(dy, groups, recipe, input_gradient, true, scaling);
  Tensor dx = input_gradient ? input_gradient_of(dy, gradient, contiguous(weight), groups, recipe,
                                                 scaling, sentry)
                             : nothing(groups.place);
  add_weight_gradient(gradient, x_codes, x_scales, groups, recipe, main_grad, true, sentry);
  return dx;
}

void prepare_experts(Tensor x, Tensor weight, std::optional<Tensor> main_grad, std::int64_t recipe,
                     std::int64_t experts, std::int64_t n, std::int64_t k, std::int64_t lo,
                     std::int64_t hi, bool training, bool sentry) {
  check_recipe(recipe);
  const Place place = place_of(x);
  const octile_dtype type = element_type(x, "x"), weight_type = element_type(weight, "weight");
  const Output outputs = training ? Output::kBoth : Output::kRowwise;
  prepare(quantizer(recipe, Role::kActivation, outputs, type, k, false, true, place), lo, hi);
  prepare(quantizer(recipe, Role::kWeight, outputs, weight_type, k, false, false, place), n, n);
  prepare(forward_gemm(recipe, n, k, type, octile_dtype{}, experts, place, sentry), lo, hi);
  if (!training) return;
  if (is_delayed(recipe)) prepare_scale_update(recipe, place);
  prepare(quantizer(recipe, Role::kGradient, outputs, type, n, false, true, place), lo, hi);
  prepare(input_gradient_gemm(recipe, n, k, type, experts, place, sentry), lo, hi);
  prepare(weight_gradient_gemm(recipe, n, k,
                               main_grad ? element_type(*main_grad, "main_grad") : weight_type,
                               main_grad.has_value(), experts, place, sentry),
          lo, hi);
}

Tensor block_fp8_linear(Tensor x, Tensor weight, Tensor scales, std::optional<Tensor> bias,
                        std::optional<Tensor> offsets) {
  const Place place = place_of(x);
  const OnDevice device(place);
  x = contiguous(x);
  const std::int64_t k = x.size(1), n = weight.size(weight.dim() - 2);
  const octile_dtype type = element_type(x, "x");
  Groups groups{
      .place = place, .tokens = x.size(0), .experts = 0, .n = n, .k = k, .offsets = nullptr};
  if (offsets) {
    groups = groups_of(x, weight, *offsets, 2, "x");
  } else if (weight.dim() != 2 || weight.size(1) != k || n % kMultiple != 0 || k % kMultiple != 0) {
    refuse("weight is " + shape_text(weight) + "; allowed is [n, " + std::to_string(k) +
           "] with multiples of 16");
  }
  const std::int64_t blocks_n = (n + 127) / 128, blocks_k = (k + 127) / 128;
  if (element_type(weight, "weight") != OCTILE_E4M3 ||
      element_type(scales, "scales") != OCTILE_FP32 ||
      scales.numel() != (offsets ? groups.experts : 1) * blocks_n * blocks_k ||
      !scales.is_contiguous()) {
    refuse("weight " + shape_text(weight) + " with scales " + shape_text(scales) +
           " is not float8_e4m3fn with contiguous float32 scales of 128 x 128 blocks");
  }
  if (!(place_of(weight) == place && place_of(scales) == place)) {
    refuse("weight or scales is on another device than x");
  }
  weight = aligned(weight);
  octile_plan* quantizer_of_x =
      quantizer(kBlockwise + kFp32Scales, Role::kActivation, Output::kRowwise, type, k, false,
                offsets.has_value(), place);
  const Quantized rows = allocate(quantizer_of_x, place, groups.tokens, groups.experts, false,
                                  OCTILE_E4M3, ScaleType::kFp32, ScaleShape::kFlat);
  quantize(quantizer_of_x, place,
           {.rows = groups.tokens,
            .x = x.data_ptr(),
            .offsets = groups.offsets,
            .groups = groups.experts},
           {.rowwise = target_of(rows)});
  Tensor y = empty(place, {groups.tokens, n}, torch_type(type));
  octile_gemm_args args = operands(groups, rows, {weight, scales}, y);
  args.b_scale_ld = blocks_k;
  octile_dtype bias_type{};
  if (bias) {
    if (bias->dim() != 1 || bias->size(0) != n || !bias->is_contiguous() ||
        !(place_of(*bias) == place)) {
      refuse("bias is " + shape_text(*bias) + "; allowed is contiguous [" + std::to_string(n) +
             "] on x's device");
    }
    bias_type = element_type(*bias, "bias");
    args.bias = bias->data_ptr();
  }
  multiply(forward_gemm(kBlockwise, n, k, type, bias_type, groups.experts, place), place, args);
  return y;
}

}  // namespace octile::binding
