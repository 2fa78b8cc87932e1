#include "runtime/families/quantize/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "generator/core/layout.h"
#include "generator/quantize/config.h"
#include "generator/quantize/fused_source.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/reference/quantize/reference_fingerprint.h"
#include "runtime/reference/quantize/reference_scale_update.h"

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
  return {};
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
  if (groups >= 0 && groups <= kMostGroups) [[likely]]
    return {};
  return refuse(fmt::format("{} is {}; allowed: 0 to {}", name, groups, kMostGroups));
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
  if ((!contiguous && !masked) || args.rows == 0 || p.cols == 0) return {};
  if (Status ok = check_feature("groups", groups.struct_size, "has groups"); !ok) return ok;
  if (groups.group_count == 0) return {};
  return contiguous ? check_pointer("groups.offsets", groups.offsets, 4)
                    : check_pointer("groups.counts", groups.counts, 4);
}

// The rows of x that a call moves.
Status check_gather(const QuantizeProblem& p, QuantizeArguments& args) {
  const octile_quantize_gather& gather = args.gather;
  if (p.operation != QuantizeOperation::kGather)
    return check_absent("gather.index", gather.index, "moves no rows");
  if (Status ok = check_feature("gather", gather.struct_size, "moves rows"); !ok) return ok;
  if (Status ok = check_pointer("gather.index", gather.index, 4); !ok) return ok;
  if (gather.x_rows < 1 || gather.x_rows > kMaxExtent)
    return refuse(fmt::format("gather.x_rows is {}; allowed: 1 to {}", gather.x_rows, kMaxExtent));
  // A kernel finds the index where others find their groups.
  args.groups.offsets = gather.index;
  args.groups.group_count = gather.x_rows;
  return {};
}

// The stride of 1x128 scales that lie by rows.
Status check_ld_by_row(std::string_view name, std::int64_t& ld, std::int64_t cols) {
  const std::int64_t blocks = ceil_div(cols, std::int64_t{128});
  return check_ld(name, ld, {round_up(blocks, std::int64_t{4}), blocks, 1});
}

// What a call writes beside the result.
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
        Extra{"fused.rstd", fused.rstd, source.norms, "norms no rows"}}) {
    Status ok = wanted ? check_pointer(name, pointer, 4) : check_absent(name, pointer, why);
    if (!ok) return ok;
  }
  return {};
}

// x, and what a fused source reads beside it.
Status check_sources(const QuantizeProblem& p, QuantizeArguments& args, std::int64_t rows) {
  struct Input {
    std::string_view name;
    const void* pointer;
    std::string_view ld_name;
    std::int64_t* ld;
  };
  octile_quantize_fused& fused = args.fused;
  const std::array<Input, 4> inputs{{{"x", args.x, "ldx", &args.ldx},
                                     {"fused.x1", fused.x1, "fused.ldx1", &fused.ldx1},
                                     {"fused.x2", fused.x2, "fused.ldx2", &fused.ldx2},
                                     {"fused.x3", fused.x3, "fused.ldx3", &fused.ldx3}}};
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

Status check_no_transposed(const QuantizeArguments& args) {
  if (Status ok = check_absent("q_transposed", args.q_transposed, "has no transposed output"); !ok)
    return ok;
  return check_absent("scale_transposed", args.scale_transposed, "has no transposed output");
}

// The scales of FP8 x; other x has none.
Status check_source_scales(const QuantizeProblem& p, QuantizeArguments& args) {
  octile_quantize_source_scales& scales = args.source_scales;
  if (!is_fp8(p.x.dtype)) {
    if (scales.x_scale == nullptr) [[likely]]
      return {};
    return refuse(fmt::format("source_scales.x_scale is given; allowed: null, because x is {}",
                              to_text(p.x)));
  }
  if (Status ok = check_pointer("source_scales.x_scale", scales.x_scale, scale_alignment(p.x)); !ok)
    return ok;
  if (p.operation == QuantizeOperation::kGather)
    return check_ld_by_row("source_scales.x_scale_ld", scales.x_scale_ld, p.cols);
  return check_scale_ld("source_scales.x_scale_ld", scales.x_scale_ld, p.x, args.rows, p.cols);
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
Status check_dequantized(const QuantizeProblem& p, QuantizeArguments& args) {
  const int bytes = size_of(p.q.dtype);
  if (Status ok = check_pointer("q", args.q, bytes); !ok) return ok;
  if (Status ok = check_ld("ldq", args.ldq, {default_ld(p.q.dtype, p.cols), p.cols, 1}); !ok)
    return ok;
  if (Status ok = check_size({"rows", args.rows}, "ldq", args.ldq, bytes); !ok) return ok;
  if (args.scale == nullptr) [[likely]]
    return check_no_transposed(args);
  return refuse(fmt::format("scale is given; allowed: null, because q is {}", to_text(p.q)));
}

Status check_rowwise(const QuantizeProblem& p, QuantizeArguments& args, std::int64_t rows) {
  if (Status ok = check_pointer("q", args.q, 1); !ok) return ok;
  if (Status ok = check_ld("ldq", args.ldq, {default_ld(p.q.dtype, p.cols), p.cols, 1}); !ok)
    return ok;
  if (Status ok = check_size({"rows", rows}, "ldq", args.ldq, 1); !ok) return ok;
  if (Status ok = check_pointer("scale", args.scale, scale_alignment(p.q)); !ok) return ok;
  return check_scale_ld("scale_ld", args.scale_ld, p, args.rows);
}

Status check_transposed(const QuantizeProblem& p, const QuantizeArguments& args) {
  if (Status ok = check_pointer("q_transposed", args.q_transposed, 1); !ok) return ok;
  return check_pointer("scale_transposed", args.scale_transposed, scale_alignment(p.q));
}

// x without gaps, and the maximum, which is all that a plan of OCTILE_AMAX writes.
Status check_amax(const QuantizeProblem& p, QuantizeArguments& args) {
  if (args.ldx != 0 && args.ldx != p.cols)
    return refuse(fmt::format("ldx is {}; allowed: 0 or cols = {}, because x is read without gaps",
                              args.ldx, p.cols));
  args.ldx = p.cols;
  for (const auto& [name, pointer] :
       {std::pair<std::string_view, const void*>{"q", args.q}, {"scale", args.scale}}) {
    if (Status ok = check_absent(name, pointer, "writes a maximum alone"); !ok) return ok;
  }
  if (Status ok = check_no_transposed(args); !ok) return ok;
  if (Status ok = check_feature("monitor", args.monitor.struct_size, "writes a maximum"); !ok)
    return ok;
  return check_pointer("monitor.amax", args.monitor.amax, 4);
}

// Quantises x unless it is as it was in the call before, and remembers it.
Status quantize_if_changed(const QuantizeProblem& problem, const QuantizeArguments& args) {
  const std::int64_t element = size_of(problem.x.dtype);
  octile_fingerprint& state = *args.change.state;
  const reference::Fingerprint now =
      reference::fingerprint(args.x, args.rows, problem.cols * element, args.ldx * element);
  const bool same = state.known != 0 && std::ranges::equal(now, state.sum);
  if (!same) {
    if (Status ok = reference::quantize(problem, reference_args(args)); !ok) return ok;
    ++state.changes;
  }
  std::ranges::copy(now, state.sum);
  state.known = 1;
  state.unchanged = same ? 1 : 0;
  return {};
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

octile_quantize_args QuantizeArguments::call() const {
  octile_quantize_args args =
      *this;  // NOLINT(cppcoreguidelines-slicing): features follow by pointer
  args.groups = feature_pointer(groups);
  args.delayed = feature_pointer(delayed);
  args.fused = feature_pointer(fused);
  args.source_scales = feature_pointer(source_scales);
  args.monitor = feature_pointer(monitor);
  args.change = feature_pointer(change);
  args.gather = feature_pointer(gather);
  return args;
}

bool is_nothing(const QuantizeProblem& p, const QuantizeArguments& args) {
  return args.rows == 0 || p.cols == 0 ||
         (p.grouping != Grouping::kNone && args.groups.group_count == 0);
}

Status check_layout_query(const QuantizeProblem& p, std::int64_t groups, bool transposed) {
  if (p.operation == QuantizeOperation::kAmax)
    return refuse(fmt::format("plan is '{}'; allowed: a plan that writes q", to_text(p)));
  const bool has = transposed ? has_transposed(p.output) : has_rowwise(p.output);
  if (!has)
    return refuse(fmt::format("transposed is {}; allowed: {}, the plan's only output",
                              transposed ? 1 : 0, transposed ? 0 : 1));
  return check_group_count("groups", p, groups);
}

Status check_arguments(const QuantizeProblem& p, QuantizeArguments& args) {
  if (p.pieces != PiecesStep::kNone)
    return refuse(fmt::format("plan is '{}'; allowed for octile_quantize_run: a plan of one tensor",
                              to_text(p)));
  if (Status ok = check_groups(p, args); !ok) return ok;
  if (is_nothing(p, args)) return {};
  if (Status ok = check_tensor_scale(p, args); !ok) return ok;
  if (Status ok = check_skip(p, args); !ok) return ok;
  if (Status ok = check_nonfinite(p, args.monitor); !ok) return ok;
  if (p.operation == QuantizeOperation::kAmax)
    if (Status ok = check_amax(p, args); !ok) return ok;
  const std::int64_t tensors = p.grouping == Grouping::kMasked ? args.groups.group_count : 1;
  const std::int64_t rows = args.rows * tensors;  // both of 31 bits
  const bool gathers = p.operation == QuantizeOperation::kGather;
  if (Status ok = check_sources(p, args, gathers ? args.gather.x_rows : rows); !ok) return ok;
  if (Status ok = check_gather(p, args); !ok) return ok;
  if (Status ok = check_source_scales(p, args); !ok) return ok;
  if (p.operation == QuantizeOperation::kDequantize) return check_dequantized(p, args);
  if (p.operation == QuantizeOperation::kAmax) return {};
  if (has_rowwise(p.output))
    if (Status ok = check_rowwise(p, args, rows); !ok) return ok;
  return has_transposed(p.output) ? check_transposed(p, args) : check_no_transposed(args);
}

namespace {

// Tensors of several states lie between each other if the stride is smaller than a state.
Status complete_stride(std::string_view name, std::int64_t states, std::int64_t elements,
                       std::int64_t& stride) {
  if (stride == 0 || states == 1) stride = elements;
  if (stride >= elements) return {};
  return refuse(fmt::format("{} is {}; allowed: 0, or at least {}, the elements of a state", name,
                            stride, elements));
}

}  // namespace

Status check_arguments(octile_scale_update_args& args) {
  constexpr int kMostMargin = 126;  // 2^-126 is the smallest normal fp32
  if (Status ok = check_extent("tensors", args.tensors); !ok) return ok;
  if (args.tensors == 0) return {};
  const int choice = static_cast<int>(args.choice);
  if (choice < OCTILE_AMAX_LARGEST || choice > OCTILE_AMAX_AVERAGE)
    return refuse(fmt::format("choice is {}; allowed: octile_amax_choice, 0 to 2", choice));
  const bool average = args.choice == OCTILE_AMAX_AVERAGE;
  const std::int64_t least = average ? 2 : 1;
  if (args.length < least || args.length > kMaxExtent)
    return refuse(fmt::format("length is {}; allowed: {} to {}", args.length, least, kMaxExtent));
  if (args.margin < -kMostMargin || args.margin > kMostMargin)
    return refuse(
        fmt::format("margin is {}; allowed: -{} to {}", args.margin, kMostMargin, kMostMargin));
  const bool is_share = args.average_share > 0 && args.average_share <= 1;  // a NaN is not
  if (average && !is_share)
    return refuse(
        fmt::format("average_share is {}; allowed: more than 0, at most 1", args.average_share));
  if (Status ok = check_extent("states", args.states); !ok) return ok;
  if (args.states == 0) args.states = 1;
  if (Status ok = complete_stride("history_stride", args.states, args.length * args.tensors,
                                  args.history_stride);
      !ok)
    return ok;
  if (Status ok = complete_stride("scale_stride", args.states, args.tensors, args.scale_stride);
      !ok)
    return ok;
  if (Status ok = check_pointer("history", args.history, 4); !ok) return ok;
  return check_pointer("encode_scale", args.encode_scale, 4);
}

reference::QuantizeArgs reference_args(const QuantizeArguments& args) {
  reference::QuantizeArgs host;
  host.rows = args.rows;
  host.x = args.x;
  host.ldx = args.ldx;
  host.q = args.q;
  host.ldq = args.ldq;
  host.scale = args.scale;
  host.scale_ld = args.scale_ld;
  host.q_transposed = args.q_transposed;
  host.scale_transposed = args.scale_transposed;
  host.skip = args.skip;
  host.encode_scale = args.delayed.encode_scale;
  host.amax = args.monitor.amax;
  host.nonfinite = args.monitor.nonfinite;
  host.x_scale = args.source_scales.x_scale;
  host.x_scale_ld = args.source_scales.x_scale_ld;
  host.more = {args.fused.x1, args.fused.x2, args.fused.x3};
  host.more_ld = {args.fused.ldx1, args.fused.ldx2, args.fused.ldx3};
  host.rstd = args.fused.rstd;
  host.bias_gradient = args.fused.bias_gradient;
  host.tap = args.fused.tap;
  host.offsets = args.groups.offsets;
  host.counts = args.groups.counts;
  host.groups = args.groups.group_count;
  host.index = args.gather.index;
  host.x_rows = args.gather.x_rows;
  return host;
}

Status run_on_host(const QuantizeProblem& problem, const QuantizeArguments& args) {
  if (problem.skip_unchanged && !is_nothing(problem, args))
    return quantize_if_changed(problem, args);
  return reference::quantize(problem, reference_args(args));
}

Status run_on_host(const QuantizeProblem& problem, const octile_scale_update_args& args) {
  for (std::int64_t state = 0; state < args.states; ++state) {
    reference::update_scales(problem, {args.history + state * args.history_stride,
                                       args.encode_scale + state * args.scale_stride, args.tensors,
                                       args.length, static_cast<reference::AmaxChoice>(args.choice),
                                       args.margin, args.average_share});
  }
  return {};
}

}  // namespace octile
