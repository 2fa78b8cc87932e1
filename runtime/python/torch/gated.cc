#include "gated.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "functional.h"
#include "layer_handles.h"
#include "passes.h"
#include "plans.h"
#include "types.h"

namespace octile::binding {
namespace {

// The halves of two layers' columns begin where blocks of every granularity do.
constexpr std::int64_t kColumnBlock = 128;

void check_activation(const std::string& activation) {
  static constexpr std::array kNames{"relu", "relu2", "silu", "gelu", "gelu_tanh"};
  if (std::ranges::find(kNames, std::string_view(activation)) == kNames.end())
    refuse("activation is '" + activation +
           "'; allowed are 'relu', 'relu2', 'silu', 'gelu' and 'gelu_tanh'");
}

// A tensor [..., columns] as a matrix: itself, as long as one stride leads from row to row.
struct Matrix {
  Tensor tensor;
  std::int64_t ld = 0;
  std::int64_t first = 0;  // the column that it begins with

  const void* data() const {
    return static_cast<const char*>(tensor.data_ptr()) +
           first * static_cast<std::int64_t>(tensor.element_size());
  }
};

Matrix matrix_of(const Tensor& tensor) {
  std::int64_t ld = 0, next = 0;
  bool one_stride = tensor.stride(tensor.dim() - 1) == 1;
  for (std::int64_t i = tensor.dim() - 2; i >= 0; --i) {
    if (tensor.size(i) == 1) continue;
    if (ld == 0) ld = next = tensor.stride(i);
    one_stride = one_stride && tensor.stride(i) == next;
    next = tensor.stride(i) * tensor.size(i);
  }
  const std::int64_t columns = tensor.size(tensor.dim() - 1);
  if (one_stride && (ld == 0 || ld >= columns)) return {tensor, std::max(ld, columns)};
  return {contiguous(tensor), columns};
}

// The inputs of an activation, checked, and of its gradient dh too.
struct Inputs {
  Place place;
  octile_dtype type{};
  std::int64_t tokens = 0, columns = 0;
  std::vector<Matrix> matrices{};
  const std::int32_t* offsets = nullptr;  // of groups of rows
  std::int64_t groups = 0;
  const float* factors = nullptr;  // of each row
  const float* encode = nullptr;   // the scale of another copy
};

void check_like(const Tensor& tensor, const Tensor& gate, const Place& place,
                const std::string& name) {
  check_same_place(tensor, place, name);
  bool same = tensor.dim() == gate.dim() && type_of(tensor) == type_of(gate);
  for (std::int64_t i = 0; same && i < gate.dim(); ++i) same = tensor.size(i) == gate.size(i);
  if (!same)
    refuse(name + " is " + shape_text(tensor) + "; allowed is " + shape_text(gate) +
           " of gate's type");
}

Inputs inputs_of(const Tensor* dh, const Tensor& gate, const std::optional<Tensor>& up) {
  Inputs inputs{.place = place_of(gate), .type = float_type(gate, "gate")};
  if (gate.dim() < 1) refuse("gate has no dimension; allowed are 1 and more");
  inputs.columns = gate.size(gate.dim() - 1);
  if (inputs.columns == 0 || inputs.columns % kMultiple != 0)
    refuse("gate is " + shape_text(gate) +
           "; allowed is a last dimension that is a multiple of 16 above 0");
  inputs.tokens = gate.numel() / inputs.columns;
  if (dh != nullptr) {
    check_like(*dh, gate, inputs.place, "dh");
    inputs.matrices.push_back(matrix_of(*dh));
  }
  inputs.matrices.push_back(matrix_of(gate));
  if (up) {
    check_like(*up, gate, inputs.place, "up");
    inputs.matrices.push_back(matrix_of(*up));
  }
  return inputs;
}

void read_groups(const std::optional<Tensor>& offsets, Inputs& inputs) {
  if (!offsets) return;
  check_same_place(*offsets, inputs.place, "offsets");
  if (type_of(*offsets) != torch_int32() || offsets->dim() != 1 || !offsets->is_contiguous() ||
      offsets->size(0) < 2)
    refuse("offsets is " + shape_text(*offsets) + "; allowed is int32 [groups + 1], contiguous");
  inputs.offsets = static_cast<const std::int32_t*>(offsets->data_ptr());
  inputs.groups = offsets->size(0) - 1;
}

void read_factors(const std::optional<Tensor>& factors, Inputs& inputs) {
  if (!factors) return;
  check_same_place(*factors, inputs.place, "factors");
  if (float_type(*factors, "factors") != OCTILE_FP32 || !factors->is_contiguous() ||
      factors->numel() != inputs.tokens)
    refuse("factors is " + shape_text(*factors) + "; allowed is fp32 [" +
           std::to_string(inputs.tokens) + "], contiguous");
  inputs.factors = static_cast<const float*>(factors->data_ptr());
}

void read_encode(const std::optional<Tensor>& encode, std::int64_t recipe, Inputs& inputs) {
  if (!encode) return;
  if (!has_tensor_scales(recipe) || inputs.groups > 0)
    refuse("encode is given; allowed: None, unless the recipe has one scale a tensor");
  check_same_place(*encode, inputs.place, "encode");
  if (float_type(*encode, "encode") != OCTILE_FP32 || encode->numel() != 1)
    refuse("encode is " + shape_text(*encode) + "; allowed is fp32 [1]");
  inputs.encode = static_cast<const float*>(encode->data_ptr());
}

// A quantiser with a computed source. given: its scale.
struct Computed {
  std::string source;
  bool sums = false, rowwise = false, transposed = false, grouped = false, weighted = false,
       given = false;
};

std::string problem_of(octile_dtype type, std::int64_t columns, const octile_tensor_type& kind,
                       const Computed& what) {
  return "quantize rows=? cols=" + std::to_string(columns) + " x=" + name_of(type) +
         " q=" + text_of(kind) + " src=" + what.source + (what.weighted ? " weighted=1" : "") +
         (what.given ? " policy=delayed" : "") + (what.sums ? " dbias=1" : "") +
         (what.grouped ? " group=contiguous" : "") +
         (!what.transposed ? " out=row"
          : what.rowwise   ? " out=both"
                           : " out=col");
}
std::string source_of(const std::string& activation, bool gated) {
  return activation + (gated ? "_mul" : "");
}

// Codes and flat scales.
Quantized output_of(const octile_quantized_layout& layout, const octile_tensor_type& kind,
                    const Place& place, std::int64_t width) {
  return {.codes = empty(place, {layout.data_rows, width}, torch_type(kind.dtype)),
          .scales = empty(place, {layout.scale_rows * layout.scale_ld},
                          torch_scale_type(kind.scale_format))};
}

// As the plan lays out a copy.
octile_quantized_layout layout_in(octile_plan* plan, const Inputs& in, bool transposed) {
  octile_quantized_layout layout{};
  layout.struct_size = sizeof layout;
  check(octile_plan_quantized_layout(plan, in.tokens, in.groups, transposed ? 1 : 0, &layout));
  return layout;
}

struct Copies {
  octile_quantized_layout row{}, col{};
  std::optional<Quantized> rowwise, transposed;
};

Copies quantize_source(const Inputs& in, const std::string& source, std::int64_t columns,
                       const octile_tensor_type& kind, bool rowwise, bool transposed, float* sums,
                       float* recorded = nullptr) {
  Copies made;
  const Computed what{.source = source,
                      .sums = sums != nullptr,
                      .rowwise = rowwise,
                      .transposed = transposed,
                      .grouped = in.groups > 0,
                      .weighted = in.factors != nullptr,
                      .given = in.encode != nullptr};
  octile_plan* plan = plan_of(problem_of(in.type, columns, kind, what), in.place);
  QuantizeCall call{.rows = in.tokens,
                    .x = in.matrices[0].data(),
                    .ldx = in.matrices[0].ld,
                    .offsets = in.offsets,
                    .groups = in.groups,
                    .row_factor = in.factors,
                    .sums = sums,
                    .encode = in.encode,
                    .recorded = recorded};
  if (in.matrices.size() > 1) {
    call.x1 = in.matrices[1].data();
    call.ldx1 = in.matrices[1].ld;
  }
  if (in.matrices.size() > 2) {
    call.x2 = in.matrices[2].data();
    call.ldx2 = in.matrices[2].ld;
  }
  QuantizeOutputs outputs;
  if (rowwise) {
    made.row = layout_in(plan, in, false);
    made.rowwise = output_of(made.row, kind, in.place, columns);
    outputs.rowwise = target_of(*made.rowwise);
  }
  if (transposed) {
    made.col = layout_in(plan, in, true);
    made.transposed = output_of(made.col, kind, in.place, made.col.data_ld);
    outputs.transposed = target_of(*made.transposed);
  }
  quantize(plan, in.place, call, outputs);
  return made;
}

// Returns where the scales of a copy have those of the columns from `first` on, in bytes.
std::int64_t scale_offset(const octile_tensor_type& kind, const octile_quantized_layout& layout,
                          bool transposed, std::int64_t first) {
  const std::int64_t bytes = scale_bytes(kind.scale_format);
  switch (kind.granularity) {
    case OCTILE_SCALE_1X128:  // a row of scales for each block of columns, or of rows
      return transposed ? first * bytes : first / kColumnBlock * layout.scale_ld * bytes;
    case OCTILE_SCALE_1X32:  // a row of scales for each row of the copy
      return transposed ? first * layout.scale_ld * bytes : first / 32 * bytes;
    case OCTILE_SCALE_PER_ROW:
      return transposed ? first * bytes : 0;
    case OCTILE_SCALE_NONE:
    case OCTILE_SCALE_PER_TENSOR:
    case OCTILE_SCALE_128X128:
    case OCTILE_SCALE_32X32:
      break;
  }
  return 0;
}

octile_layer_copy part_of(const Quantized& copy, std::int64_t codes, std::int64_t scales) {
  return {static_cast<char*>(copy.codes.data_ptr()) + codes,
          static_cast<char*>(copy.scales.data_ptr()) + scales};
}

// Returns the columns from `first` on as the dY of a layer.
octile_layer_operand operand_of(const Copies& copies, const octile_tensor_type& kind,
                                std::int64_t columns, std::int64_t first, bool some) {
  octile_layer_operand dy{};
  dy.struct_size = sizeof dy;
  dy.state = OCTILE_LAYER_CURRENT;
  dy.whole_columns = columns;
  if (!some) return dy;
  if (copies.rowwise)
    dy.rowwise = part_of(*copies.rowwise, first, scale_offset(kind, copies.row, false, first));
  if (copies.transposed)
    dy.transposed = part_of(*copies.transposed, first * copies.col.data_ld,
                            scale_offset(kind, copies.col, true, first));
  return dy;
}

// Codes and scales of the gradients of gate and up, and what dX is like.
struct QuantizedGradients {
  const Tensor &codes, &scales, &transposed, &transposed_scales, &like;
  std::int64_t columns, first;
};

// Throws unless a copy is as quantize_gradients returns it.
void check_given(const Quantized& copy, const octile_quantized_layout& layout, std::int64_t width,
                 const octile_tensor_type& kind, const Place& place, const std::string& name) {
  check_copy(copy.codes, kind, layout.data_rows, width, place, name);
  check_scales(copy.scales, kind.scale_format, layout.scale_rows * layout.scale_ld, place,
               name + "_scales");
}

// The gradients of one layer, whose dY is columns of a quantised matrix.
Gradients run_backward(const QuantizedGradients& dy, const GivenWeight& given, const CopyOfX& kept,
                       std::int64_t recipe, Wanted wanted, const std::optional<Tensor>& sentry) {
  check_recipe(recipe);
  if (is_delayed(recipe)) refuse("recipe is 'delayed', whose scales are those of a layer");
  const Tensor& weight = given.tensor;
  const Place place = place_of(dy.like);
  if (dy.like.dim() < 1) refuse("like has no dimension; allowed are 1 and more");
  std::int64_t tokens = 1;
  for (std::int64_t i = 0; i + 1 < dy.like.dim(); ++i) tokens *= dy.like.size(i);
  const std::int64_t n = weight.dim() == 2 ? weight.size(0) : 0;
  if (n == 0 || n % kMultiple != 0 || weight.size(1) == 0 || weight.size(1) % kMultiple != 0)
    refuse("weight is " + shape_text(weight) + "; allowed is [n, k], both multiples of 16 above 0");
  check_same_place(weight, place, "weight");
  if (dy.first < 0 || dy.first % kColumnBlock != 0 || dy.first > dy.columns - n)
    refuse("first is " + std::to_string(dy.first) + "; allowed are multiples of " +
           std::to_string(kColumnBlock) + " with the weight's " + std::to_string(n) +
           " columns within " + std::to_string(dy.columns));
  const OnDevice device(place);
  const octile_tensor_type& kind = type_of_dy(recipe);
  Copies copies;
  if (wanted.dx) {
    copies.row = layout_of(kind, tokens, dy.columns, false);
    copies.rowwise = Quantized{.codes = aligned(dy.codes), .scales = aligned(dy.scales)};
    check_given(*copies.rowwise, copies.row, dy.columns, kind, place, "codes");
  }
  if (wanted.dw) {
    copies.col = layout_of(kind, tokens, dy.columns, true);
    copies.transposed =
        Quantized{.codes = aligned(dy.transposed), .scales = aligned(dy.transposed_scales)};
    check_given(*copies.transposed, copies.col, copies.col.data_ld, kind, place, "transposed");
  }
  const octile_layer_operand operand = operand_of(copies, kind, dy.columns, dy.first, tokens > 0);
  wanted.dy = &operand;
  const Shape shape{.place = place, .tokens = tokens, .n = n, .k = weight.size(1)};
  return backward(dy.like, given, kept,
                  common_of(recipe, shape, given.tensor, std::nullopt, sentry), wanted);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> quantize_activation(
    Tensor gate, std::optional<Tensor> up, std::string activation, std::int64_t recipe,
    bool rowwise, bool transposed, std::optional<Tensor> offsets, std::optional<Tensor> factors,
    std::optional<Tensor> encode) {
  check_recipe(recipe);
  check_activation(activation);
  if (is_delayed(recipe)) refuse("recipe is 'delayed', whose scales are those of a layer");
  if (!rowwise && !transposed) refuse("rowwise and transposed are false; allowed: one of them");
  Inputs in = inputs_of(nullptr, gate, up);
  read_groups(offsets, in);
  read_factors(factors, in);
  read_encode(encode, recipe, in);
  const OnDevice device(in.place);
  const bool records = has_tensor_scales(recipe) && in.groups == 0;
  Tensor scale = nothing(in.place);
  if (records) scale = empty(in.place, {1}, torch_type(OCTILE_FP32));
  Copies made = quantize_source(
      in, source_of(activation, up.has_value()), in.columns, type_of_x(recipe), rowwise, transposed,
      nullptr, records && !encode ? static_cast<float*>(scale.data_ptr()) : nullptr);
  const Quantized none{.codes = nothing(in.place), .scales = nothing(in.place)};
  const Quantized row = made.rowwise.value_or(none), col = made.transposed.value_or(none);
  return {row.codes, row.scales, col.codes, col.scales, scale};
}

Tensor mlp_output(Tensor x, Tensor gate, std::optional<Tensor> up, Tensor down,
                  std::optional<Tensor> gate_bias, std::optional<Tensor> up_bias,
                  std::optional<Tensor> down_bias, std::string activation, std::int64_t recipe,
                  std::optional<Tensor> gate_sentry, std::optional<Tensor> up_sentry,
                  std::optional<Tensor> down_sentry, std::optional<Tensor> gate_scales,
                  std::optional<Tensor> up_scales, std::optional<Tensor> down_scales) {
  check_recipe(recipe);
  check_activation(activation);
  if (is_delayed(recipe)) refuse("recipe is 'delayed', whose scales are those of a layer");
  if (!up && (up_bias || up_sentry || up_scales))
    refuse("up_bias, up_sentry or up_scales is given; allowed: None without up");
  struct LayerOf {
    const Tensor& weight;
    const std::optional<Tensor>&bias, &sentry, &scales;
  };
  // like: a tensor of the result's leading sizes and type.
  const auto multiply = [&](const Tensor& like, const Quantized& copy, const LayerOf& layer) {
    const Shape shape = linear_shape(copy.codes, layer.weight, Given::kX);
    const Common common = common_of(recipe, shape, layer.weight, std::nullopt, layer.sentry);
    return forward(like, {layer.weight, layer.scales, OCTILE_BF16}, layer.bias, common, false,
                   false, CopyOfX{.codes = copy.codes, .scales = copy.scales})
        .y;
  };
  const Quantized of_x = quantize_rows(x, recipe);
  const Tensor left = multiply(x, of_x, {gate, gate_bias, gate_sentry, gate_scales});
  std::optional<Tensor> right;
  if (up) right = multiply(x, of_x, {*up, up_bias, up_sentry, up_scales});
  Inputs in = inputs_of(nullptr, left, right);
  if (const std::int64_t columns = down.dim() == 2 ? down.size(1) : 0;
      !up && in.columns == 2 * columns) {
    in.columns = columns;
    in.matrices.push_back(in.matrices[0]);
    in.matrices[1].first = columns;
  }
  const OnDevice device(in.place);
  const Copies h = quantize_source(in, source_of(activation, in.matrices.size() > 1), in.columns,
                                   type_of_x(recipe), true, false, nullptr);
  return multiply(left, *h.rowwise, {down, down_bias, down_sentry, down_scales});
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> quantize_gradients(
    Tensor dh, Tensor gate, std::optional<Tensor> up, std::string activation, std::int64_t recipe,
    bool rowwise, bool transposed, bool sums, std::optional<Tensor> offsets,
    std::optional<Tensor> factors) {
  check_recipe(recipe);
  check_activation(activation);
  if (is_delayed(recipe)) refuse("recipe is 'delayed', whose scales are those of a layer");
  if (!rowwise && !transposed) refuse("rowwise and transposed are false; allowed: one of them");
  if (sums && offsets) refuse("sums is true and offsets are given; allowed: no sums of groups");
  Inputs in = inputs_of(&dh, gate, up);
  read_groups(offsets, in);
  read_factors(factors, in);
  const OnDevice device(in.place);
  const std::int64_t columns = in.columns * (up ? 2 : 1);
  Tensor added = sums ? empty(in.place, {columns}, torch_type(OCTILE_FP32)) : nothing(in.place);
  if (sums && in.tokens == 0) fill_zero(added);
  Copies made =
      quantize_source(in, "d" + source_of(activation, up.has_value()), columns, type_of_dy(recipe),
                      rowwise, transposed, sums ? static_cast<float*>(added.data_ptr()) : nullptr);
  const Quantized none{.codes = nothing(in.place), .scales = nothing(in.place)};
  const Quantized row = made.rowwise.value_or(none), col = made.transposed.value_or(none);
  return {row.codes, row.scales, col.codes, col.scales, added};
}

std::tuple<Tensor, Tensor> quantized_backward(
    Tensor codes, Tensor scales, Tensor transposed, Tensor transposed_scales, Tensor like,
    std::int64_t columns, std::int64_t first, Tensor weight, Tensor x_codes, Tensor x_scales,
    std::int64_t recipe, bool input_gradient, bool weight_gradient, std::optional<Tensor> sentry,
    std::optional<Tensor> w_scales, std::int64_t w_gradient) {
  const auto [dx, dw, db] =
      run_backward({codes, scales, transposed, transposed_scales, like, columns, first},
                   {weight, w_scales, w_gradient}, {x_codes, x_scales}, recipe,
                   {.dx = input_gradient, .dw = weight_gradient}, sentry);
  return {dx, dw};
}

void quantized_backward_into(Tensor transposed, Tensor transposed_scales, Tensor like,
                             std::int64_t columns, std::int64_t first, Tensor weight,
                             Tensor x_codes, Tensor x_scales, Tensor main_grad, std::int64_t recipe,
                             std::optional<Tensor> sentry, std::optional<Tensor> w_scales,
                             std::int64_t w_gradient) {
  check_main_grad(main_grad, weight, place_of(like));
  run_backward({like, like, transposed, transposed_scales, like, columns, first},
               {weight, w_scales, w_gradient}, {x_codes, x_scales}, recipe,
               {.dw = true, .main_grad = &main_grad}, sentry);
}

void prepare_activation(Tensor x, std::string activation, std::int64_t recipe, std::int64_t i,
                        std::int64_t lo, std::int64_t hi, bool gated, bool bias, bool training,
                        bool grouped, bool weighted) {
  check_recipe(recipe);
  check_activation(activation);
  const Place place = place_of(x);
  const OnDevice device(place);
  const octile_dtype type = float_type(x, "x");
  const std::string source = source_of(activation, gated);
  Computed what{.source = source, .rowwise = true, .grouped = grouped, .weighted = weighted};
  std::vector<std::string> texts{problem_of(type, i, type_of_x(recipe), what)};
  if (training) {
    what.transposed = true;
    what.rowwise = false;
    what.given = has_tensor_scales(recipe);
    texts.push_back(problem_of(type, i, type_of_x(recipe), what));
    what.given = false;
    what.rowwise = true;
    what.sums = bias;
    what.source = "d" + source;
    texts.push_back(problem_of(type, gated ? 2 * i : i, type_of_dy(recipe), what));
  }
  for (const std::string& text : texts) prepare(plan_of(text, place), lo, hi);
}

}  // namespace octile::binding
