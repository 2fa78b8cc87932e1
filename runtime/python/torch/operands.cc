#include "operands.h"

#include <string>

#include "plans.h"
#include "recipes.h"
#include "types.h"

namespace octile::binding {
namespace {

const octile_tensor_type& type_of_role(std::int64_t recipe, std::int64_t role) {
  check_recipe(recipe);
  if (is_delayed(recipe)) refuse("recipe is 'delayed', whose scales are those of a layer");
  switch (role) {
    case 0:
      return type_of_x(recipe);
    case 1:
      return type_of_w(recipe);
    case 2:
      return type_of_dy(recipe);
    default:
      refuse("role is " + std::to_string(role) + "; allowed are 0 to 2");
  }
}

// A tensor as rows, and the quantiser's problem up to its outputs.
struct Rows {
  Rows(const Tensor& x, const octile_tensor_type& type)
      : tensor(contiguous(x)), place(place_of(tensor)) {
    if (x.dim() < 1) refuse("x has no dimension; allowed are 1 and more");
    cols = x.size(x.dim() - 1);
    count = cols == 0 ? 0 : x.numel() / cols;
    text = "quantize rows=? cols=" + std::to_string(cols) + " x=" + name_of(float_type(x, "x")) +
           " q=" + text_of(type);
  }

  Tensor tensor;
  Place place;
  std::int64_t count = 0, cols = 0;
  std::string text;
};

const float* encode_of(const std::optional<Tensor>& encode, std::int64_t recipe,
                       const Place& place) {
  if (!encode) return nullptr;
  if (!has_tensor_scales(recipe))
    refuse("encode is given; allowed is None, because the recipe has no scale for a tensor");
  check_same_place(*encode, place, "encode");
  if (type_of(*encode) != torch_type(OCTILE_FP32) || encode->numel() != 1)
    refuse("encode is " + shape_text(*encode) + "; allowed is float32 [1]");
  return static_cast<const float*>(encode->data_ptr());
}

Quantized output_of(const Rows& rows, const octile_tensor_type& type, bool wanted,
                    bool transposed) {
  if (!wanted) return {.codes = nothing(rows.place), .scales = nothing(rows.place)};
  const octile_quantized_layout layout = layout_of(type, rows.count, rows.cols, transposed);
  return {.codes = empty(rows.place, {layout.data_rows, transposed ? layout.data_ld : rows.cols},
                         torch_type(type.dtype)),
          .scales = empty(rows.place, {layout.scale_rows * layout.scale_ld},
                          torch_scale_type(type.scale_format))};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> quantize_operand(Tensor x, std::int64_t recipe,
                                                                    std::int64_t role, bool rowwise,
                                                                    bool transposed, bool sums,
                                                                    std::optional<Tensor> encode) {
  const octile_tensor_type& type = type_of_role(recipe, role);
  if (!rowwise && !transposed) refuse("rowwise and transposed are false; allowed: one of them");
  const Rows rows(x, type);
  const Place& place = rows.place;
  const OnDevice device(place);
  Tensor added = sums ? empty(place, {rows.cols}, torch_type(OCTILE_FP32)) : nothing(place);
  if (sums && rows.count == 0) fill_zero(added);
  const QuantizeCall call{.rows = rows.count,
                          .x = rows.tensor.data_ptr(),
                          .ldx = rows.cols,
                          .sums = sums ? static_cast<float*>(added.data_ptr()) : nullptr,
                          .encode = encode_of(encode, recipe, place)};
  const std::string text = rows.text + (encode ? " policy=delayed" : "") +
                           (sums ? " dbias=1" : "") +
                           (!transposed ? " out=row"
                            : rowwise   ? " out=both"
                                        : " out=col");
  const Quantized row = output_of(rows, type, rowwise, false);
  const Quantized col = output_of(rows, type, transposed, true);
  quantize(plan_of(text, place), place, call,
           {.rowwise = rowwise ? target_of(row) : Target{},
            .transposed = transposed ? target_of(col) : Target{}});
  return {row.codes, row.scales, col.codes, col.scales, added};
}

Tensor operand_amax(Tensor x, std::int64_t recipe, std::int64_t role) {
  const octile_tensor_type& type = type_of_role(recipe, role);
  if (!has_tensor_scales(recipe))
    refuse("recipe is '" + std::string(recipe_name(recipe)) +
           "'; allowed are those with a scale for each tensor");
  const Rows rows(x, type);
  const OnDevice device(rows.place);
  Tensor amax = empty(rows.place, {1}, torch_type(OCTILE_FP32));
  fill_zero(amax);
  quantize(plan_of(rows.text + " out=row shard=amax", rows.place), rows.place,
           {.rows = rows.count,
            .x = rows.tensor.data_ptr(),
            .ldx = rows.cols,
            .amax = static_cast<float*>(amax.data_ptr())},
           {});
  return amax;
}

}  // namespace octile::binding
