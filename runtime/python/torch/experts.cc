#include "experts.h"

#include "passes.h"
#include "row_messages.h"
#include "types.h"

namespace octile::binding {
namespace {

// dY in FP8, as a call was given it.
struct GivenCopies {
  const std::optional<Tensor>&codes, &scales, &transposed, &transposed_scales;

  bool any() const { return codes || scales || transposed || transposed_scales; }
};

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
        layout_of_groups(type, shape.tokens, shape.n, shape.experts, shape.place);
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
      common_of(recipe, expert_shape(x, weight, offsets, Given::kX), weight, scaling, sentry);
  return forward(x, {weight, w_scales, OCTILE_BF16}, std::nullopt, common, keep_x, input_gradient,
                 shared_copy(codes, scales))
      .results();
}

std::tuple<Tensor, Tensor> experts_backward(
    Tensor dy, Tensor weight, Tensor offsets, Tensor x_codes, Tensor x_scales, std::int64_t recipe,
    bool input_gradient, bool weight_gradient, std::optional<Tensor> scaling,
    std::optional<Tensor> sentry, std::optional<Tensor> w_scales, std::int64_t w_gradient,
    std::optional<Tensor> dy_codes, std::optional<Tensor> dy_scales,
    std::optional<Tensor> dy_transposed, std::optional<Tensor> dy_transposed_scales) {
  check_recipe(recipe);
  const Common common =
      common_of(recipe, expert_shape(dy, weight, offsets, Given::kDy), weight, scaling, sentry);
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
      common_of(recipe, expert_shape(dy, weight, offsets, Given::kDy), weight, scaling, sentry);
  check_main_grad(main_grad, weight, common.shape.place);
  return run_backward(dy, {weight, w_scales, w_gradient}, {x_codes, x_scales}, common,
                      {.dx = input_gradient, .dw = true, .main_grad = &main_grad},
                      {dy_codes, dy_scales, dy_transposed, dy_transposed_scales})
      .dx;
}

}  // namespace octile::binding
