#include "normed.h"

#include <string>

#include "layer_handles.h"
#include "plans.h"
#include "recipes.h"
#include "types.h"

namespace octile::binding {
namespace {

std::string problem_of(octile_dtype type, std::int64_t k, std::int64_t recipe, bool via_bf16,
                       bool layer) {
  if (type == OCTILE_FP16) refuse("x is of float16; allowed are bfloat16 and float32");
  return "quantize rows=? cols=" + std::to_string(k) + " x=" + name_of(type) +
         " q=" + text_of(type_of_x(recipe)) +
         (layer ? " src=layernorm_again" : " src=rmsnorm_again") + (via_bf16 ? " via=bf16" : "") +
         " out=col";
}

void check_of_layers(std::int64_t recipe) {
  check_recipe(recipe);
  if (is_delayed(recipe)) refuse("recipe is 'delayed', whose scales are those of a layer");
}

// A number for each row, as the norm's forward pass found it.
void check_of_rows(const Tensor& values, std::int64_t tokens, const Place& place,
                   const std::string& name) {
  check_same_place(values, place, name);
  if (float_type(values, name) != OCTILE_FP32 || values.numel() != tokens ||
      !values.is_contiguous())
    refuse(name + " is " + shape_text(values) +
           "; allowed is contiguous float32, one for each of " + std::to_string(tokens) + " rows");
}

// A factor or a summand of every row, contiguous.
Tensor of_columns(const Tensor& values, octile_dtype type, std::int64_t k, const Place& place,
                  const std::string& name) {
  check_same_place(values, place, name);
  if (float_type(values, name) != type || values.dim() != 1 || values.size(0) != k)
    refuse(name + " is " + shape_text(values) + "; allowed is [" + std::to_string(k) +
           "] of x's type");
  return contiguous(values);
}

}  // namespace

std::tuple<Tensor, Tensor> quantize_normed(Tensor x, Tensor rstd, Tensor weight,
                                           std::int64_t recipe, bool via_bf16,
                                           std::optional<Tensor> mean, std::optional<Tensor> bias) {
  check_of_layers(recipe);
  const Place place = place_of(x);
  const OnDevice device(place);
  const octile_dtype type = float_type(x, "x");
  if (x.dim() < 1) refuse("x has no dimension; allowed are 1 and more");
  const std::int64_t k = x.size(x.dim() - 1), tokens = k == 0 ? 0 : x.numel() / k;
  if (mean.has_value() != bias.has_value())
    refuse(std::string(mean ? "bias" : "mean") +
           " is None; allowed are both mean and bias, of a layer norm, or neither");
  check_of_rows(rstd, tokens, place, "rstd");
  const Tensor weights = of_columns(weight, type, k, place, "weight"), rows = contiguous(x);
  std::optional<Tensor> biases;
  if (bias) {
    check_of_rows(*mean, tokens, place, "mean");
    biases = of_columns(*bias, type, k, place, "bias");
  }
  const octile_tensor_type& kind = type_of_x(recipe);
  const octile_quantized_layout layout = layout_of(kind, tokens, k, true);
  const Quantized made{
      .codes = empty(place, {layout.data_rows, layout.data_ld}, torch_type(kind.dtype)),
      .scales =
          empty(place, {layout.scale_rows * layout.scale_ld}, torch_scale_type(kind.scale_format))};
  quantize(plan_of(problem_of(type, k, recipe, via_bf16, biases.has_value()), place), place,
           {.rows = tokens,
            .x = rows.data_ptr(),
            .ldx = k,
            .x1 = weights.data_ptr(),
            .x2 = biases ? biases->data_ptr() : nullptr,
            .x3 = mean ? mean->data_ptr() : nullptr,
            .rstd = static_cast<float*>(rstd.data_ptr())},
           {.transposed = target_of(made)});
  return {made.codes, made.scales};
}

void prepare_normed(Tensor x, std::int64_t recipe, std::int64_t k, bool via_bf16, std::int64_t lo,
                    std::int64_t hi, bool layer) {
  check_of_layers(recipe);
  const Place place = place_of(x);
  const OnDevice device(place);
  prepare(plan_of(problem_of(float_type(x, "x"), k, recipe, via_bf16, layer), place), lo, hi);
}

}  // namespace octile::binding
