#include "normed.h"

#include <string>

#include "layer_handles.h"
#include "plans.h"
#include "recipes.h"
#include "types.h"

namespace octile::binding {
namespace {

std::string problem_of(octile_dtype type, std::int64_t k, std::int64_t recipe, bool via_bf16) {
  if (type == OCTILE_FP16) refuse("x is of float16; allowed are bfloat16 and float32");
  return "quantize rows=? cols=" + std::to_string(k) + " x=" + name_of(type) +
         " q=" + text_of(type_of_x(recipe)) + " src=rmsnorm_again" + (via_bf16 ? " via=bf16" : "") +
         " out=col";
}

void check_of_layers(std::int64_t recipe) {
  check_recipe(recipe);
  if (is_delayed(recipe)) refuse("recipe is 'delayed', whose scales are those of a layer");
}

}  // namespace

std::tuple<Tensor, Tensor> quantize_normed(Tensor x, Tensor rstd, Tensor weight,
                                           std::int64_t recipe, bool via_bf16) {
  check_of_layers(recipe);
  const Place place = place_of(x);
  const OnDevice device(place);
  const octile_dtype type = float_type(x, "x");
  if (x.dim() < 1) refuse("x has no dimension; allowed are 1 and more");
  const std::int64_t k = x.size(x.dim() - 1), tokens = k == 0 ? 0 : x.numel() / k;
  check_same_place(rstd, place, "rstd");
  if (float_type(rstd, "rstd") != OCTILE_FP32 || rstd.numel() != tokens || !rstd.is_contiguous())
    refuse("rstd is " + shape_text(rstd) + "; allowed is contiguous float32, one for each of " +
           std::to_string(tokens) + " rows");
  check_same_place(weight, place, "weight");
  if (float_type(weight, "weight") != type || weight.dim() != 1 || weight.size(0) != k)
    refuse("weight is " + shape_text(weight) + "; allowed is [" + std::to_string(k) +
           "] of x's type");
  const Tensor rows = contiguous(x), of_columns = contiguous(weight);
  const octile_tensor_type& kind = type_of_x(recipe);
  const octile_quantized_layout layout = layout_of(kind, tokens, k, true);
  const Quantized made{
      .codes = empty(place, {layout.data_rows, layout.data_ld}, torch_type(kind.dtype)),
      .scales =
          empty(place, {layout.scale_rows * layout.scale_ld}, torch_scale_type(kind.scale_format))};
  quantize(plan_of(problem_of(type, k, recipe, via_bf16), place), place,
           {.rows = tokens,
            .x = rows.data_ptr(),
            .ldx = k,
            .x1 = of_columns.data_ptr(),
            .rstd = static_cast<float*>(rstd.data_ptr())},
           {.transposed = target_of(made)});
  return {made.codes, made.scales};
}

void prepare_normed(Tensor x, std::int64_t recipe, std::int64_t k, bool via_bf16, std::int64_t lo,
                    std::int64_t hi) {
  check_of_layers(recipe);
  const Place place = place_of(x);
  const OnDevice device(place);
  prepare(plan_of(problem_of(float_type(x, "x"), k, recipe, via_bf16), place), lo, hi);
}

}  // namespace octile::binding
