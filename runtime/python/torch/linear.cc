#include "linear.h"

#include <utility>
#include <vector>

#include "held_weight.h"
#include "layer_handles.h"
#include "passes.h"
#include "types.h"
#include "weights.h"

namespace octile::binding {
namespace {

constexpr std::uint32_t kForward = OCTILE_LAYER_WITHOUT_BACKWARD;
constexpr std::uint32_t kBackward = OCTILE_LAYER_WITHOUT_FORWARD;

std::uint32_t use_if(bool used, octile_layer_use use) {
  return used ? static_cast<std::uint32_t>(use) : 0;
}

LayerKey key_of(const Common& common, octile_dtype type, octile_dtype weight) {
  return {.recipe = common.recipe,
          .n = common.shape.n,
          .k = common.shape.k,
          .experts = common.shape.experts,
          .type = type,
          .weight = weight,
          .gradient = weight,
          .sentry = common.sentry != nullptr,
          .history = common.scaling.history,
          .device = device_of(common.shape.place)};
}

Tensor like_with_last(const Tensor& tensor, const Place& place, std::int64_t last,
                      octile_dtype type) {
  const auto sizes = tensor.sizes();
  std::vector<std::int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = last;
  return empty(place, shape, torch_type(type));
}

template <typename Args>
void fill_common(Args& args, const Common& common) {
  args.struct_size = sizeof args;
  args.tokens = common.shape.tokens;
  args.group_offsets = common.shape.offsets;
  args.scaling = common.scaling.state;
  args.sentry = common.sentry;
}

octile_layer_operand source_of(const Tensor& tensor) {
  octile_layer_operand operand{};
  operand.struct_size = sizeof operand;
  operand.source = tensor.data_ptr();
  return operand;
}

std::int64_t scale_count(const octile_quantized_layout& layout, const octile_tensor_type& type) {
  return layout.scale_bytes / scale_bytes(type.scale_format);
}

CopyOfX allocate_kept(const octile_quantized_layout& layout, const Common& common) {
  const octile_tensor_type& type = type_of_x(common.recipe);
  const Place& place = common.shape.place;
  return {.codes = empty(place, {layout.data_rows, layout.data_ld}, torch_type(type.dtype)),
          .scales = empty(place, {scale_count(layout, type)}, torch_scale_type(type.scale_format))};
}

void check_kept(const CopyOfX& x, const octile_quantized_layout& layout, const Common& common) {
  const octile_tensor_type& type = type_of_x(common.recipe);
  const Place& place = common.shape.place;
  check_copy(x.codes, type, layout.data_rows, layout.data_ld, place, "x_codes");
  check_scales(x.scales, type.scale_format, scale_count(layout, type), place, "x_scales");
}

// Returns whether a backward pass was given X and no copy of it.
bool is_x_itself(const CopyOfX& x) {
  return x.scales.numel() == 0 && x.codes.dim() == 2 && x.codes.element_size() > 1;
}

void check_x(const Tensor& x, octile_dtype type, const Common& common) {
  const Shape& shape = common.shape;
  check_same_place(x, shape.place, "x");
  if (x.size(0) != shape.tokens || x.size(1) != shape.k || float_type(x, "x") != type) {
    refuse("x is " + shape_text(x) + "; allowed is [" + std::to_string(shape.tokens) + ", " +
           std::to_string(shape.k) + "] of dy's type");
  }
}

// Returns where a copy of some tokens is. One of none is never read.
octile_layer_copy memory_of(const CopyOfX& x, const Common& common) {
  if (common.shape.tokens == 0) return {};
  return {x.codes.data_ptr(), x.scales.data_ptr()};
}

// X whose row-wise copy another operator has made.
octile_layer_operand current_of(const CopyOfX& x, Layer& layer, const Common& common) {
  octile_quantized_layout layout{};
  layout.struct_size = sizeof layout;
  check(octile_layer_copy_layout(layer.handle(), OCTILE_LAYER_X, 0, common.shape.tokens, &layout));
  const octile_tensor_type& type = type_of_x(common.recipe);
  const Place& place = common.shape.place;
  check_copy(x.codes, type, common.shape.tokens, common.shape.k, place, "codes");
  check_scales(x.scales, type.scale_format, scale_count(layout, type), place, "scales");
  octile_layer_operand operand{};
  operand.struct_size = sizeof operand;
  operand.state = OCTILE_LAYER_CURRENT;
  operand.rowwise = memory_of(x, common);
  return operand;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> Product::results() const {
  if (kept) return {y, kept->codes, kept->scales};
  const Place place = place_of(y);
  return {y, nothing(place), nothing(place)};
}

Product forward(const Tensor& x_given, const GivenWeight& given, std::optional<Tensor> bias,
                const Common& common, bool keep_x, bool input_gradient,
                const std::optional<CopyOfX>& shared) {
  const Shape& shape = common.shape;
  const Place& place = shape.place;
  const OnDevice device(place);
  const Tensor x = shared ? x_given : contiguous(x_given), weight = contiguous(given.tensor);
  LayerKey key = key_of(common, float_type(x, "x"), given.type());
  if (bias) {
    bias = bias_operand(*bias, shape.n, place);
    key.bias = float_type(*bias, "bias");
  }
  Layer& layer = Layer::of(key);
  Tensor y = like_with_last(x, place, shape.n, key.type);
  const bool records = keep_x || input_gradient;
  if (records) {
    note_pass(given.tensor, Pass::kForward);
    note_record(common.scaling, place);
  }
  std::optional<WeightUse> w;
  std::optional<HeldWeight> held;
  if (given.scales) {
    if (common.scaling.state != nullptr) refuse("scaling is given with w_scales; allowed is None");
    held.emplace(weight, *given.scales, layer, common.recipe, place);
  } else {
    w.emplace(WeightCall{.weight = weight,
                         .place = place,
                         .layer = layer,
                         .recipe = common.recipe,
                         .pass = Pass::kForward,
                         .wanted = {.rowwise = true, .transposed = input_gradient},
                         .gradients = records});
  }
  const bool keeps = keep_x && !shared;
  const std::uint32_t uses = kForward | use_if(keeps, OCTILE_LAYER_KEEP_X) |
                             (w ? w->forward_uses() : std::uint32_t{OCTILE_LAYER_HELD_W});
  const LayerSizes& sizes = layer.sizes(shape.tokens, uses);

  octile_layer_operand of_x = shared ? current_of(*shared, layer, common) : source_of(x);
  Product product{.y = std::move(y)};
  if (keeps) {
    product.kept = allocate_kept(sizes.kept, common);
    of_x.transposed = memory_of(*product.kept, common);
  }
  octile_layer_forward_args args{};
  fill_common(args, common);
  args.x = &of_x;
  args.w = w ? w->operand() : held->operand();
  args.y = product.y.data_ptr();
  args.bias = bias ? bias->data_ptr() : nullptr;
  args.record_x = records ? 1 : 0;
  const Workspace space(place, sizes.workspace, args);
  layer.run(shape.tokens, uses, [&](octile_layer* handle) {
    return octile_layer_forward(handle, &args, place.stream);
  });
  if (w) w->made();
  return product;
}

std::optional<CopyOfX> shared_copy(const std::optional<Tensor>& codes,
                                   const std::optional<Tensor>& scales) {
  if (codes.has_value() != scales.has_value()) refuse("one of codes and scales is None");
  if (!codes) return std::nullopt;
  return CopyOfX{.codes = *codes, .scales = *scales};
}

Common common_of(RecipeCode recipe, const Shape& shape, const Tensor& weight,
                 const std::optional<Tensor>& scaling, const std::optional<Tensor>& sentry) {
  const Scaling state = scaling_of(scaling, recipe, shape.experts, shape.place);
  return {.recipe = recipe_of_call(recipe, state, weight, shape.place),
          .shape = shape,
          .scaling = state,
          .sentry = sentry_of(sentry, shape.place)};
}

Gradients backward(const Tensor& dy_given, const GivenWeight& given, CopyOfX kept,
                   const Common& common, const Wanted& wanted) {
  const Shape& shape = common.shape;
  const Place& place = shape.place;
  const OnDevice device(place);
  note_pass(given.tensor, Pass::kBackward);
  const Tensor dy = wanted.dy != nullptr ? dy_given : contiguous(dy_given);
  const Tensor weight = contiguous(given.tensor);
  LayerKey key = key_of(common, float_type(dy, "dy"), given.type());
  if (wanted.main_grad != nullptr) {
    key.gradient = float_type(*wanted.main_grad, "main_grad");
    key.accumulate = true;
  }
  Layer& layer = Layer::of(key);
  const bool quantizes_x = wanted.dw && is_x_itself(kept);
  std::uint32_t uses = kBackward | use_if(wanted.dy != nullptr, OCTILE_LAYER_CURRENT_DY) |
                       use_if(wanted.dx, OCTILE_LAYER_INPUT_GRADIENT) |
                       use_if(wanted.dw && !quantizes_x, OCTILE_LAYER_KEEP_X) |
                       use_if(wanted.dw, OCTILE_LAYER_WEIGHT_GRADIENT) |
                       use_if(wanted.db, OCTILE_LAYER_BIAS_GRADIENT);
  octile_layer_operand of_dy = wanted.dy != nullptr ? *wanted.dy : source_of(dy), of_x{};
  octile_layer_backward_args args{};
  fill_common(args, common);
  args.dy = &of_dy;
  Gradients result{
      .dx = wanted.dx ? like_with_last(dy, place, shape.k, key.type) : nothing(place),
      .dw = nothing(place),
      .db = wanted.db ? empty(place, {shape.n}, torch_type(OCTILE_FP32)) : nothing(place)};
  if (wanted.dx) args.dx = result.dx.data_ptr();
  if (wanted.db) args.bias_gradient = static_cast<float*>(result.db.data_ptr());
  std::optional<WeightUse> w;
  std::optional<HeldWeight> held;
  if (wanted.dx && given.scales) {
    held.emplace(weight, *given.scales, layer, common.recipe, place);
    args.w = held->operand();
    uses |= OCTILE_LAYER_HELD_W;
  } else if (wanted.dx) {
    w.emplace(WeightCall{.weight = weight,
                         .place = place,
                         .layer = layer,
                         .recipe = common.recipe,
                         .pass = Pass::kBackward,
                         .wanted = {.transposed = true}});
    args.w = w->operand();
  }
  const LayerSizes& sizes = layer.sizes(shape.tokens, uses | (w ? w->memory_uses() : 0));
  if (w) uses |= w->backward_uses();
  std::optional<Written> main_grad;
  if (wanted.dw) {
    if (quantizes_x) {
      check_x(kept.codes, key.type, common);
      kept.codes = contiguous(kept.codes);
      of_x = source_of(kept.codes);
    } else {
      check_kept(kept, sizes.kept, common);
      kept = {aligned(kept.codes), aligned(kept.scales)};
      of_x.struct_size = sizeof of_x;
      of_x.state = OCTILE_LAYER_CURRENT;
      of_x.transposed = memory_of(kept, common);
    }
    args.x = &of_x;
    if (wanted.main_grad != nullptr) {
      main_grad.emplace(*wanted.main_grad, aligned(*wanted.main_grad));
    } else {
      result.dw = like_with_last(weight, place, shape.k, key.weight);
    }
    args.dw = main_grad ? main_grad->at().data_ptr() : result.dw.data_ptr();
  }
  note_record(common.scaling, place);
  const Workspace space(place, sizes.workspace, args);
  layer.run(shape.tokens, uses, [&](octile_layer* handle) {
    return octile_layer_backward(handle, &args, place.stream);
  });
  if (w) w->made();
  if (main_grad) main_grad->finish();
  return result;
}

void check_main_grad(const Tensor& main_grad, const Tensor& weight, const Place& place) {
  check_same_place(main_grad, place, "main_grad");
  if (main_grad.numel() != weight.numel() || !main_grad.is_contiguous()) {
    refuse("main_grad is not a contiguous " + shape_text(weight));
  }
}

namespace {

// Forward and backward have handles of their own, if dW is added to main_grad or there is a bias.
void prepare(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
             const std::optional<Tensor>& main_grad, LayerKey key, std::int64_t lo, std::int64_t hi,
             bool training, bool held) {
  check_recipe(key.recipe);
  const Place place = place_of(x);
  const OnDevice device(place);
  key.device = device_of(place);
  key.type = float_type(x, "x");
  const bool codes_alone = type_of(weight) == torch_type(OCTILE_E4M3);
  key.gradient = key.weight = codes_alone ? OCTILE_BF16 : float_type(weight, "weight");
  const std::uint32_t keeps =
      training ? OCTILE_LAYER_KEEP_X | OCTILE_LAYER_KEEP_W | OCTILE_LAYER_INPUT_GRADIENT : 0;
  LayerKey of_forward = key;
  if (bias) of_forward.bias = float_type(*bias, "bias");
  Layer& layer = Layer::of(of_forward);
  if (codes_alone) {
    if (training) refuse("training is true; allowed with a weight of codes is false");
    return layer.prepare(lo, hi, kForward | OCTILE_LAYER_HELD_W);
  }
  layer.prepare(lo, hi, kForward | keeps);
  layer.prepare(lo, hi,  // the quantiser of W alone
                kForward | kBackward | keeps | OCTILE_LAYER_KEEP_W | OCTILE_LAYER_COMPARE_W);
  if (held) layer.prepare(lo, hi, kForward | OCTILE_LAYER_HELD_W);
  if (!training) return;
  layer.prepare(lo, hi, kForward | OCTILE_LAYER_KEEP_X);  // if no copies of W are kept
  layer.prepare(lo, hi, kForward);                        // and none of X
  if (main_grad) {
    key.gradient = float_type(*main_grad, "main_grad");
    key.accumulate = true;
  }
  const std::uint32_t gradients = kBackward | OCTILE_LAYER_KEEP_X | OCTILE_LAYER_INPUT_GRADIENT |
                                  OCTILE_LAYER_WEIGHT_GRADIENT |
                                  use_if(bias.has_value(), OCTILE_LAYER_BIAS_GRADIENT);
  Layer& of_backward = Layer::of(key);
  for (const std::uint32_t keeps_w : {0U, std::uint32_t{OCTILE_LAYER_KEEP_W}})
    of_backward.prepare(lo, hi, gradients | keeps_w);
  if (held) of_backward.prepare(lo, hi, gradients | OCTILE_LAYER_HELD_W);
  if (key.experts > 0) of_backward.prepare(lo, hi, gradients & ~std::uint32_t{OCTILE_LAYER_KEEP_X});
  if (is_delayed(key.recipe)) prepare_scale_update(key.recipe, key.experts, key.history, place);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> linear_forward(
    Tensor x, Tensor weight, std::optional<Tensor> bias, std::int64_t recipe, bool keep_x,
    bool input_gradient, std::optional<Tensor> scaling, std::optional<Tensor> sentry,
    std::optional<Tensor> codes, std::optional<Tensor> scales, std::optional<Tensor> w_scales) {
  check_recipe(recipe);
  const Common common =
      common_of(recipe, linear_shape(x, weight, Given::kX), weight, scaling, sentry);
  return forward(x, {weight, w_scales, OCTILE_BF16}, bias, common, keep_x, input_gradient,
                 shared_copy(codes, scales))
      .results();
}

Tensor linear_output(Tensor x, Tensor weight, std::optional<Tensor> bias, std::int64_t recipe,
                     std::optional<Tensor> scaling, std::optional<Tensor> sentry,
                     std::optional<Tensor> codes, std::optional<Tensor> scales,
                     std::optional<Tensor> w_scales) {
  check_recipe(recipe);
  const Common common =
      common_of(recipe, linear_shape(x, weight, Given::kX), weight, scaling, sentry);
  return forward(x, {weight, w_scales, OCTILE_BF16}, bias, common, false, false,
                 shared_copy(codes, scales))
      .y;
}

std::tuple<Tensor, Tensor, Tensor> linear_backward(
    Tensor dy, Tensor weight, Tensor x_codes, Tensor x_scales, std::int64_t recipe,
    bool input_gradient, bool weight_gradient, bool bias_gradient, std::optional<Tensor> scaling,
    std::optional<Tensor> sentry, std::optional<Tensor> w_scales, std::int64_t w_gradient) {
  check_recipe(recipe);
  const Common common =
      common_of(recipe, linear_shape(dy, weight, Given::kDy), weight, scaling, sentry);
  auto [dx, dw, db] = backward(dy, {weight, w_scales, w_gradient}, {x_codes, x_scales}, common,
                               {.dx = input_gradient, .dw = weight_gradient, .db = bias_gradient});
  return {dx, dw, db};
}

std::tuple<Tensor, Tensor> linear_backward_into(
    Tensor dy, Tensor weight, Tensor x_codes, Tensor x_scales, Tensor main_grad,
    std::int64_t recipe, bool input_gradient, bool bias_gradient, std::optional<Tensor> scaling,
    std::optional<Tensor> sentry, std::optional<Tensor> w_scales, std::int64_t w_gradient) {
  check_recipe(recipe);
  const Common common =
      common_of(recipe, linear_shape(dy, weight, Given::kDy), weight, scaling, sentry);
  check_main_grad(main_grad, weight, common.shape.place);
  auto [dx, dw, db] =
      backward(dy, {weight, w_scales, w_gradient}, {x_codes, x_scales}, common,
               {.dx = input_gradient, .dw = true, .db = bias_gradient, .main_grad = &main_grad});
  return {dx, db};
}

void prepare_linear(Tensor x, Tensor weight, std::optional<Tensor> bias,
                    std::optional<Tensor> main_grad, std::int64_t recipe, std::int64_t n,
                    std::int64_t k, std::int64_t lo, std::int64_t hi, bool training, bool sentry,
                    std::int64_t history, bool held) {
  prepare(x, weight, bias, main_grad,
          {.recipe = recipe, .n = n, .k = k, .sentry = sentry, .history = history}, lo, hi,
          training, held);
}

void prepare_experts(Tensor x, Tensor weight, std::optional<Tensor> main_grad, std::int64_t recipe,
                     std::int64_t experts, std::int64_t n, std::int64_t k, std::int64_t lo,
                     std::int64_t hi, bool training, bool sentry, std::int64_t history, bool held) {
  prepare(
      x, weight, std::nullopt, main_grad,
      {.recipe = recipe, .n = n, .k = k, .experts = experts, .sentry = sentry, .history = history},
      lo, hi, training, held);
}

}  // namespace octile::binding
