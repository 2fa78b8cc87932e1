#include "operands.h"

#include <algorithm>
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
    text = " rows=? cols=" + std::to_string(cols) + " x=" + name_of(float_type(x, "x")) +
           " q=" + text_of(type);
  }

  Tensor tensor;
  Place place;
  std::int64_t count = 0, cols = 0;
  std::string text;  // of a problem behind its operation
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

// Returns a type as the text of a weight gradient names it: the tensor core multiplies 1x128 scales
// that are powers of two.
std::string summand_text(const octile_tensor_type& type) {
  return type.granularity == OCTILE_SCALE_1X128 ? text_of(type) : operand_text(type);
}

// An operand of a sum over tokens.
struct Summand {
  Tensor codes, scales;
  std::int64_t rows = 0, k = 0, panels = 1;

  std::int64_t ld() const { return panels > 1 ? k / panels : row_stride(codes); }
  std::int64_t stride(std::int64_t all_panels) const {
    return panels > 1 ? rows * ld() : k / all_panels;
  }
};

Summand summand_of(const Tensor& codes, const Tensor& scales, const octile_tensor_type& type,
                   const Place& place, const char* argument) {
  constexpr std::int64_t kBlock = 128;
  const std::string name(argument);
  if (codes.dim() == 2) {
    check_quantized(codes, scales, type, codes.size(0), codes.size(1), place, argument);
    return {aligned_rows(codes), aligned(scales), codes.size(0), codes.size(1)};
  }
  if (codes.dim() != 3 || !codes.is_contiguous() || codes.size(2) % kBlock != 0 ||
      type_of(codes) != torch_type(type.dtype)) {
    refuse(name + " is " + shape_text(codes) +
           "; allowed is contiguous [panels, rows, tokens] of " + name_of(type.dtype) +
           ", with a multiple of 128 tokens");
  }
  check_same_place(codes, place, name);
  const std::int64_t rows = codes.size(1), k = codes.size(0) * codes.size(2);
  const octile_quantized_layout layout = layout_of(type, rows, k, false);
  check_scales(scales, type.scale_format, layout.scale_bytes / scale_bytes(type.scale_format),
               place, name + "_scale");
  return {aligned(codes), aligned(scales), rows, k, codes.size(0)};
}

}  // namespace

void sum_panels_out(Tensor a, Tensor a_scale, std::string a_type, Tensor b, Tensor b_scale,
                    std::string b_type, Tensor d) {
  const octile_tensor_type a_kind = type_named(a_type, "a_type");
  const octile_tensor_type b_kind = type_named(b_type, "b_type");
  const Place place = place_of(d);
  check_rows(d, "d");
  const Summand of_a = summand_of(a, a_scale, a_kind, place, "a");
  const Summand of_b = summand_of(b, b_scale, b_kind, place, "b");
  const std::int64_t m = d.size(0), n = d.size(1), k = of_a.k;
  const std::int64_t panels = std::max(of_a.panels, of_b.panels);
  if (of_a.rows != m || of_b.rows != n || of_b.k != k)
    refuse("a is " + shape_text(a) + ", b is " + shape_text(b) + " and d is " + shape_text(d) +
           "; allowed are a [m, k], b [n, k] and d [m, n]");
  if (panels == 1 || std::min(of_a.panels, of_b.panels) != 1)
    refuse("a is " + shape_text(a) + " and b is " + shape_text(b) +
           "; allowed is one of them in two panels or more, and the other a matrix");
  const OnDevice device(place);
  const Written result(d, aligned_rows(d));
  octile_gemm_batch strides{};
  strides.struct_size = sizeof strides;
  strides.a_stride = of_a.stride(panels);
  strides.b_stride = of_b.stride(panels);
  octile_gemm_args args{};
  args.tokens = k / panels;
  args.a = of_a.codes.data_ptr();
  args.lda = of_a.ld();
  args.a_scale = of_a.scales.data_ptr();
  args.b = of_b.codes.data_ptr();
  args.ldb = of_b.ld();
  args.b_scale = of_b.scales.data_ptr();
  args.d = result.at().data_ptr();
  args.ldd = row_stride(result.at());
  args.batch = &strides;
  const std::string text = "gemm m=" + std::to_string(m) + " n=" + std::to_string(n) +
                           " k=? a=" + summand_text(a_kind) + " b=" + summand_text(b_kind) +
                           " d=" + name_of(float_type(d, "d")) +
                           " acc=0 promote=128 batch=" + std::to_string(panels) + " sum=1";
  multiply(plan_of(text, place), place, args);
  result.finish();
}

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
  const std::string text = "quantize" + rows.text + (encode ? " policy=delayed" : "") +
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
  quantize(plan_of("amax" + rows.text, rows.place), rows.place,
           {.rows = rows.count,
            .x = rows.tensor.data_ptr(),
            .ldx = rows.cols,
            .amax = static_cast<float*>(amax.data_ptr())},
           {});
  return amax;
}

}  // namespace octile::binding
