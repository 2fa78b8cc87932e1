#include "held_weight.h"

#include <string>

#include "types.h"

namespace octile::binding {
namespace {

constexpr std::int64_t kBlock = 128;

std::int64_t blocks_of(std::int64_t size) { return (size + kBlock - 1) / kBlock; }

// Returns how many scales of 128 x 128 blocks the codes have, if nothing is padded.
std::int64_t block_count(const Tensor& codes) {
  const std::int64_t n = codes.size(codes.dim() - 2), k = codes.size(codes.dim() - 1);
  return codes.numel() / (n * k) * blocks_of(n) * blocks_of(k);
}

void check_held(const Tensor& codes, const Tensor& scales, Layer& layer,
                const octile_tensor_type& type, std::int64_t scale_ld, const Place& place) {
  if (type_of(codes) != torch_type(type.dtype) || !codes.is_contiguous()) {
    refuse("weight " + shape_text(codes) + " is not contiguous codes of " + name_of(type.dtype));
  }
  check_same_place(codes, place, "weight");
  octile_quantized_layout layout{};
  layout.struct_size = sizeof layout;
  check(octile_layer_copy_layout(layer.handle(), OCTILE_LAYER_W, 0, 0, &layout));
  const std::int64_t count = layout.scale_bytes / scale_bytes(type.scale_format);
  check_scales(scales, type.scale_format, scale_ld > 0 ? count / layout.scale_ld * scale_ld : count,
               place, "w_scales");
}

}  // namespace

GivenWeight::GivenWeight(const Tensor& weight, const std::optional<Tensor>& w_scales,
                         std::int64_t w_gradient)
    : tensor(weight), scales(w_scales), gradient(static_cast<octile_dtype>(w_gradient)) {
  if (scales && (w_gradient < OCTILE_BF16 || w_gradient > OCTILE_FP32)) {
    refuse("w_gradient is " + std::to_string(w_gradient) +
           "; allowed with w_scales are the octile_dtypes 3, 4 and 5");
  }
}

void check_holdable(RecipeCode recipe) {
  check_recipe(recipe);
  const octile_granularity block = type_of_w(recipe).granularity;
  const bool square = block == OCTILE_SCALE_PER_TENSOR || block == OCTILE_SCALE_128X128;
  if (square && !is_delayed(recipe)) return;
  refuse(std::string("recipe is '") + recipe_name(recipe) +
         "'; allowed with weights that are held in FP8 are those with scales per tensor or of 128 "
         "x 128 blocks, which the weights alone decide");
}

HeldWeight::HeldWeight(const Tensor& codes, const Tensor& scales, Layer& layer, RecipeCode recipe,
                       const Place& place)
    : codes_(codes), scales_(scales) {
  check_holdable(recipe);
  const octile_tensor_type& type = type_of_w(recipe);
  if (type.granularity == OCTILE_SCALE_128X128 && scales.numel() == block_count(codes))
    operand_.scale_ld = blocks_of(codes.size(codes.dim() - 1));
  check_held(codes, scales, layer, type, operand_.scale_ld, place);
  codes_ = aligned(codes);
  scales_ = aligned(scales);
  operand_.struct_size = sizeof operand_;
  operand_.state = OCTILE_LAYER_CODES;
  operand_.rowwise = {codes_.data_ptr(), scales_.data_ptr()};
}

void quantize_weight(Tensor weight, std::int64_t recipe, Tensor codes, Tensor scales) {
  check_holdable(recipe);
  const std::int64_t dims = weight.dim();
  if (dims != 2 && dims != 3) {
    refuse("weight is " + shape_text(weight) + "; allowed are [n, k] and [experts, n, k]");
  }
  const Place place = place_of(weight);
  const OnDevice device(place);
  const Tensor source = contiguous(weight);
  const octile_dtype type = float_type(source, "weight");
  Layer& layer = Layer::of({.recipe = recipe,
                            .n = source.size(dims - 2),
                            .k = source.size(dims - 1),
                            .experts = dims == 3 ? source.size(0) : 0,
                            .type = type,
                            .weight = type,
                            .gradient = type,
                            .device = device_of(place)});
  if (codes.numel() != source.numel()) {
    refuse("codes is " + shape_text(codes) + "; allowed is " + shape_text(source));
  }
  check_held(codes, scales, layer, type_of_w(recipe), 0, place);
  const Written codes_out(codes, aligned(codes)), scales_out(scales, aligned(scales));
  octile_layer_operand operand{};
  operand.struct_size = sizeof operand;
  operand.source = source.data_ptr();
  operand.rowwise = {codes_out.at().data_ptr(), scales_out.at().data_ptr()};
  octile_layer_quantize_args args{};
  args.struct_size = sizeof args;
  args.tensor = OCTILE_LAYER_W;
  args.operand = &operand;
  constexpr std::uint32_t kSizes = OCTILE_LAYER_WITHOUT_FORWARD | OCTILE_LAYER_KEEP_W;
  const Workspace space(place, layer.sizes(0, kSizes).workspace, args);
  constexpr std::uint32_t kUses =
      OCTILE_LAYER_WITHOUT_FORWARD | OCTILE_LAYER_WITHOUT_BACKWARD | OCTILE_LAYER_KEEP_W;
  layer.run(0, kUses, [&](octile_layer* handle) {
    return octile_layer_quantize(handle, &args, place.stream);
  });
  codes_out.finish();
  scales_out.finish();
}

}  // namespace octile::binding
