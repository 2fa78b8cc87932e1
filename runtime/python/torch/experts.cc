#include "experts.h"

#include <optional>
#include <string>

#include "plans.h"
#include "recipes.h"
#include "scaling.h"
#include "sentry.h"
#include "types.h"
#include "weights.h"

namespace octile::binding {
namespace {

struct Groups {
  Place place;
  std::int64_t tokens, experts, n, k;
  const std::int32_t* offsets;
};

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
  if (type_of(offsets) != torch_int32() || offsets.dim() != 1 || !offsets.is_contiguous() ||
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
      quantizer(recipe, role, output, float_type(x, "x"), x.size(1), false, true, groups.place);
  const auto copy = [&](bool flip) {
    return allocate(plan, groups.place, groups.tokens, groups.experts, flip,
                    tensor_type(recipe, role));
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
  args.lda = a.codes.size(1);
  args.a_scale = a.scales.data_ptr();
  args.b = b.codes.data_ptr();
  args.ldb = b.codes.size(1);
  args.b_scale = b.scales.data_ptr();
  args.d = d.data_ptr();
  args.group_offsets = groups.offsets;
  return args;
}

// Checks X^T as experts_forward() kept it, in so many columns.
void check_kept(const Tensor& codes, const Tensor& scales, const octile_tensor_type& type,
                const Groups& groups, std::int64_t columns) {
  check_copy(codes, type, groups.k, columns, groups.place, "x_codes");
  const std::int64_t count = layout_of(type, columns, groups.k, true).scale_bytes;
  check_scales(scales, type.scale_format,
               type.granularity == OCTILE_SCALE_PER_TENSOR ? groups.experts
                                                           : count / scale_bytes(type.scale_format),
               groups.place, "x_scales");
}

void add_weight_gradient(const Tokens& gradient, const Tensor& x_codes, const Tensor& x_scales,
                         const Groups& groups, RecipeCode recipe, const Tensor& dw, bool accumulate,
                         const std::optional<Tensor>& sentry) {
  check_kept(x_codes, x_scales, tensor_type(recipe, Role::kActivation), groups,
             present(gradient.transposed).codes.size(1));
  octile_gemm_args args = operands(groups, present(gradient.transposed), {x_codes, x_scales}, dw);
  args.sentry = sentry_of(sentry, Product::kWeightGradient, groups.place);
  multiply(weight_gradient_gemm(recipe, groups.n, groups.k, float_type(dw, "main_grad"), accumulate,
                                groups.experts, groups.place, args.sentry != nullptr),
           groups.place, args);
}

Tensor input_gradient_of(const Tensor& dy, const Tokens& gradient, const Tensor& weight,
                         const Groups& groups, RecipeCode recipe,
                         const std::optional<Tensor>& state, const std::optional<Tensor>& sentry) {
  const octile_dtype type = float_type(dy, "dy");
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
  const octile_dtype type = float_type(x, "x");
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
                    torch_type(float_type(weight, "weight")));
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
  const octile_dtype type = float_type(x, "x"), weight_type = float_type(weight, "weight");
  const Output outputs = training ? Output::kBoth : Output::kRowwise;
  prepare(quantizer(recipe, Role::kActivation, outputs, type, k, false, true, place), lo, hi);
  prepare(quantizer(recipe, Role::kWeight, outputs, weight_type, k, false, false, place), n, n);
  prepare(forward_gemm(recipe, n, k, type, octile_dtype{}, experts, place, sentry), lo, hi);
  if (!training) return;
  if (is_delayed(recipe)) prepare_scale_update(recipe, place);
  prepare(quantizer(recipe, Role::kGradient, outputs, type, n, false, true, place), lo, hi);
  prepare(input_gradient_gemm(recipe, n, k, type, experts, place, sentry), lo, hi);
  prepare(weight_gradient_gemm(recipe, n, k,
                               main_grad ? float_type(*main_grad, "main_grad") : weight_type,
                               main_grad.has_value(), experts, place, sentry),
          lo, hi);
}

namespace {

// Blocks of 128 x 128 codes, each with a scale that may be any fp32 value.
struct BlockWeight {
  std::int64_t n, k, blocks;  // blocks: of 128 columns
};

BlockWeight check_block_weight(const Tensor& x, const Tensor& weight, const Tensor& scales,
                               bool grouped, const Place& place) {
  const std::int64_t rank = grouped ? 3 : 2;
  if (x.dim() != 2) refuse("x is " + shape_text(x) + "; allowed is [tokens, k]");
  if (weight.dim() != rank || weight.size(rank - 1) != x.size(1) ||
      weight.size(rank - 1) % kMultiple != 0 || weight.size(rank - 2) % kMultiple != 0) {
    refuse("weight is " + shape_text(weight) + "; allowed is " +
           (grouped ? "[experts, n, " : "[n, ") + std::to_string(x.size(1)) +
           "] with multiples of 16");
  }
  const std::int64_t n = weight.size(rank - 2), k = x.size(1), blocks = (k + 127) / 128;
  const std::int64_t experts = grouped ? weight.size(0) : 1;
  if (type_of(weight) != torch_type(OCTILE_E4M3) || type_of(scales) != torch_type(OCTILE_FP32) ||
      scales.numel() != experts * ((n + 127) / 128) * blocks || !scales.is_contiguous()) {
    refuse("weight " + shape_text(weight) + " with scales " + shape_text(scales) +
           " is not float8_e4m3fn with contiguous float32 scales of 128 x 128 blocks");
  }
  check_same_place(weight, place, "weight");
  check_same_place(scales, place, "scales");
  return {n, k, blocks};
}

}  // namespace

Tensor block_fp8_linear(Tensor x, Tensor weight, Tensor scales, std::optional<Tensor> bias,
                        std::optional<Tensor> offsets) {
  const RecipeCode recipe = recipe_named("blockwise:f32");
  const Place place = place_of(x);
  const auto [n, k, blocks] = check_block_weight(x, weight, scales, offsets.has_value(), place);
  const OnDevice device(place);
  x = contiguous(x);
  const octile_dtype type = float_type(x, "x");
  Groups groups{
      .place = place, .tokens = x.size(0), .experts = 0, .n = n, .k = k, .offsets = nullptr};
  if (offsets) groups = groups_of(x, weight, *offsets, 2, "x");
  weight = aligned(weight);
  octile_plan* quantizer_of_x = quantizer(recipe, Role::kActivation, Output::kRowwise, type, k,
                                          false, offsets.has_value(), place);
  const Quantized rows = allocate(quantizer_of_x, place, groups.tokens, groups.experts, false,
                                  tensor_type(recipe, Role::kActivation));
  quantize(quantizer_of_x, place,
           {.rows = groups.tokens,
            .x = x.data_ptr(),
            .offsets = groups.offsets,
            .groups = groups.experts},
           {.rowwise = target_of(rows)});
  Tensor y = empty(place, {groups.tokens, n}, torch_type(type));
  octile_gemm_args args = operands(groups, rows, {weight, scales}, y);
  args.ldb = k;
  args.b_scale_ld = blocks;
  octile_dtype type_of_bias{};
  if (bias) {
    type_of_bias = bias_type(*bias, n, place);
    args.bias = bias->data_ptr();
  }
  multiply(forward_gemm(recipe, n, k, type, type_of_bias, groups.experts, place), place, args);
  return y;
}

}  // namespace octile::binding
