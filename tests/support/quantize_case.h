// One quantisation with its input, poisoned outputs with guard zones, strides and offsets. The
// reference and the code under test each work on a copy. Whole buffers are compared, so that a byte
// written outside the outputs is a difference.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "generator/core/layout.h"
#include "generator/families.h"
#include "generator/quantize/fused_source.h"
#include "generator/quantize/kernel_args.h"
#include "generator/quantize/layout.h"
#include "tests/support/quantize_call.h"
#include "tests/support/quantize_inputs.h"

namespace octile::tests {

// A tensor's shape and its position in its buffers.
struct Placement {
  std::int64_t rows = 0, cols = 0;
  std::int64_t pad_x = 0, pad_q = 0;      // gap between rows, in elements
  std::int64_t shift_x = 0, shift_q = 0;  // offset of the tensor, in elements
  std::int64_t extra_scale_ld = 0;  // added to the layout's stride; negative: no scale padding
};

// Placements that take each path through loads and stores.
inline constexpr Placement kPlacements[] = {
    {9, 264, 8, 8, 0, 0, 0},    // whole vectors over padded rows
    {9, 264, 8, 8, 0, 0, 4},    // scales have gaps between rows
    {9, 260, 12, 28, 0, 0, 0},  // aligned rows, ragged last vector
    {9, 256, 1, 0, 0, 0, 0},    // input rows are not aligned
    {9, 256, 0, 3, 0, 0, 0},    // output rows are not aligned
    {9, 256, 0, 0, 1, 0, 0},    // the input starts one element late
    {9, 256, 0, 0, 0, 1, 0},    // the output starts one element late
};

// One output: codes and scales between guard zones.
struct CaseOutput {
  static constexpr std::int64_t kGuard = 256;  // in bytes; keeps the alignment of a buffer's start

  bool wanted = false;
  std::int64_t ld = 0, scale_ld = 0;  // in elements and scales
  std::int64_t offset = 0;            // bytes to the first code
  std::vector<char> q, scale;

  char* codes() { return q.data() + offset; }
  char* scales() { return scale.data() + kGuard; }
};

// Points the arguments of the public call or of a kernel at a case's outputs.
template <typename Args, typename Case>
void point_at_outputs(Args& args, Case& c) {
  if (c.row.wanted) {
    args.q = c.row.codes();
    args.ldq = c.row.ld;
    if (is_fp8(c.problem.q.dtype)) args.scale = c.row.scales();
    args.scale_ld = c.row.scale_ld;
  }
  if (c.transposed.wanted) {
    args.q_transposed = c.transposed.codes();
    args.scale_transposed = c.transposed.scales();
    if constexpr (requires { args.ldq_transposed; }) {  // a kernel's arguments
      args.ldq_transposed = c.transposed.ld;
      args.scale_ld_transposed = c.transposed.scale_ld;
    }
  }
}

// Do the same for x1 to x3 of a fused source.
inline void point_at_inputs(QuantizeKernelArgs& args, const std::array<const void*, 3>& more,
                            const std::array<std::int64_t, 3>& more_ld) {
  std::ranges::copy(more, std::begin(args.more));
  std::ranges::copy(more_ld, std::begin(args.more_ld));
}
inline void point_at_inputs(QuantizeArguments& args, const std::array<const void*, 3>& more,
                            const std::array<std::int64_t, 3>& more_ld) {
  octile_quantize_fused& fused = args.fused;
  std::tie(fused.x1, fused.x2, fused.x3) = std::tie(more[0], more[1], more[2]);
  std::tie(fused.ldx1, fused.ldx2, fused.ldx3) = std::tie(more_ld[0], more_ld[1], more_ld[2]);
}

struct QuantizeCase {
  static constexpr std::int64_t kGuard = CaseOutput::kGuard;
  static constexpr char kPoison = static_cast<char>(0xA5);

  QuantizeProblem problem;
  std::int64_t rows = 0, ldx = 0;  // in elements
  std::int64_t x_offset = 0;       // bytes to the first element
  std::vector<char> x;
  std::array<std::vector<char>, 3> more;  // x1 to x3 of a fused source, each with x's offset
  std::array<std::int64_t, 3> more_ld{};  // in elements
  // Additional outputs; empty: not requested.
  std::vector<float> tap, bias_gradient, rstd;
  std::vector<char> x_scale;        // scales of FP8 x
  std::int64_t x_scale_ld = 0;      // in scales
  std::vector<std::int32_t> index;  // of operation "gather"
  CaseOutput row, transposed;
  float encode_scale = 3.7F;    // given to delayed scaling, else recorded
  float amax = 0.25F;           // record of a tensor's amax; below most inputs' amax
  std::uint64_t nonfinite = 7;  // the count of infinities and NaNs is added to it

  bool keeps_amax() const {
    return finds_maxima() && problem.q.granularity == Granularity::kPerTensor;
  }
  bool delayed() const { return problem.policy == ScalePolicy::kDelayed; }
  bool records_scale() const {
    return keeps_amax() && !delayed() && problem.operation == QuantizeOperation::kQuantize;
  }
  bool finds_maxima() const {
    return problem.operation == QuantizeOperation::kQuantize ||
           problem.operation == QuantizeOperation::kAmax;
  }

  // Returns x1 to x3; null: the source has no such input.
  std::array<const void*, 3> more_inputs() const {
    std::array<const void*, 3> inputs{};
    for (std::size_t i = 0; i < more.size(); ++i) {
      if (!more[i].empty()) inputs[i] = more[i].data() + x_offset;
    }
    return inputs;
  }

  // Fills the arguments of the public call with pointers into this case.
  void fill(QuantizeArguments& args) {
    args = {};
    args.rows = rows;
    args.x = x.data() + x_offset;
    args.ldx = ldx;
    args.source_scales.x_scale = x_scale.empty() ? nullptr : x_scale.data();
    args.source_scales.x_scale_ld = x_scale_ld;
    if (!index.empty()) {
      args.gather.index = index.data();
      args.gather.x_rows = rows;
    }
    point_at_inputs(args, more_inputs(), more_ld);
    point_at_outputs(args, *this);
    if (!tap.empty()) args.fused.tap = tap.data();
    if (!bias_gradient.empty()) args.fused.bias_gradient = bias_gradient.data();
    if (!rstd.empty() && !problem.weighted) args.fused.rstd = rstd.data();
    if (!rstd.empty() && problem.weighted) args.fused.row_factor = rstd.data();
    if (delayed()) args.delayed.encode_scale = &encode_scale;
    if (records_scale()) args.monitor.encode_scale = &encode_scale;
    if (keeps_amax()) args.monitor.amax = &amax;
    if (finds_maxima()) args.monitor.nonfinite = &nonfinite;
  }

  // Quantises on the host into the outputs.
  Status run_reference(int threads = 0) {
    QuantizeArguments args;
    fill(args);
    return tests::run_reference(problem, args, threads, row.scale_ld);
  }
};

inline std::vector<char> poisoned(std::int64_t bytes) {
  return std::vector<char>(static_cast<std::size_t>(bytes + 2 * QuantizeCase::kGuard),
                           QuantizeCase::kPoison);
}

// Returns an output without scales, for dequantised values.
inline CaseOutput make_widened_output(const QuantizeProblem& problem, const Placement& at) {
  const std::int64_t bytes = size_of(problem.q.dtype);
  CaseOutput out;
  out.wanted = true;
  out.ld = at.cols + at.pad_q;
  out.offset = QuantizeCase::kGuard + at.shift_q * bytes;
  out.q = poisoned((at.rows * out.ld + at.shift_q) * bytes);
  out.scale = poisoned(0);
  return out;
}

inline CaseOutput make_output(const QuantizeProblem& problem, const Placement& at,
                              bool transposed) {
  if (!is_fp8(problem.q.dtype)) return make_widened_output(problem, at);
  const auto layout = quantized_layout(problem, at.rows, 0, transposed).value();
  CaseOutput out;
  out.wanted = true;
  out.ld = transposed ? layout.data.ld : at.cols + at.pad_q;
  out.scale_ld = layout.scales.ld;
  const bool strided = (layout.scales.outer > 1 || layout.scales.inner > 1) &&
                       problem.scale_layout != ScaleLayout::kSwizzled;
  if (!transposed && strided) {
    out.scale_ld = at.extra_scale_ld < 0 ? layout.scale_cols : out.scale_ld + at.extra_scale_ld;
  }
  out.offset = QuantizeCase::kGuard + at.shift_q;
  out.q = poisoned(layout.data.outer * out.ld + at.shift_q);
  out.scale = poisoned(layout.scales.outer * out.scale_ld * layout.scales.element_bytes);
  return out;
}

// Return how many tensors the problem's source reads, and how many columns each has.
inline int inputs_of(const QuantizeProblem& problem) {
  return problem.source.empty() ? 1 : fused_source(problem.source)->inputs();
}
inline std::int64_t input_cols_of(const QuantizeProblem& problem) {
  const bool halves = !problem.source.empty() && fused_source(problem.source)->halves();
  return halves ? problem.cols / 2 : problem.cols;
}

// Compares bits; numbers that are NaN are equal with any bits.
inline bool same_value(char a, char b) { return a == b; }
inline bool same_value(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}
inline bool same_values(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(a, b, [](float x, float y) { return same_value(x, y); });
}

// Returns rows of a tensor of so many, in no order, some twice, with one before the first row and
// one behind the last.
inline std::vector<std::int32_t> gathered_rows(std::int64_t rows) {
  std::vector<std::int32_t> index;
  for (std::int64_t i = 0; i < rows; ++i)
    index.push_back(static_cast<std::int32_t>((i * i + 5 * i + 3) % rows));
  index.front() = -4;
  if (rows > 1) index.back() = static_cast<std::int32_t>(rows + 2);
  return index;
}

// Returns a case; the placement gives the problem's cols.
inline QuantizeCase make_case(QuantizeProblem problem, const Placement& at, Fill fill) {
  problem.cols = at.cols;
  QuantizeCase c;
  c.problem = problem;
  c.rows = at.rows;
  const int inputs = inputs_of(problem);
  const std::int64_t input_cols = input_cols_of(problem);
  c.ldx = input_cols + at.pad_x;
  c.x_offset = at.shift_x * size_of(problem.x.dtype);
  // The means of rows are fp32 for any type of x.
  if (source_shape(problem.source).layer_norm) c.x_offset = round_up(c.x_offset, 4);
  const std::int64_t before = c.x_offset / size_of(problem.x.dtype);  // elements
  const auto seed = static_cast<unsigned>(at.rows * 131 + at.cols);
  c.x = make_input(problem.x.dtype, at.rows * c.ldx + before, fill, seed);
  for (int i = 1; i < inputs; ++i) {
    const auto k = static_cast<std::size_t>(i - 1);
    c.more_ld[k] = c.ldx + 8 * i;  // different strides that keep x's alignment
    c.more[k] = make_input(problem.x.dtype, at.rows * c.more_ld[k] + before, fill,
                           seed + static_cast<unsigned>(i));
  }
  constexpr float kUnwritten = -7;
  if (problem.tap) c.tap.assign(static_cast<std::size_t>(at.rows * at.cols), kUnwritten);
  if (problem.bias_gradient) {
    c.bias_gradient.assign(static_cast<std::size_t>(at.cols), kUnwritten);
  }
  if (const SourceShape shape = source_shape(problem.source); shape.norms || problem.weighted) {
    c.rstd.assign(static_cast<std::size_t>(at.rows), kUnwritten);
    for (std::size_t r = 0; r < c.rstd.size() && !shape.finds_rms; ++r)
      c.rstd[r] = 0.3F + static_cast<float>(r % 11) / 7;
  }
  if (is_fp8(problem.x.dtype)) {
    auto layout = quantized_layout(problem.x, at.rows, at.cols).value();
    if (problem.operation == QuantizeOperation::kGather) {
      lay_scales_by_row(layout, at.rows, at.cols);
      c.index = gathered_rows(at.rows);
    }
    const ArrayShape& scales = layout.scales;
    const bool strided = scales.outer > 1 || scales.inner > 1;
    c.x_scale_ld = scales.ld + (strided && at.extra_scale_ld > 0 ? at.extra_scale_ld : 0);
    c.x_scale =
        make_scales(problem.x, scales.outer * c.x_scale_ld * scales.element_bytes, fill, seed + 1);
  }
  const bool writes_q = problem.operation != QuantizeOperation::kAmax;
  if (writes_q && has_rowwise(problem.output)) c.row = make_output(problem, at, false);
  if (has_transposed(problem.output)) c.transposed = make_output(problem, at, true);
  return c;
}

// Compares whole buffers including guard zones.
inline bool same_outputs(const QuantizeCase& a, const QuantizeCase& b) {
  return a.row.q == b.row.q && a.row.scale == b.row.scale && a.transposed.q == b.transposed.q &&
         a.transposed.scale == b.transposed.scale && a.amax == b.amax &&
         a.encode_scale == b.encode_scale && a.nonfinite == b.nonfinite &&
         same_values(a.tap, b.tap) && same_values(a.bias_gradient, b.bias_gradient) &&
         same_values(a.rstd, b.rstd);
}

inline std::string describe(const QuantizeProblem& problem, const Placement& at, Fill fill) {
  return fmt::format("{} rows={} pad_x={} pad_q={} shift_x={} shift_q={} extra_scale_ld={} fill={}",
                     to_text(Problem(problem)), at.rows, at.pad_x, at.pad_q, at.shift_x, at.shift_q,
                     at.extra_scale_ld, name_of(fill));
}

}  // namespace octile::tests
