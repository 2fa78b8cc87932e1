#include "runtime/families/quantize/complete.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "generator/core/layout.h"
#include "generator/quantize/config.h"
#include "generator/quantize/fused_source.h"
#include "generator/quantize/layout.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/reference/quantize/reference.h"
#include "runtime/reference/quantize/reference_fingerprint.h"
#include "runtime/reference/quantize/reference_stack.h"

namespace octile {
namespace {

// Scales of a whole tensor, given or recorded.
Status check_tensor_scale(const QuantizeProblem& p, const QuantizeArguments& args) {
  const float* const encode = args.delayed.encode_scale;
  const float* const amax = args.monitor.amax;
  if (p.policy == ScalePolicy::kDelayed) {
    if (Status ok = check_pointer("delayed.encode_scale", encode, 4); !ok) return ok;
  } else if (encode != nullptr) {
    return refuse(
        "delayed.encode_scale is given; allowed: null, because the plan's scales are current");
  }
  if (amax != nullptr) {
    if (p.q.granularity != Granularity::kPerTensor)
      return refuse_given("monitor.amax", "has no scale of a whole tensor");
    if (Status ok = check_pointer("monitor.amax", amax, 4); !ok) return ok;
  }
  const float* const recorded = args.monitor.encode_scale;
  if (recorded == nullptr) return {};
  if (p.q.granularity != Granularity::kPerTensor || p.operation != QuantizeOperation::kQuantize)
    return refuse_given("monitor.encode_scale", "makes no scale of a whole tensor");
  if (p.policy == ScalePolicy::kDelayed)
    return refuse_given("monitor.encode_scale", "is given its scale, delayed.encode_scale");
  return check_pointer("monitor.encode_scale", recorded, 4);
}

// Whether the call has nothing to do may be known before it, or it finds that out itself.
Status check_skip(const QuantizeProblem& p, const QuantizeArguments& args) {
  if (!p.skip_unchanged) {
    if (Status ok = check_absent("change.state", args.change.state, "compares no contents"); !ok)
      return ok;
    return args.skip == nullptr ? Status{} : check_pointer("skip", args.skip, 4);
  }
  if (args.skip != nullptr) return refuse_given("skip", "finds out itself if x has changed");
  if (Status ok = check_feature("change", args.change.struct_size, "compares contents"); !ok)
    return ok;
  return check_pointer("change.state", args.change.state, 8);
}

Status check_group_count(std::string_view name, const QuantizeProblem& p, std::int64_t groups) {
  if (p.grouping == Grouping::kNone) {
    if (groups == 0) return {};
    return refuse(
        fmt::format("{} is {}; allowed: 0, because the plan has no groups", name, groups));
  }
  const std::int64_t most = most_groups(p.grouping);
  if (groups >= 0 && groups <= most) [[likely]]
    return {};
  return refuse(fmt::format("{} is {}; allowed: 0 to {}", name, groups, most));
}

Status check_groups(const QuantizeProblem& p, const QuantizeArguments& args) {
  const octile_quantize_groups& groups = args.groups;
  const bool contiguous = p.grouping == Grouping::kContiguous;
  const bool masked = p.grouping == Grouping::kMasked;
  if (!contiguous)
    if (Status ok = check_absent("groups.offsets", groups.offsets, "has no contiguous groups"); !ok)
      return ok;
  if (!masked)
    if (Status ok = check_absent("groups.counts", groups.counts, "has no masked groups"); !ok)
      return ok;
  if (Status ok = check_group_count("groups.group_count", p, groups.group_count); !ok) return ok;
  if (p.grouping == Grouping::kNone || args.rows == 0 || p.cols == 0) return {};
  if (Status ok = check_feature("groups", groups.struct_size, "has groups"); !ok) return ok;
  if (groups.group_count == 0 || p.grouping == Grouping::kStacked) return {};
  return contiguous ? check_pointer("groups.offsets", groups.offsets, 4)
                    : check_pointer("groups.counts", groups.counts, 4);
}

// The rows of x that a call moves.
Status check_gather(const QuantizeProblem& p, const QuantizeArguments& args) {
  const octile_quantize_gather& gather = args.gather;
  if (p.operation != QuantizeOperation::kGather)
    return check_absent("gather.index", gather.index, "moves no rows");
  if (Status ok = check_feature("gather", gather.struct_size, "moves rows"); !ok) return ok;
  if (Status ok = check_pointer("gather.index", gather.index, 4); !ok) return ok;
  if (gather.x_rows < 1 || gather.x_rows > kMaxExtent)
    return refuse(fmt::format("gather.x_rows is {}; allowed: 1 to {}", gather.x_rows, kMaxExtent));
  return {};
}

// The stride of 1x128 scales that lie by rows.
Status check_ld_by_row(std::string_view name, std::int64_t& ld, std::int64_t cols) {
  const std::int64_t blocks = ceil_div(cols, std::int64_t{128});
  return check_ld(name, ld, {round_up(blocks, std::int64_t{4}), blocks, 1});
}

// Outputs beside the result.
Status check_beside(const QuantizeProblem& p, const SourceShape& source,
                    const octile_quantize_fused& fused) {
  struct Extra {
    std::string_view name;
    const void* pointer;
    bool wanted;
    std::string_view why;
  };
  for (const auto& [name, pointer, wanted, why] :
       {Extra{"fused.tap", fused.tap, p.tap, "has no tap"},
        Extra{"fused.bias_gradient", fused.bias_gradient, p.bias_gradient, "sums no bias gradient"},
        Extra{"fused.rstd", fused.rstd, source.norms, "norms no rows"},
        Extra{"fused.row_factor", fused.row_factor, p.weighted, "has no weighted source"}}) {
    Status ok = wanted ? check_pointer(name, pointer, 4) : check_absent(name, pointer, why);
    if (!ok) return ok;
  }
  return {};
}

// x, and what a fused source reads beside it.
Status complete_sources(const QuantizeProblem& p, const QuantizeArguments& args, std::int64_t rows,
                        QuantizeCall& call) {
  struct Input {
    std::string_view name;
    const void* pointer;
    std::string_view ld_name;
    std::int64_t* ld;
  };
  const octile_quantize_fused& fused = args.fused;
  const std::array<Input, 4> inputs{{{"x", args.x, "ldx", &call.ldx},
                                     {"fused.x1", fused.x1, "fused.ldx1", &call.more_ld[0]},
                                     {"fused.x2", fused.x2, "fused.ldx2", &call.more_ld[1]},
                                     {"fused.x3", fused.x3, "fused.ldx3", &call.more_ld[2]}}};
  const SourceShape source = source_shape(p.source);
  const std::int64_t cols = source.halves ? p.cols / 2 : p.cols;
  const int bytes = size_of(p.x.dtype);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& [name, pointer, ld_name, ld] = inputs[i];
    if (std::cmp_greater_equal(i, source.inputs)) {
      if (Status ok = check_absent(name, pointer, "has a source of fewer inputs"); !ok) return ok;
      continue;
    }
    const bool of_rows = source.layer_norm && i == 3;  // fp32, one of each row
    if (Status ok = check_pointer(name, pointer, of_rows ? 4 : bytes); !ok) return ok;
    if (of_rows || source.is_one_row(i)) continue;
    if (Status ok = check_ld(ld_name, *ld, {default_ld(p.x.dtype, cols), cols, 1}); !ok) return ok;
    if (Status ok = check_size({"rows", rows}, ld_name, *ld, bytes); !ok) return ok;
  }
  return check_beside(p, source, fused);
}

Status check_no_transposed(const QuantizeCall& call) {
  if (Status ok = check_absent("q_transposed", call.q_transposed, "has no transposed output"); !ok)
    return ok;
  return check_absent("scale_transposed", call.scale_transposed, "has no transposed output");
}

// The scales of FP8 x; other x has none.
Status complete_source_scales(const QuantizeProblem& p, QuantizeCall& call) {
  if (!is_fp8(p.x.dtype)) {
    if (call.x_scale == nullptr) [[likely]]
      return {};
    return refuse(fmt::format("source_scales.x_scale is given; allowed: null, because x is {}",
                              to_text(p.x)));
  }
  if (Status ok = check_pointer("source_scales.x_scale", call.x_scale, scale_alignment(p.x)); !ok)
    return ok;
  if (p.operation == QuantizeOperation::kGather)
    return check_ld_by_row("source_scales.x_scale_ld", call.x_scale_ld, p.cols);
  return check_scale_ld("source_scales.x_scale_ld", call.x_scale_ld, p.x, call.rows, p.cols);
}

// Dequantising and transposing look at no value and count none.
Status check_nonfinite(const QuantizeProblem& p, const octile_quantize_monitor& monitor) {
  if (monitor.nonfinite == nullptr) [[likely]]
    return {};
  if (p.operation == QuantizeOperation::kQuantize || p.operation == QuantizeOperation::kAmax)
    return check_pointer("monitor.nonfinite", monitor.nonfinite, 8);
  return refuse(
      fmt::format("monitor.nonfinite is given; allowed: null, because to {} counts nothing",
                  name_of(p.operation)));
}

// The output of dequantising: a matrix without scales.
Status complete_dequantized(const QuantizeProblem& p, QuantizeCall& call) {
  const int bytes = size_of(p.q.dtype);
  if (Status ok = check_pointer("q", call.q, bytes); !ok) return ok;
  if (Status ok = check_ld("ldq", call.ldq, {default_ld(p.q.dtype, p.cols), p.cols, 1}); !ok)
    return ok;
  if (Status ok = check_size({"rows", call.rows}, "ldq", call.ldq, bytes); !ok) return ok;
  if (call.scale == nullptr) [[likely]]
    return check_no_transposed(call);
  return refuse(fmt::format("scale is given; allowed: null, because q is {}", to_text(p.q)));
}

Status complete_rowwise(const QuantizeProblem& p, QuantizeCall& call, std::int64_t rows) {
  if (Status ok = check_pointer("q", call.q, 1); !ok) return ok;
  if (Status ok = check_ld("ldq", call.ldq, {default_ld(p.q.dtype, p.cols), p.cols, 1}); !ok)
    return ok;
  if (Status ok = check_size({"rows", rows}, "ldq", call.ldq, 1); !ok) return ok;
  if (Status ok = check_pointer("scale", call.scale, scale_alignment(p.q)); !ok) return ok;
  return check_scale_ld("scale_ld", call.scale_ld, p, call.rows);
}

Status check_transposed(const QuantizeProblem& p, const QuantizeCall& call) {
  if (Status ok = check_pointer("q_transposed", call.q_transposed, 1); !ok) return ok;
  return check_pointer("scale_transposed", call.scale_transposed, scale_alignment(p.q));
}

// x without gaps, and the maximum, which is all that a plan of OCTILE_AMAX writes.
Status complete_amax(const QuantizeProblem& p, const QuantizeArguments& args, QuantizeCall& call) {
  if (call.ldx != 0 && call.ldx != p.cols)
    return refuse(fmt::format("ldx is {}; allowed: 0 or cols = {}, because x is read without gaps",
                              call.ldx, p.cols));
  call.ldx = p.cols;
  for (const auto& [name, pointer] :
       {std::pair<std::string_view, const void*>{"q", call.q}, {"scale", call.scale}}) {
    if (Status ok = check_absent(name, pointer, "writes a maximum alone"); !ok) return ok;
  }
  if (Status ok = check_no_transposed(call); !ok) return ok;
  if (Status ok = check_feature("monitor", args.monitor.struct_size, "writes a maximum"); !ok)
    return ok;
  return check_pointer("monitor.amax", call.amax, 4);
}

}  // namespace

// The stride of row-wise scales. Swizzled tiles have none.
Status check_scale_ld(std::string_view name, std::int64_t& ld, const QuantizeProblem& p,
                      std::int64_t rows) {
  if (p.scale_layout == ScaleLayout::kByRow) return check_ld_by_row(name, ld, p.cols);
  const std::int64_t given = ld;
  if (Status ok = check_scale_ld(name, ld, p.q, rows, p.cols); !ok) return ok;
  if (p.scale_layout == ScaleLayout::kLinear) return {};
  const std::int64_t blocks = round_up(ceil_div(p.cols, 32), 4);
  if (ld == blocks) return {};
  return refuse(
      fmt::format("{} is {}; allowed: 0 (meaning {}), because swizzled scales lie in tiles", name,
                  given, blocks));
}

Status check_layout_query(const QuantizeProblem& p, std::int64_t groups, bool transposed) {
  if (p.operation == QuantizeOperation::kAmax)
    return refuse(fmt::format("plan is '{}'; allowed: a plan that writes q", to_text(p)));
  const bool is_written = transposed ? has_transposed(p.output) : has_rowwise(p.output);
  if (!is_written)
    return refuse(fmt::format("transposed is {}; allowed: {}, the plan's only output",
                              transposed ? 1 : 0, transposed ? 0 : 1));
  return check_group_count("groups", p, groups);
}

namespace {

// Returns what says where a call's rows belong.
const std::int32_t* row_index_of(const QuantizeProblem& p, const QuantizeArguments& args) {
  if (p.operation == QuantizeOperation::kGather) return args.gather.index;
  return p.grouping == Grouping::kMasked ? args.groups.counts : args.groups.offsets;
}

constexpr std::int64_t kTransposedAlign = 16;  // of a row of the transposed copy (layout table)

void place_transposed(const QuantizeProblem& p, QuantizeCall& call) {
  const bool contiguous = p.grouping == Grouping::kContiguous;
  const std::int64_t columns =
      contiguous ? contiguous_columns(call.rows, call.row_count) : call.rows;
  call.ldq_transposed = round_up(columns, kTransposedAlign);
  call.scale_ld_transposed = contiguous && p.q.granularity == Granularity::kPerTensor
                                 ? call.row_count
                                 : packed_scale_ld(p.q, columns, p.cols, true);
}

// Scales of contiguous groups lie as one tensor's, unless every group has one scale.
std::int64_t scale_group_bytes(const QuantizeProblem& p, const QuantizeCall& call) {
  const bool one_per_group = p.q.granularity == Granularity::kPerTensor;
  if (p.grouping == Grouping::kContiguous && !one_per_group) return 0;
  const auto of_one = quantized_layout(p, call.rows, 1, false);
  if (!of_one) return 0;  // no plan has such a problem
  const ArrayShape& scales = of_one->scales;
  return one_per_group ? scales.element_bytes : scales.outer * call.scale_ld * scales.element_bytes;
}

// Fills in the strides that no argument gives.
void place_outputs(const QuantizeProblem& p, QuantizeCall& call) {
  if (has_transposed(p.output)) place_transposed(p, call);
  if (has_token_groups(p.grouping)) call.scale_group_bytes = scale_group_bytes(p, call);
}

bool is_empty(const QuantizeProblem& p, const QuantizeArguments& args) {
  return args.rows == 0 || p.cols == 0 ||
         (p.grouping != Grouping::kNone && args.groups.group_count == 0);
}

// Returns the call with leading dimensions as the caller gave them.
QuantizeCall as_given(const QuantizeProblem& p, const QuantizeArguments& args) {
  const bool gathers = p.operation == QuantizeOperation::kGather;
  return {.rows = args.rows,
          .x = args.x,
          .ldx = args.ldx,
          .q = args.q,
          .ldq = args.ldq,
          .scale = args.scale,
          .scale_ld = args.scale_ld,
          .q_transposed = args.q_transposed,
          .scale_transposed = args.scale_transposed,
          .encode_scale = args.delayed.encode_scale,
          .recorded_scale = args.monitor.encode_scale,
          .amax = args.monitor.amax,
          .skip = args.skip,
          .fingerprint = args.change.state,
          .x_scale = args.source_scales.x_scale,
          .x_scale_ld = args.source_scales.x_scale_ld,
          .more = {args.fused.x1, args.fused.x2, args.fused.x3},
          .more_ld = {args.fused.ldx1, args.fused.ldx2, args.fused.ldx3},
          .rstd = args.fused.rstd,
          .row_factor = args.fused.row_factor,
          .bias_gradient = args.fused.bias_gradient,
          .tap = args.fused.tap,
          .row_index = row_index_of(p, args),
          .row_count = gathers ? args.gather.x_rows : args.groups.group_count,
          .nonfinite = args.monitor.nonfinite,
          .workspace = args.workspace,
          .workspace_bytes = args.workspace_bytes,
          .is_empty = is_empty(p, args)};
}

// Checks the arguments and fills in the leading dimensions that they may leave open.
Status complete(const QuantizeProblem& p, const QuantizeArguments& args, QuantizeCall& call) {
  if (p.pieces != PiecesStep::kNone)
    return refuse(fmt::format("plan is '{}'; allowed for octile_quantize_run: a plan of one tensor",
                              to_text(p)));
  if (Status ok = check_groups(p, args); !ok) return ok;
  if (!call.has_work()) return {};
  if (Status ok = check_tensor_scale(p, args); !ok) return ok;
  if (Status ok = check_skip(p, args); !ok) return ok;
  if (Status ok = check_nonfinite(p, args.monitor); !ok) return ok;
  if (p.operation == QuantizeOperation::kAmax)
    if (Status ok = complete_amax(p, args, call); !ok) return ok;
  const bool behind_each_other =
      p.grouping == Grouping::kMasked || p.grouping == Grouping::kStacked;
  const std::int64_t tensors = behind_each_other ? args.groups.group_count : 1;
  const std::int64_t rows = args.rows * tensors;  // both of 31 bits
  const bool gathers = p.operation == QuantizeOperation::kGather;
  if (Status ok = complete_sources(p, args, gathers ? args.gather.x_rows : rows, call); !ok)
    return ok;
  if (Status ok = check_gather(p, args); !ok) return ok;
  if (Status ok = complete_source_scales(p, call); !ok) return ok;
  if (p.operation == QuantizeOperation::kDequantize) return complete_dequantized(p, call);
  if (p.operation == QuantizeOperation::kAmax) return {};
  if (has_rowwise(p.output))
    if (Status ok = complete_rowwise(p, call, rows); !ok) return ok;
  return has_transposed(p.output) ? check_transposed(p, call) : check_no_transposed(call);
}

}  // namespace

Result<QuantizeCall> complete(const QuantizeProblem& p, const QuantizeArguments& args) {
  const TokenAxis axis = token_axis(p);
  if (Status ok = check_tokens(axis, axis.name, args.rows); !ok)
    return tl::unexpected<Error>(ok.error());
  QuantizeCall call = as_given(p, args);
  if (Status ok = complete(p, args, call); !ok) return tl::unexpected<Error>(ok.error());
  if (call.has_work()) place_outputs(p, call);
  return call;
}

namespace {

// Quantises x unless it is as it was in the call before, and remembers it.
Status quantize_if_changed(const QuantizeProblem& problem, const QuantizeCall& call) {
  const std::int64_t element = size_of(problem.x.dtype);
  octile_fingerprint& state = *call.fingerprint;
  const reference::Fingerprint now =
      reference::fingerprint(call.x, call.rows, problem.cols * element, call.ldx * element);
  const bool same = state.known != 0 && std::ranges::equal(now, state.sum);
  if (!same) {
    if (Status ok = reference::quantize(problem, call); !ok) return ok;
    ++state.changes;
  }
  std::ranges::copy(now, state.sum);
  state.known = 1;
  state.unchanged = same ? 1 : 0;
  return {};
}

}  // namespace

Status run_on_host(const QuantizeProblem& problem, const QuantizeCall& call) {
  if (!problem.skip_unchanged) return reference::quantize(problem, call);
  if (problem.grouping != Grouping::kStacked) return quantize_if_changed(problem, call);
  const reference::Stack stack(problem, call);
  for (std::int64_t i = 0; i < call.row_count; ++i) {
    if (Status ok = quantize_if_changed(stack.problem(), stack.call(i)); !ok) return ok;
  }
  return {};
}

}  // namespace octile
