#include "experts.h"

#include "passes.h"
#include "plans.h"
#include "types.h"

namespace octile::binding {
namespace {

// dY in FP8, as a call was given it.
struct GivenCopies {
  const std::optional<Tensor>&codes, &scales, &transposed, &transposed_scales;

  bool any() const { return codes || scales || transposed || transposed_scales; }
};

octile_plan* requantizer(const octile_tensor_type& type, std::int64_t cols, const Place& place) {
  return plan_of("quantize rows=? cols=" + std::to_string(cols) + " x=" + text_of(type) +
                     " q=" + text_of(type) + " out=col group=contiguous",
                 place);
}

octile_quantized_layout transposed_layout(octile_plan* plan, std::int64_t rows,
                                          std::int64_t groups) {
  octile_quantized_layout layout{};
  layout.struct_size = sizeof layout;
  check(octile_plan_quantized_layout(plan, rows, groups, 1, &layout));
  return layout;
}

// Reads one copy of dY, which the wanted gradient needs.
octile_layer_copy copy_of(const std::optional<Tensor>& codes, const std::optional<Tensor>& scales,
                          const octile_tensor_type& type, const octile_quantized_layout& layout,
                          std::int64_t width, const Place& place, const std::string& name) {
  if (!codes || !scales) refuse(name + " or its scales are None; allowed are both");
  check_copy(*codes, type, layout.data_rows, width, place, name);
  check_scales(*scales, type.scale_format, layout.scale_bytes / scale_bytes(type.scale_format),
               place, name + "_scales");
  if (layout.data_rows == 0 || layout.data_ld == 0) return {};
  return {codes->data_ptr(), scales->data_ptr()};
}

Gradients run_backward(const Tensor& dy, const GivenWeight& weight, const CopyOfX& x,
                       const Common& common, Wanted wanted, const GivenCopies& given) {
  if (!given.any()) return backward(dy, weight, x, common, wanted);
  if (is_delayed(common.recipe)) refuse("dy_codes are given with recipe 'delayed'; allowed: None");
  const Shape& shape = common.shape;
  const octile_tensor_type& type = type_of_dy(common.recipe);
  octile_layer_operand operand{};
  operand.struct_size = sizeof operand;
  operand.state = OCTILE_LAYER_CURRENT;
  if (wanted.dx) {
    const octile_quantized_layout layout = layout_of(type, shape.tokens, shape.n, false);
    operand.rowwise =
        copy_of(given.codes, given.scales, type, layout, shape.n, shape.place, "dy_codes");
  }
  if (wanted.dw) {
    const OnDevice device(shape.place);
    const octile_quantized_layout layout =
        transposed_layout(requantizer(type, shape.n, shape.place), shape.tokens, shape.experts);
    operand.transposed = copy_of(given.transposed, given.transposed_scales, type, layout,
                                 layout.data_ld, shape.place, "dy_transposed");
  }
  wanted.dy = &operand;
  return backward(dy, weight, x, common, wanted);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> experts_forward(
    Tensor x, Tensor weight, Tensor offsets, std::int64_t recipe, bool keep_x, bool input_gradient,
    std::optional<Tensor> scaling, std::optional<Tensor> sentry, std::optional<Tensor> w_scales,
    std::optional<Tensor> codes, std::optional<Tensor> scales) {
  check_recipe(recipe);
  const Common common =
      common_of(recipe, expert_shape(x, weight, offsets, Given::kX), scaling, sentry);
  return forward(x, {weight, w_scales, OCTILE_BF16}, std::nullopt, common, keep_x, input_gradient,
                 shared_copy(codes, scales));
}

std::tuple<Tensor, Tensor> experts_backward(
    Tensor dy, Tensor weight, Tensor offsets, Tensor x_codes, Tensor x_scales, std::int64_t recipe,
    bool input_gradient, bool weight_gradient, std::optional<Tensor> scaling,
    std::optional<Tensor> sentry, std::optional<Tensor> w_scales, std::int64_t w_gradient,
    std::optional<Tensor> dy_codes, std::optional<Tensor> dy_scales,
    std::optional<Tensor> dy_transposed, std::optional<Tensor> dy_transposed_scales) {
  check_recipe(recipe);
  const Common common =
      common_of(recipe, expert_shape(dy, weight, offsets, Given::kDy), scaling, sentry);
  auto [dx, dw, db] = run_backward(dy, {weight, w_scales, w_gradient}, {x_codes, x_scales}, common,
                                   {.dx = input_gradient, .dw = weight_gradient},
                                   {dy_codes, dy_scales, dy_transposed, dy_transposed_scales});
  return {dx, dw};
}

Tensor experts_backward_into(Tensor dy, Tensor weight, Tensor offsets, Tensor x_codes,
                             Tensor x_scales, Tensor main_grad, std::int64_t recipe,
                             bool input_gradient, std::optional<Tensor> scaling,
                             std::optional<Tensor> sentry, std::optional<Tensor> w_scales,
                             std::int64_t w_gradient, std::optional<Tensor> dy_codes,
                             std::optional<Tensor> dy_scales, std::optional<Tensor> dy_transposed,
                             std::optional<Tensor> dy_transposed_scales) {
  check_recipe(recipe);
  const Common common =
      common_of(recipe, expert_shape(dy, weight, offsets, Given::kDy), scaling, sentry);
  check_main_grad(main_grad, weight, common.shape.place);
  return run_backward(dy, {weight, w_scales, w_gradient}, {x_codes, x_scales}, common,
                      {.dx = input_gradient, .dw = true, .main_grad = &main_grad},
                      {dy_codes, dy_scales, dy_transposed, dy_transposed_scales})
      .dx;
}

std::tuple<Tensor, Tensor> requantize_groups(Tensor codes, Tensor scales, Tensor offsets,
                                             std::string type) {
  const octile_tensor_type kind = type_named(type, "type");
  check_rows(codes, "codes");
  const Place place = place_of(codes);
  const std::int64_t rows = codes.size(0), cols = codes.size(1);
  check_quantized(codes, scales, kind, rows, cols, place, "codes");
  check_same_place(offsets, place, "offsets");
  if (type_of(offsets) != torch_int32() || offsets.dim() != 1 || !offsets.is_contiguous() ||
      offsets.size(0) < 2)
    refuse("offsets is " + shape_text(offsets) + "; allowed is int32 [groups + 1], contiguous");
  const OnDevice device(place);
  const std::int64_t groups = offsets.size(0) - 1;
  octile_plan* plan = requantizer(kind, cols, place);
  const octile_quantized_layout layout = transposed_layout(plan, rows, groups);
  const Quantized result{
      .codes = empty(place, {layout.data_rows, layout.data_ld}, torch_type(kind.dtype)),
      .scales = empty(place, {layout.scale_bytes / scale_bytes(kind.scale_format)},
                      torch_scale_type(kind.scale_format))};
  quantize(plan, place,
           {.rows = rows,
            .x = codes.data_ptr(),
            .ldx = row_stride(codes),
            .x_scale = scales.data_ptr(),
            .offsets = static_cast<const std::int32_t*>(offsets.data_ptr()),
            .groups = groups},
           {.transposed = target_of(result)});
  return {result.codes, result.scales};
}

}  // namespace octile::binding
