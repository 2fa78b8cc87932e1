#include "gated.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "layer_handles.h"
#include "passes.h"
#include "plans.h"
#include "types.h"

namespace octile::binding {
namespace {

// The halves of two layers' columns begin where blocks of every granularity do.
constexpr std::int64_t kColumnBlock = 128;

void check_activation(const std::string& activation) {
  static constexpr std::array kNames{"relu", "relu2", "silu", "gelu_tanh"};
  if (std::ranges::find(kNames, std::string_view(activation)) == kNames.end())
    refuse("activation is '" + activation +
           "'; allowed are 'relu', 'relu2', 'silu' and 'gelu_tanh'");
}

// A tensor [..., columns] as a matrix: itself, as long as one stride leads from row to row.
struct Matrix {
  Tensor tensor;
  std::int64_t ld = 0;
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

// A quantiser with a computed source.
std::string problem_of(octile_dtype type, std::int64_t columns, const octile_tensor_type& kind,
                       const std::string& source, bool sums, bool rowwise, bool transposed) {
  return "quantize rows=? cols=" + std::to_string(columns) + " x=" + name_of(type) +
         " q=" + text_of(kind) + " src=" + source + (sums ? " dbias=1" : "") +
         (!transposed ? " out=row"
          : rowwise   ? " out=both"
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

struct Copies {
  octile_quantized_layout row{}, col{};
  std::optional<Quantized> rowwise, transposed;
};

Copies quantize_source(const Inputs& in, const std::string& source, std::int64_t columns,
                       const octile_tensor_type& kind, bool rowwise, bool transposed, float* sums) {
  Copies made;
  octile_plan* plan = plan_of(
      problem_of(in.type, columns, kind, source, sums != nullptr, rowwise, transposed), in.place);
  QuantizeCall call{.rows = in.tokens,
                    .x = in.matrices[0].tensor.data_ptr(),
                    .ldx = in.matrices[0].ld,
                    .sums = sums};
  if (in.matrices.size() > 1) {
    call.x1 = in.matrices[1].tensor.data_ptr();
    call.ldx1 = in.matrices[1].ld;
  }
  if (in.matrices.size() > 2) {
    call.x2 = in.matrices[2].tensor.data_ptr();
    call.ldx2 = in.matrices[2].ld;
  }
  QuantizeOutputs outputs;
  if (rowwise) {
    made.row = layout_of(kind, in.tokens, columns, false);
    made.rowwise = output_of(made.row, kind, in.place, columns);
    outputs.rowwise = target_of(*made.rowwise);
  }
  if (transposed) {
    made.col = layout_of(kind, in.tokens, columns, true);
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

Shape shape_of(const Inputs& in, const Tensor& weight, std::int64_t n, const char* name) {
  if (weight.dim() != 2 || weight.size(0) != n || weight.size(1) == 0 ||
      weight.size(1) % kMultiple != 0)
    refuse(std::string(name) + " is " + shape_text(weight) + "; allowed is [" + std::to_string(n) +
           ", k], where k is a multiple of 16 above 0");
  check_same_place(weight, in.place, name);
  return {.place = in.place, .tokens = in.tokens, .n = n, .k = weight.size(1)};
}

struct BackwardCall {
  const Tensor &dh, &gate;
  const std::optional<Tensor>& up;
  const Tensor& weight;
  const std::optional<Tensor>& up_weight;
  const CopyOfX kept;
  const std::string& activation;
  std::int64_t recipe;
  bool dx, dw, dw_up, db;
  const std::optional<Tensor>&main_grad, &up_main_grad, &sentry, &up_sentry;
};

void check_call(const BackwardCall& call, const Inputs& in) {
  check_recipe(call.recipe);
  check_activation(call.activation);
  if (is_delayed(call.recipe)) refuse("recipe is 'delayed', whose scales are those of a layer");
  if (!call.up_weight) return;
  if (!call.up) refuse("up_weight is given and up is None");
  if (in.columns % kColumnBlock != 0)
    refuse("gate is " + shape_text(call.gate) +
           "; allowed with up_weight is a last dimension that is a multiple of 128");
}

// A layer that gate, up or both come from.
struct Producer {
  const Tensor& weight;
  bool wanted;              // its gradient
  const Tensor* main_grad;  // to which that is added, or null
  Common common;
  std::int64_t first;  // of its columns
};

std::vector<Producer> sources_of(const BackwardCall& call, const Inputs& in, std::int64_t columns) {
  std::vector<Producer> sources;
  const auto add = [&](const Tensor& weight, const char* name, bool wanted,
                       const std::optional<Tensor>& main_grad, const std::optional<Tensor>& sentry,
                       std::int64_t first) {
    const Shape shape = shape_of(in, weight, call.up_weight ? in.columns : columns, name);
    if (main_grad) check_main_grad(*main_grad, weight, in.place);
    sources.push_back({weight, wanted, wanted && main_grad ? &*main_grad : nullptr,
                       common_of(call.recipe, shape, std::nullopt, sentry), first});
  };
  add(call.weight, "weight", call.dw, call.main_grad, call.sentry, 0);
  if (!call.up_weight) return sources;
  add(*call.up_weight, "up_weight", call.dw_up, call.up_main_grad, call.up_sentry, in.columns);
  if (sources[1].common.shape.k != sources[0].common.shape.k)
    refuse("up_weight is " + shape_text(*call.up_weight) + "; allowed is " +
           shape_text(call.weight));
  return sources;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> run_backward(const BackwardCall& call) {
  const Inputs in = inputs_of(&call.dh, call.gate, call.up);
  check_call(call, in);
  const Place& place = in.place;
  const OnDevice device(place);
  const octile_tensor_type& kind = type_of_dy(call.recipe);
  const std::int64_t columns = in.columns * (call.up ? 2 : 1);
  const std::vector<Producer> sources = sources_of(call, in, columns);
  Tensor sums = call.db ? empty(place, {columns}, torch_type(OCTILE_FP32)) : nothing(place);
  if (call.db && in.tokens == 0) fill_zero(sums);
  const bool dw = call.dw || call.dw_up;
  const Copies copies =
      quantize_source(in, "d" + source_of(call.activation, call.up.has_value()), columns, kind,
                      call.dx || !dw, dw, call.db ? static_cast<float*>(sums.data_ptr()) : nullptr);

  Gradients first{.dx = nothing(place), .dw = nothing(place), .db = sums}, second = first;
  for (const Producer& source : sources) {
    const bool adds = source.first > 0;
    const octile_layer_operand dy = operand_of(copies, kind, columns, source.first, in.tokens > 0);
    const Wanted wanted{.dx = call.dx,
                        .dw = source.wanted,
                        .main_grad = source.main_grad,
                        .dy = &dy,
                        .add_to = adds ? &first.dx : nullptr};
    if (wanted.dx || wanted.dw)
      (adds ? second : first) = backward(call.dh, source.weight, call.kept, source.common, wanted);
  }
  return {first.dx, first.dw, second.dw, sums};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> quantize_activation(Tensor gate,
                                                               std::optional<Tensor> up,
                                                               std::string activation,
                                                               std::int64_t recipe, bool rowwise,
                                                               bool transposed) {
  check_recipe(recipe);
  check_activation(activation);
  if (is_delayed(recipe)) refuse("recipe is 'delayed', whose scales are those of a layer");
  if (!rowwise && !transposed) refuse("rowwise and transposed are false; allowed: one of them");
  const Inputs in = inputs_of(nullptr, gate, up);
  const OnDevice device(in.place);
  Copies made = quantize_source(in, source_of(activation, up.has_value()), in.columns,
                                type_of_x(recipe), rowwise, transposed, nullptr);
  const Quantized none{.codes = nothing(in.place), .scales = nothing(in.place)};
  const Quantized row = made.rowwise.value_or(none), col = made.transposed.value_or(none);
  return {row.codes, row.scales, col.codes, col.scales};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> activation_backward(
    Tensor dh, Tensor gate, std::optional<Tensor> up, Tensor weight,
    std::optional<Tensor> up_weight, Tensor x_codes, Tensor x_scales, std::string activation,
    std::int64_t recipe, bool input_gradient, bool weight_gradient, bool up_weight_gradient,
    bool bias_gradient, std::optional<Tensor> sentry, std::optional<Tensor> up_sentry) {
  return activation_backward_into(dh, gate, up, weight, up_weight, x_codes, x_scales, std::nullopt,
                                  std::nullopt, activation, recipe, input_gradient, weight_gradient,
                                  up_weight_gradient, bias_gradient, sentry, up_sentry);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> activation_backward_into(
    Tensor dh, Tensor gate, std::optional<Tensor> up, Tensor weight,
    std::optional<Tensor> up_weight, Tensor x_codes, Tensor x_scales,
    std::optional<Tensor> main_grad, std::optional<Tensor> up_main_grad, std::string activation,
    std::int64_t recipe, bool input_gradient, bool weight_gradient, bool up_weight_gradient,
    bool bias_gradient, std::optional<Tensor> sentry, std::optional<Tensor> up_sentry) {
  return run_backward({.dh = dh,
                       .gate = gate,
                       .up = up,
                       .weight = weight,
                       .up_weight = up_weight,
                       .kept = {x_codes, x_scales},
                       .activation = activation,
                       .recipe = recipe,
                       .dx = input_gradient,
                       .dw = weight_gradient,
                       .dw_up = up_weight_gradient,
                       .db = bias_gradient,
                       .main_grad = main_grad,
                       .up_main_grad = up_main_grad,
                       .sentry = sentry,
                       .up_sentry = up_sentry});
}

void prepare_activation(Tensor x, Tensor weight, std::optional<Tensor> main_grad,
                        std::string activation, std::int64_t recipe, std::int64_t i, std::int64_t k,
                        std::int64_t lo, std::int64_t hi, bool gated, bool apart, bool bias,
                        bool training, bool sentry) {
  check_recipe(recipe);
  check_activation(activation);
  const Place place = place_of(x);
  const OnDevice device(place);
  const octile_dtype type = float_type(x, "x");
  const std::string source = source_of(activation, gated);
  std::vector<std::string> texts{
      problem_of(type, i, type_of_x(recipe), source, false, true, false)};
  if (training) {
    texts.push_back(problem_of(type, i, type_of_x(recipe), source, false, false, true));
    texts.push_back(
        problem_of(type, gated ? 2 * i : i, type_of_dy(recipe), "d" + source, bias, true, true));
  }
  for (const std::string& text : texts)
    check(octile_plan_prepare(plan_of(text, place), lo, hi, OCTILE_PREPARE_DEFAULT));
  if (!training || !apart) return;
  LayerKey key{.recipe = recipe,
               .n = i,
               .k = k,
               .type = type,
               .weight = float_type(weight, "weight"),
               .gradient = float_type(main_grad.value_or(weight), "main_grad"),
               .accumulate = main_grad.has_value(),
               .accumulate_input = true,
               .sentry = sentry,
               .device = device_of(place)};
  Layer::of(key).prepare(lo, hi,
                         OCTILE_LAYER_WITHOUT_FORWARD | OCTILE_LAYER_CURRENT_DY |
                             OCTILE_LAYER_KEEP_X | OCTILE_LAYER_KEEP_W |
                             OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_WEIGHT_GRADIENT);
}

}  // namespace octile::binding
