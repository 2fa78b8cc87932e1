// The operators of the namespace "octile". Their shapes for tracing are in
// octile/torch/_operators.py.
#include <torch/csrc/stable/library.h>

#include <set>
#include <sstream>
#include <string>

#include "experts.h"
#include "functional.h"
#include "gated.h"
#include "held_weight.h"
#include "layer_handles.h"
#include "linear.h"
#include "normed.h"
#include "operands.h"
#include "pieces.h"
#include "plans.h"
#include "row_messages.h"
#include "scaling.h"
#include "weights.h"

namespace {

// The problems that calls of this process have asked, a line each.
std::string problem_texts() {
  std::set<std::string> texts;
  std::istringstream all(octile::binding::plan_problems() + octile::binding::layer_problems());
  for (std::string text; std::getline(all, text);) texts.insert(text);
  std::string lines;
  for (const std::string& text : texts) lines += text + '\n';
  return lines;
}

void define(torch::stable::detail::StableLibrary& m) {
  m.def(
      "linear_forward(Tensor x, Tensor weight, Tensor? bias, int recipe, bool keep_x, bool "
      "input_gradient, Tensor? scaling=None, Tensor? sentry=None, Tensor? codes=None, Tensor? "
      "scales=None, Tensor? w_scales=None) -> (Tensor, Tensor, Tensor)");
  m.def(
      "linear_output(Tensor x, Tensor weight, Tensor? bias, int recipe, Tensor? scaling=None, "
      "Tensor? sentry=None, Tensor? codes=None, Tensor? scales=None, Tensor? w_scales=None) -> "
      "Tensor");
  m.def(
      "quantize_input(Tensor x, int recipe, bool rowwise, bool transposed) -> (Tensor, Tensor, "
      "Tensor, Tensor)");
  m.def(
      "quantize_normed(Tensor x, Tensor rstd, Tensor weight, int recipe, bool via_bf16, Tensor? "
      "mean=None, Tensor? bias=None) -> (Tensor, Tensor)");
  m.def(
      "prepare_normed(Tensor x, int recipe, int k, bool via_bf16, int lo, int hi, bool "
      "layer=False) "
      "-> ()");
  m.def(
      "quantize_operand(Tensor x, int recipe, int role, bool rowwise, bool transposed, bool sums, "
      "Tensor? encode=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "sum_panels_out(Tensor a, Tensor a_scale, str a_type, Tensor b, Tensor b_scale, str b_type, "
      "Tensor(a!) d) -> ()");
  m.def("operand_amax(Tensor x, int recipe, int role) -> Tensor");
  m.def(
      "linear_backward(Tensor dy, Tensor weight, Tensor x_codes, Tensor x_scales, int recipe, bool "
      "input_gradient, bool weight_gradient, bool bias_gradient, Tensor? scaling=None, Tensor? "
      "sentry=None, Tensor? w_scales=None, int w_gradient=0) -> (Tensor, Tensor, Tensor)");
  m.def(
      "linear_backward_into(Tensor dy, Tensor weight, Tensor x_codes, Tensor x_scales, Tensor(a!) "
      "main_grad, int recipe, bool input_gradient, bool bias_gradient, Tensor? scaling=None, "
      "Tensor? sentry=None, Tensor? w_scales=None, int w_gradient=0) -> (Tensor, Tensor)");
  m.def(
      "quantize_activation(Tensor gate, Tensor? up, str activation, int recipe, bool rowwise, bool "
      "transposed, Tensor? offsets=None, Tensor? factors=None, Tensor? encode=None) -> (Tensor, "
      "Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "mlp_output(Tensor x, Tensor gate, Tensor? up, Tensor down, Tensor? gate_bias, Tensor? "
      "up_bias, Tensor? down_bias, str activation, int recipe, Tensor? gate_sentry=None, Tensor? "
      "up_sentry=None, Tensor? down_sentry=None, Tensor? gate_scales=None, Tensor? "
      "up_scales=None, Tensor? down_scales=None) -> Tensor");
  m.def(
      "quantize_gradients(Tensor dh, Tensor gate, Tensor? up, str activation, int recipe, bool "
      "rowwise, bool transposed, bool sums, Tensor? offsets=None, Tensor? factors=None) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "quantized_backward(Tensor codes, Tensor scales, Tensor transposed, Tensor "
      "transposed_scales, Tensor like, int columns, int first, Tensor weight, Tensor x_codes, "
      "Tensor x_scales, int recipe, bool input_gradient, bool weight_gradient, Tensor? "
      "sentry=None, Tensor? w_scales=None, int w_gradient=0) -> (Tensor, Tensor)");
  m.def(
      "quantized_backward_into(Tensor transposed, Tensor transposed_scales, Tensor like, int "
      "columns, int first, Tensor weight, Tensor x_codes, Tensor x_scales, Tensor(a!) main_grad, "
      "int recipe, Tensor? sentry=None, Tensor? w_scales=None, int w_gradient=0) -> ()");
  m.def(
      "prepare_activation(Tensor x, str activation, int recipe, int i, int lo, int hi, bool "
      "gated, bool bias, bool training, bool grouped=False, bool weighted=False) -> ()");
  m.def(
      "experts_forward(Tensor x, Tensor weight, Tensor offsets, int recipe, bool keep_x, bool "
      "input_gradient, Tensor? scaling=None, Tensor? sentry=None, Tensor? w_scales=None, Tensor? "
      "codes=None, Tensor? scales=None) -> (Tensor, Tensor, Tensor)");
  m.def(
      "experts_backward(Tensor dy, Tensor weight, Tensor offsets, Tensor x_codes, Tensor x_scales, "
      "int recipe, bool input_gradient, bool weight_gradient, Tensor? scaling=None, Tensor? "
      "sentry=None, Tensor? w_scales=None, int w_gradient=0, Tensor? dy_codes=None, Tensor? "
      "dy_scales=None, Tensor? dy_transposed=None, Tensor? dy_transposed_scales=None) -> (Tensor, "
      "Tensor)");
  m.def(
      "experts_backward_into(Tensor dy, Tensor weight, Tensor offsets, Tensor x_codes, Tensor "
      "x_scales, Tensor(a!) main_grad, int recipe, bool input_gradient, Tensor? scaling=None, "
      "Tensor? sentry=None, Tensor? w_scales=None, int w_gradient=0, Tensor? dy_codes=None, "
      "Tensor? "
      "dy_scales=None, Tensor? dy_transposed=None, Tensor? dy_transposed_scales=None) -> Tensor");
  m.def("quantize_messages(Tensor x, str type) -> Tensor");
  m.def("open_messages(Tensor messages, Tensor index, str type, int columns) -> (Tensor, Tensor)");
  m.def("prepare_messages(Tensor x, int recipe, int columns, int lo, int hi, bool training) -> ()");
  m.def(
      "requantize_groups(Tensor codes, Tensor scales, Tensor offsets, str type) -> (Tensor, "
      "Tensor)");
  m.def("quantize_weight(Tensor weight, int recipe, Tensor(a!) codes, Tensor(b!) scales) -> ()");
  m.def(
      "prepare_linear(Tensor x, Tensor weight, Tensor? bias, Tensor? main_grad, int recipe, int n, "
      "int k, int lo, int hi, bool training, bool sentry=False, int history=0, bool held=False) -> "
      "()");
  m.def(
      "prepare_experts(Tensor x, Tensor weight, Tensor? main_grad, int recipe, int experts, int n, "
      "int k, int lo, int hi, bool training, bool sentry=False, int history=0, bool held=False) -> "
      "()");
  m.def("update_scales(Tensor(a!) states, int experts, int recipe, int choice, int margin) -> ()");
  m.def("maxima_recorded(Tensor scaling) -> bool");
  m.def("scales_belong(Tensor scaling, Tensor? weight, bool seen) -> ()");
  m.def("scales_are_old(Tensor scaling) -> ()");
  m.def("scales_were_old(Tensor scaling) -> bool");
  m.def("forget_maxima(int address) -> ()");
  m.def("keep_weight(Tensor weight) -> int");
  m.def("forget_weight(int token) -> ()");
  m.def("trust_weight(int token, bool trusted) -> ()");
  m.def("keep_copies(int token, int keeping) -> ()");
  m.def("gather_weight(Tensor weight, int token, bool same) -> int");
  m.def("release_weight(Tensor weight, int token) -> ()");
  m.def("weight_changed(int token) -> ()");
  m.def("replays_see_changes() -> ()");
  m.def("weights_changed() -> ()");
  m.def("weight_quantizations() -> int");
  m.def("weight_copies_made() -> int");
  m.def("make_pieces(Tensor[] x, Tensor[] buffers, Tensor table, str type, bool via_bf16) -> int");
  m.def("run_pieces(Tensor(a!)[] buffers, int token, int step, int first, int count) -> ()");
  m.def("forget_pieces(int token) -> ()");
  m.def("problem_texts() -> str");
  m.def("tune_prepares(float seconds) -> ()");
  m.def("quantize_one(Tensor x, str type, bool transposed) -> (Tensor, Tensor)");
  m.def("quantize_both(Tensor x, str type) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("quantize_masked(Tensor x, Tensor counts, str type) -> (Tensor, Tensor)");
  m.def("transpose(Tensor codes, Tensor scales, str type, int cols) -> (Tensor, Tensor)");
  m.def("dequantize(Tensor codes, Tensor scales, str type, int cols, int result) -> Tensor");
  m.def(
      "gemm_out(Tensor a, Tensor a_scale, str a_type, Tensor b, Tensor b_scale, str b_type, "
      "Tensor? bias, Tensor(a!) d, int k, str tokens, bool accumulate, str promote) -> ()");
  m.def(
      "grouped_gemm_out(Tensor a, Tensor a_scale, str a_type, Tensor b, Tensor b_scale, "
      "str b_type, Tensor group_rows, Tensor(a!) d, int expected) -> ()");
  m.def(
      "prepare_gemm(Tensor d, Tensor? bias, str a_type, str b_type, int n, int k, int lo, int hi, "
      "int groups=0, bool masked=False, bool quantized=False) -> ()");
}

// One implementation serves both devices: the library has plans for each.
void implement(torch::stable::detail::StableLibrary& m) {
  using namespace octile::binding;
  m.impl("linear_forward", TORCH_BOX(&linear_forward));
  m.impl("linear_output", TORCH_BOX(&linear_output));
  m.impl("quantize_input", TORCH_BOX(&quantize_input));
  m.impl("quantize_normed", TORCH_BOX(&quantize_normed));
  m.impl("prepare_normed", TORCH_BOX(&prepare_normed));
  m.impl("quantize_operand", TORCH_BOX(&quantize_operand));
  m.impl("sum_panels_out", TORCH_BOX(&sum_panels_out));
  m.impl("operand_amax", TORCH_BOX(&operand_amax));
  m.impl("linear_backward", TORCH_BOX(&linear_backward));
  m.impl("linear_backward_into", TORCH_BOX(&linear_backward_into));
  m.impl("quantize_activation", TORCH_BOX(&quantize_activation));
  m.impl("mlp_output", TORCH_BOX(&mlp_output));
  m.impl("quantize_gradients", TORCH_BOX(&quantize_gradients));
  m.impl("quantized_backward", TORCH_BOX(&quantized_backward));
  m.impl("quantized_backward_into", TORCH_BOX(&quantized_backward_into));
  m.impl("prepare_activation", TORCH_BOX(&prepare_activation));
  m.impl("experts_forward", TORCH_BOX(&experts_forward));
  m.impl("experts_backward", TORCH_BOX(&experts_backward));
  m.impl("experts_backward_into", TORCH_BOX(&experts_backward_into));
  m.impl("quantize_messages", TORCH_BOX(&quantize_messages));
  m.impl("open_messages", TORCH_BOX(&open_messages));
  m.impl("prepare_messages", TORCH_BOX(&prepare_messages));
  m.impl("requantize_groups", TORCH_BOX(&requantize_groups));
  m.impl("quantize_weight", TORCH_BOX(&quantize_weight));
  m.impl("prepare_linear", TORCH_BOX(&prepare_linear));
  m.impl("prepare_experts", TORCH_BOX(&prepare_experts));
  m.impl("update_scales", TORCH_BOX(&update_scales));
  m.impl("maxima_recorded", TORCH_BOX(&maxima_recorded));
  m.impl("scales_belong", TORCH_BOX(&scales_belong));
  m.impl("scales_are_old", TORCH_BOX(&scales_are_old));
  m.impl("scales_were_old", TORCH_BOX(&scales_were_old));
  m.impl("keep_weight", TORCH_BOX(&keep_weight));
  m.impl("gather_weight", TORCH_BOX(&gather_weight));
  m.impl("release_weight", TORCH_BOX(&release_weight));
  m.impl("make_pieces", TORCH_BOX(&make_pieces));
  m.impl("run_pieces", TORCH_BOX(&run_pieces));
  m.impl("quantize_one", TORCH_BOX(&quantize_one));
  m.impl("quantize_both", TORCH_BOX(&quantize_both));
  m.impl("quantize_masked", TORCH_BOX(&quantize_masked));
  m.impl("transpose", TORCH_BOX(&transpose));
  m.impl("dequantize", TORCH_BOX(&dequantize));
  m.impl("gemm_out", TORCH_BOX(&gemm_out));
  m.impl("grouped_gemm_out", TORCH_BOX(&grouped_gemm_out));
  m.impl("prepare_gemm", TORCH_BOX(&prepare_gemm));
}

}  // namespace

STABLE_TORCH_LIBRARY(octile, m) { define(m); }
STABLE_TORCH_LIBRARY_IMPL(octile, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(octile, CUDA, m) { implement(m); }
// Calls without tensors have no device.
STABLE_TORCH_LIBRARY_IMPL(octile, CompositeExplicitAutograd, m) {
  using namespace octile::binding;
  m.impl("forget_maxima", TORCH_BOX(&forget_maxima));
  m.impl("forget_weight", TORCH_BOX(&forget_weight));
  m.impl("forget_pieces", TORCH_BOX(&forget_pieces));
  m.impl("problem_texts", TORCH_BOX(&problem_texts));
  m.impl("tune_prepares", TORCH_BOX(&tune_prepares));
  m.impl("trust_weight", TORCH_BOX(&trust_weight));
  m.impl("keep_copies", TORCH_BOX(&keep_copies));
  m.impl("weight_changed", TORCH_BOX(&weight_changed));
  m.impl("replays_see_changes", TORCH_BOX(&replays_see_changes));
  m.impl("weights_changed", TORCH_BOX(&weights_changed));
  m.impl("weight_quantizations", TORCH_BOX(&weight_quantizations));
  m.impl("weight_copies_made", TORCH_BOX(&weight_copies_made));
}
