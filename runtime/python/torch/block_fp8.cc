#include "block_fp8.h"

#include <string>

#include "layer_handles.h"
#include "recipes.h"
#include "shape.h"

namespace octile::binding {
namespace {

constexpr std::int64_t kBlock = 128;

std::int64_t blocks_of(std::int64_t size) { return (size + kBlock - 1) / kBlock; }

void check_block_weight(const Tensor& weight, const Tensor& scales, const Shape& shape) {
  const std::int64_t experts = shape.experts == 0 ? 1 : shape.experts;
  if (type_of(weight) != torch_type(OCTILE_E4M3) || type_of(scales) != torch_type(OCTILE_FP32) ||
      scales.numel() != experts * blocks_of(shape.n) * blocks_of(shape.k) ||
      !scales.is_contiguous()) {
    refuse("weight " + shape_text(weight) + " with scales " + shape_text(scales) +
           " is not float8_e4m3fn with contiguous float32 scales of 128 x 128 blocks");
  }
  check_same_place(scales, shape.place, "scales");
}

}  // namespace

Tensor block_fp8_linear(Tensor x, Tensor weight, Tensor scales, std::optional<Tensor> bias,
                        std::optional<Tensor> offsets) {
  // Scales of 128 x 128 blocks may be any fp32 value.
  const RecipeCode recipe = recipe_named("blockwise:f32");
  if (x.dim() != 2) refuse("x is " + shape_text(x) + "; allowed is [tokens, k]");
  const Shape shape =
      offsets ? expert_shape(x, weight, *offsets, Given::kX) : linear_shape(x, weight, Given::kX);
  check_block_weight(weight, scales, shape);
  const Place& place = shape.place;
  const OnDevice device(place);
  x = contiguous(x);
  weight = aligned(weight);
  scales = aligned(scales);
  LayerKey key{.recipe = recipe,
               .n = shape.n,
               .k = shape.k,
               .experts = shape.experts,
               .type = float_type(x, "x"),
               .device = device_of(place)};
  if (bias) {
    bias = bias_operand(*bias, shape.n, place);
    key.bias = float_type(*bias, "bias");
  }
  Layer& layer = Layer::of(key);
  constexpr std::uint32_t kUses = OCTILE_LAYER_WITHOUT_BACKWARD | OCTILE_LAYER_KEEP_W;
  Tensor y = empty(place, {shape.tokens, shape.n}, torch_type(key.type));

  octile_layer_operand of_x{}, of_w{};
  of_x.struct_size = of_w.struct_size = sizeof of_x;
  of_x.source = x.data_ptr();
  of_w.state = OCTILE_LAYER_CURRENT;
  of_w.rowwise = {weight.data_ptr(), scales.data_ptr()};
  of_w.scale_ld = blocks_of(shape.k);
  octile_layer_forward_args args{};
  args.struct_size = sizeof args;
  args.tokens = shape.tokens;
  args.x = &of_x;
  args.w = &of_w;
  args.y = y.data_ptr();
  args.bias = bias ? bias->data_ptr() : nullptr;
  args.group_offsets = shape.offsets;
  const Workspace space(place, layer.sizes(shape.tokens, kUses).workspace, args);
  layer.run(shape.tokens, kUses, [&](octile_layer* handle) {
    return octile_layer_forward(handle, &args, place.stream);
  });
  return y;
}

}  // namespace octile::binding
