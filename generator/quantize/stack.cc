#include "generator/quantize/stack.h"

#include "generator/core/layout.h"
#include "generator/core/types.h"
#include "generator/quantize/layout.h"

namespace octile {
namespace {

// One scale a tensor has no stride.
std::int64_t scale_step(const TensorType& type, const QuantizedLayout& layout, std::int64_t ld) {
  const bool one = type.granularity == Granularity::kPerTensor;
  return one ? layout.scales.bytes() : layout.scales.outer * ld * layout.scales.element_bytes;
}

}  // namespace

StackSteps stack_steps(const QuantizeProblem& p, const StackStrides& s) {
  StackSteps steps;
  steps.x = s.rows * s.ldx * size_of(p.x.dtype);
  if (is_fp8(p.x.dtype)) {
    const auto of_x = quantized_layout(p.x, s.rows, p.cols);
    if (of_x) steps.x_scale = scale_step(p.x, *of_x, s.x_scale_ld);
  }
  if (has_rowwise(p.output)) {
    steps.q = s.rows * s.ldq * size_of(p.q.dtype);
    const auto of_rows = quantized_layout(p, s.rows, 1, false);
    if (of_rows) steps.scale = scale_step(p.q, *of_rows, s.scale_ld);
  }
  if (has_transposed(p.output)) {
    const auto of_columns = quantized_layout(p, s.rows, 1, true);
    if (of_columns) steps.q_transposed = of_columns->data.bytes();
    if (of_columns) steps.scale_transposed = of_columns->scales.bytes();
  }
  return steps;
}

StackKernelArgs stack_args(const QuantizeProblem& p, const QuantizeKernelArgs& first,
                           std::int64_t maxima_bytes) {
  const StackSteps steps =
      stack_steps(p, {first.rows, first.ldx, first.ldq, first.scale_ld, first.x_scale_ld});
  return {.first = first,
          .x = steps.x,
          .q = steps.q,
          .scale = steps.scale,
          .q_transposed = steps.q_transposed,
          .scale_transposed = steps.scale_transposed,
          .x_scale = steps.x_scale,
          .maxima = maxima_bytes,
          .amax = sizeof(float),
          .skip = p.skip_unchanged ? kFingerprintBytes : 0};
}

}  // namespace octile
