#include "linear.h"

#include <string>
#include <vector>

#include "plans.h"
#include "scaling.h"
#include "sentry.h"
#include "types.h"
#include "weights.h"

namespace octile::binding {
namespace {

struct Sizes {
  std::int64_t tokens, n, k;
};

// Checks a weight [n, k] against the last dimension of x [..., k] or dy [..., n].
Sizes sizes_of(const Tensor& tokens_by, const Tensor& weight, int shared_dimension,
               const char* name) {
  if (weight.dim() != 2) {
    refuse("weight has " + std::to_string(weight.dim()) + " dimensions; allowed are 2");
  }
  if (tokens_by.dim() < 1) refuse(std::string(name) + " has no dimension; allowed are 1 and more");
  const std::int64_t last = tokens_by.size(tokens_by.dim() - 1),
                     shared = weight.size(shared_dimension);
  if (last != shared) {
    refuse(std::string("the last dimension of ") + name + " is " + std::to_string(last) +
           "; with this weight " + std::to_string(shared) + " is allowed");
  }
  const Sizes sizes{last == 0 ? 0 : tokens_by.numel() / last, weight.size(0), weight.size(1)};
  if (sizes.n % kMultiple != 0 || sizes.k % kMultiple != 0 || sizes.n == 0 || sizes.k == 0) {
    refuse("weight is [" + std::to_string(sizes.n) + ", " + std::to_string(sizes.k) +
           "]; allowed are multiples of 16 above 0");
  }
  return sizes;
}

Tensor like_with_last(const Tensor& tensor, const Place& place, std::int64_t last,
                      octile_dtype type) {
  const auto sizes = tensor.sizes();
  std::vector<std::int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = last;
  return empty(place, shape, torch_type(type));
}

Quantized allocate_for(octile_plan* plan, const Place& place, std::int64_t rows, bool transposed,
                       RecipeCode recipe, Role role) {
  return allocate(plan, place, rows, 0, transposed, tensor_type(recipe, role));
}

// dY in FP8, and the sums of its columns.
struct Gradient {
  std::optional<Quantized> rowwise, transposed;
  Tensor column_sums;
};

Gradient quantize_gradient(const Tensor& dy, const Place& place, const Sizes& sizes,
                           RecipeCode recipe, bool rowwise, bool transposed, bool sums,
                           const std::optional<Tensor>& state) {
  const Output output = !rowwise     ? Output::kTransposed
                        : transposed ? Output::kBoth
                                     : Output::kRowwise;
  octile_plan* plan =
      quantizer(recipe, Role::kGradient, output, float_type(dy, "dy"), sizes.n, sums, false, place);
  Gradient gradient{
      .rowwise = {},
      .transposed = {},
      .column_sums = sums ? empty(place, {sizes.n}, torch_type(OCTILE_FP32)) : nothing(place)};
  if (rowwise)
    gradient.rowwise = allocate_for(plan, place, sizes.tokens, false, recipe, Role::kGradient);
  if (transposed) {
    gradient.transposed = allocate_for(plan, place, sizes.tokens, true, recipe, Role::kGradient);
  }
  if (sums && sizes.tokens == 0) fill_zero(gradient.column_sums);
  const Scaling scaling = scaling_of(state, recipe, Role::kGradient, true, place);
  quantize(plan, place,
           {.rows = sizes.tokens,
            .x = dy.data_ptr(),
            .encode_scale = scaling.encode,
            .amax = scaling.amax},
           {.rowwise = rowwise ? target_of(present(gradient.rowwise)) : Target{},
            .transposed = transposed ? target_of(present(gradient.transposed)) : Target{},
            .column_sums = sums ? &gradient.column_sums : nullptr});
  return gradient;
}

octile_gemm_args operands(std::int64_t tokens, const Quantized& a, const Quantized& b,
                          const Tensor& d) {
  octile_gemm_args args{};
  args.tokens = tokens;
  args.a = a.codes.data_ptr();
  args.lda = a.codes.size(1);
  args.a_scale = a.scales.data_ptr();
  args.b = b.codes.data_ptr();
  args.ldb = b.codes.size(1);
  args.b_scale = b.scales.data_ptr();
  args.d = d.data_ptr();
  return args;
}

// Checks X^T as linear_forward() kept it.
void check_kept(const Tensor& codes, const Tensor& scales, const octile_tensor_type& type,
                std::int64_t tokens, std::int64_t k, const Place& place) {
  const octile_quantized_layout layout = layout_of(type, tokens, k, true);
  check_copy(codes, type, layout.data_rows, layout.data_ld, place, "x_codes");
  check_scales(scales, type.scale_format, layout.scale_bytes / scale_bytes(type.scale_format),
               place, "x_scales");
}

void add_weight_gradient(const Gradient& gradient, const Tensor& x_codes, const Tensor& x_scales,
                         const Place& place, const Sizes& sizes, RecipeCode recipe,
                         const Tensor& dw, bool accumulate, const std::optional<Tensor>& sentry) {
  std::uint32_t* const word = sentry_of(sentry, Product::kWeightGradient, place);
  check_kept(x_codes, x_scales, tensor_type(recipe, Role::kActivation), sizes.tokens, sizes.k,
             place);
  octile_plan* plan = weight_gradient_gemm(recipe, sizes.n, sizes.k, float_type(dw, "main_grad"),
                                           accumulate, 0, place, word != nullptr);
  octile_gemm_args args =
      operands(sizes.tokens, present(gradient.transposed), {x_codes, x_scales}, dw);
  args.sentry = word;
  multiply(plan, place, args);
}

Tensor input_gradient_of(const Tensor& dy, const Gradient& gradient, const Tensor& weight,
                         const Place& place, const Sizes& sizes, RecipeCode recipe,
                         const std::optional<Tensor>& state, const std::optional<Tensor>& sentry) {
  std::uint32_t* const word = sentry_of(sentry, Product::kInputGradient, place);
  const octile_dtype type = float_type(dy, "dy");
  Tensor dx = like_with_last(dy, place, sizes.k, type);
  const WeightCodes codes = weight_codes(weight, place, recipe, false, true,
                                         scaling_of(state, recipe, Role::kWeight, true, place));
  octile_gemm_args args = operands(sizes.tokens, present(gradient.rowwise), codes.transposed(), dx);
  args.sentry = word;
  multiply(input_gradient_gemm(recipe, sizes.n, sizes.k, type, 0, place, word != nullptr), place,
           args);
  return dx;
}

// What both backward operators begin with.
struct Backward {
  Tensor dy, weight;
  Place place;
  Sizes sizes;
};

Backward begin_backward(const Tensor& dy, const Tensor& weight, RecipeCode recipe) {
  check_recipe(recipe);
  const Place place = place_of(dy);
  check_same_place(weight, place, "weight");
  note_pass(weight, Pass::kBackward);
  return {contiguous(dy), contiguous(weight), place, sizes_of(dy, weight, 0, "dy")};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> linear_forward(Tensor x, Tensor weight,
                                                  std::optional<Tensor> bias, std::int64_t recipe,
                                                  bool keep_x, bool input_gradient,
                                                  std::optional<Tensor> scaling,
                                                  std::optional<Tensor> sentry) {
  check_recipe(recipe);
  const Place place = place_of(x);
  check_same_place(weight, place, "weight");
  const Sizes sizes = sizes_of(x, weight, 1, "x");
  const OnDevice device(place);
  x = contiguous(x);
  const octile_dtype type = float_type(x, "x");

  octile_plan* quantize_x =
      quantizer(recipe, Role::kActivation, keep_x ? Output::kBoth : Output::kRowwise, type, sizes.k,
                false, false, place);
  Quantized rows = allocate_for(quantize_x, place, sizes.tokens, false, recipe, Role::kActivation);
  std::optional<Quantized> kept;
  if (keep_x) kept = allocate_for(quantize_x, place, sizes.tokens, true, recipe, Role::kActivation);
  const Scaling of_x =
      scaling_of(scaling, recipe, Role::kActivation, keep_x || input_gradient, place);
  quantize(
      quantize_x, place,
      {.rows = sizes.tokens, .x = x.data_ptr(), .encode_scale = of_x.encode, .amax = of_x.amax},
      {.rowwise = target_of(rows), .transposed = keep_x ? target_of(present(kept)) : Target{}});

  if (keep_x || input_gradient) note_pass(weight, Pass::kForward);
  const WeightCodes codes = weight_codes(contiguous(weight), place, recipe, true, input_gradient,
                                         scaling_of(scaling, recipe, Role::kWeight, true, place));
  Tensor y = like_with_last(x, place, sizes.n, type);
  octile_gemm_args args = operands(sizes.tokens, rows, codes.rowwise(), y);
  octile_dtype type_of_bias{};
  if (bias) {
    type_of_bias = bias_type(*bias, sizes.n, place);
    args.bias = bias->data_ptr();
  }
  args.sentry = sentry_of(sentry, Product::kOutput, place);
  multiply(
      forward_gemm(recipe, sizes.n, sizes.k, type, type_of_bias, 0, place, args.sentry != nullptr),
      place, args);
  if (!keep_x) return {y, nothing(place), nothing(place)};
  return {y, present(kept).codes, present(kept).scales};
}

std::tuple<Tensor, Tensor, Tensor> linear_backward(Tensor dy, Tensor weight, Tensor x_codes,
                                                   Tensor x_scales, std::int64_t recipe,
                                                   bool input_gradient, bool weight_gradient,
                                                   bool bias_gradient,
                                                   std::optional<Tensor> scaling,
                                                   std::optional<Tensor> sentry) {
  const Backward all = begin_backward(dy, weight, recipe);
  const OnDevice device(all.place);
  const Gradient gradient =
      quantize_gradient(all.dy, all.place, all.sizes, recipe, input_gradient || !weight_gradient,
                        weight_gradient, bias_gradient, scaling);
  Tensor dx = input_gradient ? input_gradient_of(all.dy, gradient, all.weight, all.place, all.sizes,
                                                 recipe, scaling, sentry)
                             : nothing(all.place);
  if (!weight_gradient) return {dx, nothing(all.place), gradient.column_sums};
  Tensor dw =
      empty(all.place, {all.sizes.n, all.sizes.k}, torch_type(float_type(all.weight, "weight")));
  add_weight_gradient(gradient, x_codes, x_scales, all.place, all.sizes, recipe, dw, false, sentry);
  return {dx, dw, gradient.column_sums};
}

std::tuple<Tensor, Tensor> linear_backward_into(Tensor dy, Tensor weight, Tensor x_codes,
                                                Tensor x_scales, Tensor main_grad,
                                                std::int64_t recipe, bool input_gradient,
                                                bool bias_gradient, std::optional<Tensor> scaling,
                                                std::optional<Tensor> sentry) {
  const Backward all = begin_backward(dy, weight, recipe);
  const OnDevice device(all.place);
  check_same_place(main_grad, all.place, "main_grad");
  if (main_grad.numel() != all.sizes.n * all.sizes.k || !main_grad.is_contiguous()) {
    refuse("main_grad is no contiguous [" + std::to_string(all.sizes.n) + ", " +
           std::to_string(all.sizes.k) + "]");
  }
  const Gradient gradient = quantize_gradient(all.dy, all.place, all.sizes, recipe, input_gradient,
                                              true, bias_gradient, scaling);
  Tensor dx = input_gradient ? input_gradient_of(all.dy, gradient, all.weight, all.place, all.sizes,
                                                 recipe, scaling, sentry)
                             : nothing(all.place);
  add_weight_gradient(gradient, x_codes, x_scales, all.place, all.sizes, recipe, main_grad, true,
                      sentry);
  return {dx, gradient.column_sums};
}

void prepare_linear(Tensor x, Tensor weight, std::optional<Tensor> bias,
                    std::optional<Tensor> main_grad, std::int64_t recipe, std::int64_t n,
                    std::int64_t k, std::int64_t lo, std::int64_t hi, bool training, bool sentry) {
  check_recipe(recipe);
  const Place place = place_of(x);
  const octile_dtype type = float_type(x, "x"), weight_type = float_type(weight, "weight");
  const octile_dtype type_of_bias = bias ? float_type(*bias, "bias") : octile_dtype{};
  const Output outputs = training ? Output::kBoth : Output::kRowwise;
  prepare(quantizer(recipe, Role::kActivation, outputs, type, k, false, false, place), lo, hi);
  prepare(quantizer(recipe, Role::kWeight, outputs, weight_type, k, false, false, place), n, n);
  prepare(forward_gemm(recipe, n, k, type, type_of_bias, 0, place, sentry), lo, hi);
  if (!training) return;
  if (is_delayed(recipe)) prepare_scale_update(recipe, place);
  prepare(quantizer(recipe, Role::kGradient, outputs, type, n, bias.has_value(), false, place), lo,
          hi);
  prepare(input_gradient_gemm(recipe, n, k, type, 0, place, sentry), lo, hi);
  prepare(weight_gradient_gemm(recipe, n, k,
                               main_grad ? float_type(*main_grad, "main_grad") : weight_type,
                               main_grad.has_value(), 0, place, sentry),
          lo, hi);
}

}  // namespace octile::binding
