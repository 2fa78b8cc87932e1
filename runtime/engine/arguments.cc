#include "runtime/engine/arguments.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "generator/quantize/fused_source.h"
#include "generator/core/layout.h"
#include "generator/quantize/config.h"
#include "generator/core/types.h"

namespace octile {
namespace {

// TMA: base addresses and row strides are multiples of 16 bytes (PTX ISA, cp.async.bulk.tensor).
constexpr std::int64_t kTmaBytes = 16;
constexpr std::int64_t kWorkspaceAlign = 16;  // octile.h
// TMA: a row stride is below 2^40 bytes (driver API, cuTensorMapEncodeTiled).
constexpr std::int64_t kMaxStrideBytes = std::int64_t{1} << 40;

Status refuse(std::string message) { return fail(ErrorCode::kInvalidArgument, std::move(message)); }

Status check_pointer(const char* name, const void* pointer, std::int64_t alignment) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (pointer != nullptr && address % static_cast<std::uintptr_t>(alignment) == 0) [[likely]]
    return {};
  if (pointer == nullptr) return refuse(fmt::format("{} is null; allowed: a pointer", name));
  return refuse(
      fmt::format("{} is {:#x}; allowed: a multiple of {} bytes", name, address, alignment));
}

struct LdRule {
  std::int64_t packed = 0;  // what 0 stands for
  std::int64_t least = 0;
  std::int64_t multiple = 1;
};

Status check_ld(const char* name, std::int64_t& ld, const LdRule& rule) {
  if (ld == 0) ld = rule.packed;
  if (ld >= rule.least && ld % rule.multiple == 0) [[likely]]
    return {};
  return refuse(fmt::format("{} is {}; allowed: 0 (meaning {}) or a multiple of {} from {} on",
                            name, ld, rule.packed, rule.multiple, rule.least));
}

// rows * ld elements, and the bytes they take, stay within 2^63 - 1.
Status check_size(const char* rows_name, std::int64_t rows, const char* ld_name, std::int64_t ld,
                  int element_bytes) {
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
  if (!__builtin_mul_overflow(rows, ld, &elements) &&
      !__builtin_mul_overflow(elements, element_bytes, &bytes)) [[likely]]
    return {};
  return refuse(
      fmt::format("{} is {} and {} is {}: {} bytes an element make more than 2^63 - 1 "
                  "bytes, which is what is allowed",
                  rows_name, rows, ld_name, ld, element_bytes));
}

// A matrix read or written through TMA.
Status check_matrix(const char* name, const void* pointer, const char* ld_name, std::int64_t& ld,
                    const char* rows_name, std::int64_t rows, std::int64_t cols, DType dtype) {
  const int bytes = size_of(dtype);
  if (Status ok = check_pointer(name, pointer, kTmaBytes); !ok) return ok;
  if (Status ok = check_ld(ld_name, ld, {cols, cols, kTmaBytes / bytes}); !ok) return ok;
  if (ld > kMaxStrideBytes / bytes - 1) [[unlikely]]
    return refuse(fmt::format("{} is {}; allowed: rows of less than 2^40 bytes", ld_name, ld));
  return check_size(rows_name, rows, ld_name, ld, bytes);
}

// Row stride of a scale array. 128x128 scales may be packed tighter than they are written by
// default; otherwise rows are multiples of 16 bytes wherever the layout's own are.
Status check_scale_ld(const char* name, std::int64_t& ld, const TensorType& type, std::int64_t rows,
                      std::int64_t cols) {
  const std::int64_t packed = packed_scale_ld(type, rows, cols);
  if (type.granularity == Granularity::k128x128)
    return check_ld(name, ld, {packed, ceil_div(cols, 128), 1});
  return check_ld(name, ld, {packed, packed, packed % 4 == 0 ? 4 : 1});
}

// A scale is stored in one access.
std::int64_t scale_alignment(const TensorType& type) {
  return type.scale == ScaleFormat::kE8M0 ? 1 : type.scale == ScaleFormat::kBF16 ? 2 : 4;
}

Status check_extent(const char* name, std::int64_t extent) {
  if (extent >= 0 && extent <= kMaxExtent) [[likely]]
    return {};
  return refuse(fmt::format("{} is {}; allowed: 0 to {}", name, extent, kMaxExtent));
}

// What belongs to scales of a whole tensor.
Status check_policy(const QuantizeProblem& p, const octile_quantize_args& args) {
  const bool delayed = p.policy == ScalePolicy::kDelayed;
  if (delayed) {
    if (Status ok = check_pointer("encode_scale", args.encode_scale, 4); !ok) return ok;
  } else if (args.encode_scale != nullptr) {
    return refuse("encode_scale is given; allowed: null, because the plan's scales are current");
  }
  if (args.amax != nullptr) {
    if (p.q.granularity != Granularity::kPerTensor)
      return refuse(
          "amax is given; allowed: null, because the plan has no scale of a whole tensor");
    if (Status ok = check_pointer("amax", args.amax, 4); !ok) return ok;
  }
  return args.skip == nullptr ? Status{} : check_pointer("skip", args.skip, 4);
}

// Of a quantiser's row-wise scales. Swizzled tiles have no stride.
Status check_scale_ld(const char* name, std::int64_t& ld, const QuantizeProblem& p,
                      std::int64_t rows) {
  const std::int64_t given = ld;
  if (Status ok = check_scale_ld(name, ld, p.q, rows, p.cols); !ok) return ok;
  if (p.scale_layout == ScaleLayout::kLinear) return {};
  const std::int64_t blocks = round_up(ceil_div(p.cols, 32), 4);
  if (ld == blocks) return {};
  return refuse(
      fmt::format("{} is {}; allowed: 0 (meaning {}), because swizzled scales lie in tiles", name,
                  given, blocks));
}

Status check_group_count(const QuantizeProblem& p, std::int64_t groups) {
  if (p.grouping == Grouping::kNone) {
    if (groups == 0) return {};
    return refuse(fmt::format("groups is {}; allowed: 0, because the plan has no groups", groups));
  }
  if (groups >= 0 && groups <= kMostGroups) [[likely]]
    return {};
  return refuse(fmt::format("groups is {}; allowed: 0 to {}", groups, kMostGroups));
}

// The groups of a plan that has them.
Status check_groups(const QuantizeProblem& p, const octile_quantize_args& args) {
  const bool packed = p.grouping == Grouping::kContiguous;
  const bool masked = p.grouping == Grouping::kMasked;
  if (!packed && args.offsets != nullptr)
    return refuse("offsets is given; allowed: null, because the plan has no contiguous groups");
  if (!masked && args.counts != nullptr)
    return refuse("counts is given; allowed: null, because the plan has no masked groups");
  if (Status ok = check_group_count(p, args.groups); !ok) return ok;
  if (!packed && !masked) return {};
  if (args.rows == 0 || args.groups == 0 || p.cols == 0) return {};
  return packed ? check_pointer("offsets", args.offsets, 4)
                : check_pointer("counts", args.counts, 4);
}

// The flat range of a plan that quantises one.
Status check_shard_extent(const QuantizeProblem& p, const octile_quantize_args& args) {
  if (p.shard == ShardStep::kNone) {
    if (args.shard_start == 0 && args.shard_length == 0 && args.shard_amax == nullptr) return {};
    const char* name = args.shard_amax != nullptr ? "shard_amax"
                       : args.shard_length != 0   ? "shard_length"
                                                  : "shard_start";
    return refuse(
        fmt::format("{} is given; allowed: 0, because the plan quantises whole tensors", name));
  }
  const std::int64_t elements = args.rows * p.cols;  // both of 31 bits
  if (args.shard_start < 0 || args.shard_start > elements)
    return refuse(fmt::format("shard_start is {}; allowed: 0 to rows * cols = {}", args.shard_start,
                              elements));
  const std::int64_t most = elements - args.shard_start;
  if (args.shard_length >= 0 && args.shard_length <= most) return {};
  return refuse(fmt::format("shard_length is {}; allowed: 0 to {}, where the tensor ends",
                            args.shard_length, most));
}

Status check_shard(const QuantizeProblem& p, octile_quantize_args& args) {
  if (args.ldx != 0 && args.ldx != p.cols)
    return refuse(fmt::format("ldx is {}; allowed: 0 or cols = {}, because a range is flat",
                              args.ldx, p.cols));
  if (args.ldq != 0 && args.ldq != p.cols)
    return refuse(fmt::format("ldq is {}; allowed: 0 or cols = {}, because a range is flat",
                              args.ldq, p.cols));
  if (args.amax != nullptr)
    return refuse("amax is given; allowed: null, because shard_amax holds the maxima of shards");
  if (Status ok = check_pointer("shard_amax", args.shard_amax, 4); !ok) return ok;
  if (p.shard == ShardStep::kAmax) return {};
  if (Status ok = check_pointer("q", args.q, 1); !ok) return ok;
  if (Status ok = check_pointer("scale", args.scale, scale_alignment(p.q)); !ok) return ok;
  return check_scale_ld("scale_ld", args.scale_ld, p, args.rows);
}

Status check_absent(const char* name, const void* pointer, const char* why) {
  if (pointer == nullptr) [[likely]]
    return {};
  return refuse(fmt::format("{} is given; allowed: null, because the plan {}", name, why));
}

// What is left beside the codes.
Status check_beside(const QuantizeProblem& p, const SourceShape& source,
                    const octile_quantize_args& args) {
  struct Extra {
    const char* name;
    const void* pointer;
    bool wanted;
    const char* why;
  };
  for (const auto& [name, pointer, wanted, why] :
       {Extra{"tap", args.tap, p.tap, "has no tap"},
        Extra{"bias_gradient", args.bias_gradient, p.bias_gradient, "sums no bias gradient"},
        Extra{"rstd", args.rstd, source.rms_norm, "norms no rows"}}) {
    Status ok = wanted ? check_pointer(name, pointer, 4) : check_absent(name, pointer, why);
    if (!ok) return ok;
  }
  return {};
}

// x, and what a fused source reads.
Status check_sources(const QuantizeProblem& p, octile_quantize_args& args, std::int64_t rows) {
  struct Input {
    const char* name;
    const void* pointer;
    const char* ld_name;
    std::int64_t* ld;
  };
  const std::array<Input, 4> inputs{{{"x", args.x, "ldx", &args.ldx},
                                     {"x1", args.x1, "ldx1", &args.ldx1},
                                     {"x2", args.x2, "ldx2", &args.ldx2},
                                     {"x3", args.x3, "ldx3", &args.ldx3}}};
  const SourceShape source = source_shape(p.source);
  const std::int64_t cols = source.halves ? p.cols / 2 : p.cols;
  const int bytes = size_of(p.x.dtype);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& [name, pointer, ld_name, ld] = inputs[i];
    if (std::cmp_greater_equal(i, source.inputs)) {
      if (Status ok = check_absent(name, pointer, "has a source of fewer inputs"); !ok) return ok;
      continue;
    }
    if (Status ok = check_pointer(name, pointer, bytes); !ok) return ok;
    if (source.rms_norm && i == 1) continue;  // the weight is one row
    if (Status ok = check_ld(ld_name, *ld, {cols, cols, 1}); !ok) return ok;
    if (Status ok = check_size("rows", rows, ld_name, *ld, bytes); !ok) return ok;
  }
  return check_beside(p, source, args);
}

Status check_no_transposed(const octile_quantize_args& args) {
  if (args.q_transposed == nullptr && args.scale_transposed == nullptr) [[likely]]
    return {};
  return refuse(fmt::format("{} is given; allowed: null, because the plan has no transposed output",
                            args.q_transposed != nullptr ? "q_transposed" : "scale_transposed"));
}

// The scales of FP8 x; other x has none.
Status check_x_scale(const QuantizeProblem& p, octile_quantize_args& args) {
  if (!is_fp8(p.x.dtype)) {
    if (args.x_scale == nullptr) [[likely]]
      return {};
    return refuse(fmt::format("x_scale is given; allowed: null, because x is {}", to_text(p.x)));
  }
  if (Status ok = check_pointer("x_scale", args.x_scale, scale_alignment(p.x)); !ok) return ok;
  return check_scale_ld("x_scale_ld", args.x_scale_ld, p.x, args.rows, p.cols);
}

// An inverse looks at no value: it has nothing to count.
Status check_nonfinite(const QuantizeProblem& p, const octile_quantize_args& args) {
  if (args.nonfinite == nullptr) [[likely]]
    return {};
  if (p.operation == QuantizeOperation::kQuantize) {
    return check_pointer("nonfinite", args.nonfinite, 8);
  }
  return refuse(fmt::format("nonfinite is given; allowed: null, because to {} counts nothing",
                            name_of(p.operation)));
}

// What is dequantised: a matrix without scales.
Status check_widened(const QuantizeProblem& p, octile_quantize_args& args) {
  const int bytes = size_of(p.q.dtype);
  if (Status ok = check_pointer("q", args.q, bytes); !ok) return ok;
  if (Status ok = check_ld("ldq", args.ldq, {p.cols, p.cols, 1}); !ok) return ok;
  if (Status ok = check_size("rows", args.rows, "ldq", args.ldq, bytes); !ok) return ok;
  if (args.scale == nullptr) [[likely]]
    return check_no_transposed(args);
  return refuse(fmt::format("scale is given; allowed: null, because q is {}", to_text(p.q)));
}

}  // namespace

bool is_nothing(const QuantizeProblem& p, const octile_quantize_args& args) {
  return args.rows == 0 || p.cols == 0 || (p.grouping != Grouping::kNone && args.groups == 0) ||
         (p.shard != ShardStep::kNone && args.shard_length == 0);
}

Status check_layout_query(const QuantizeProblem& p, std::int64_t groups, bool transposed) {
  const bool has = transposed ? has_transposed(p.output) : has_rowwise(p.output);
  if (!has)
    return refuse(fmt::format("transposed is {}; allowed: {}, the plan's only output",
                              transposed ? 1 : 0, transposed ? 0 : 1));
  return check_group_count(p, groups);
}

Status check_plan_extents(const Problem& problem) {
  if (const auto* gemm = std::get_if<GemmProblem>(&problem)) {
    if (Status ok = check_extent("n", gemm->n); !ok) return ok;
    if (Status ok = check_extent("k", gemm->k); !ok) return ok;
    return gemm->m == kDynamic ? Status{} : check_extent("m", gemm->m);
  }
  const auto& quantize = std::get<QuantizeProblem>(problem);
  if (Status ok = check_extent("cols", quantize.cols); !ok) return ok;
  return quantize.rows == kDynamic ? Status{} : check_extent("rows", quantize.rows);
}

Status check_tokens(const Problem& problem, const char* name, std::int64_t tokens) {
  const std::int64_t fixed = std::visit(
      [](const auto& p) {
        if constexpr (requires { p.m; })
          return p.m;
        else
          return p.rows;
      },
      problem);
  if (fixed != kDynamic && tokens != fixed) [[unlikely]]
    return refuse(
        fmt::format("{} is {}; allowed: {}, which the plan's problem states", name, tokens, fixed));
  return check_extent(name, tokens);
}

Status check_arguments(const GemmProblem& p, octile_gemm_args& args) {
  if (Status ok = check_extent("m", args.m); !ok) return ok;
  if ((args.flags & ~static_cast<std::uint32_t>(OCTILE_RUN_B_READY)) != 0) [[unlikely]]
    return refuse(
        fmt::format("flags is {:#x}; allowed: 0 or OCTILE_RUN_B_READY (0x1)", args.flags));
  if (args.m == 0 || p.n == 0) return {};
  if (Status ok = check_matrix("d", args.d, "ldd", args.ldd, "m", args.m, p.n, p.d); !ok) return ok;
  if (p.k == 0) return {};
  if (Status ok = check_matrix("a", args.a, "lda", args.lda, "m", args.m, p.k, p.a.dtype); !ok)
    return ok;
  if (Status ok = check_matrix("b", args.b, "ldb", args.ldb, "n", p.n, p.k, p.b.dtype); !ok)
    return ok;
  if (Status ok = check_pointer("a_scale", args.a_scale, 16); !ok) return ok;
  if (Status ok = check_pointer("b_scale", args.b_scale, 4); !ok) return ok;
  if (Status ok = check_scale_ld("a_scale_ld", args.a_scale_ld, p.a, args.m, p.k); !ok) return ok;
  return check_scale_ld("b_scale_ld", args.b_scale_ld, p.b, p.n, p.k);
}

Status check_arguments(const QuantizeProblem& p, octile_quantize_args& args) {
  if (Status ok = check_extent("rows", args.rows); !ok) return ok;
  if (Status ok = check_groups(p, args); !ok) return ok;
  if (Status ok = check_shard_extent(p, args); !ok) return ok;
  if (is_nothing(p, args)) return {};
  if (Status ok = check_policy(p, args); !ok) return ok;
  if (Status ok = check_nonfinite(p, args); !ok) return ok;
  if (p.shard != ShardStep::kNone) {
    if (Status ok = check_pointer("x", args.x, size_of(p.x.dtype)); !ok) return ok;
    return check_shard(p, args);
  }
  const std::int64_t tensors = p.grouping == Grouping::kMasked ? args.groups : 1;
  const std::int64_t rows = args.rows * tensors;  // both of 31 bits
  if (Status ok = check_sources(p, args, rows); !ok) return ok;
  if (Status ok = check_x_scale(p, args); !ok) return ok;
  if (p.operation == QuantizeOperation::kDequantize) return check_widened(p, args);
  if (has_rowwise(p.output)) {
    if (Status ok = check_pointer("q", args.q, 1); !ok) return ok;
    if (Status ok = check_ld("ldq", args.ldq, {p.cols, p.cols, 1}); !ok) return ok;
    if (Status ok = check_size("rows", rows, "ldq", args.ldq, 1); !ok) return ok;
    if (Status ok = check_pointer("scale", args.scale, scale_alignment(p.q)); !ok) return ok;
    if (Status ok = check_scale_ld("scale_ld", args.scale_ld, p, args.rows); !ok) return ok;
  }
  if (p.output == QuantizeOutput::kRowwise) return check_no_transposed(args);
  if (Status ok = check_pointer("q_transposed", args.q_transposed, 1); !ok) return ok;
  return check_pointer("scale_transposed", args.scale_transposed, scale_alignment(p.q));
}

Status check_arguments(const octile_scale_update_args& args) {
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
  if (Status ok = check_pointer("history", args.history, 4); !ok) return ok;
  return check_pointer("encode_scale", args.encode_scale, 4);
}

Status check_workspace(const octile_quantize_args& args, std::int64_t needed_bytes) {
  if (needed_bytes == 0) return {};
  if (Status ok = check_pointer("workspace", args.workspace, kWorkspaceAlign); !ok) return ok;
  if (args.workspace_bytes >= static_cast<std::size_t>(needed_bytes)) [[likely]]
    return {};
  return refuse(
      fmt::format("workspace_bytes is {}; allowed: {} or more, as "
                  "octile_plan_workspace_size says",
                  args.workspace_bytes, needed_bytes));
}

}  // namespace octile
