#include "generator/core/support_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "generator/core/layout.h"

namespace octile {
namespace {

// ---- the data
// ------------------------------------------------------------------------------------

constexpr bool kYes = true;
constexpr bool kNo = false;

constexpr std::array kMatrix = std::to_array<SupportRow>({
    {"gemm", "k=?", kNo, "not built yet: a token count in K (weight gradients)"},
    // WGMMA takes any pair of FP8 types (PTX ISA, wgmma.mma_async .e4m3 .e5m2), and power-of-two
    // scales are fp32 in memory, so a product need not know of them.
    {"gemm",
     "a=e4m3|e5m2:1x128:f32|pow2 b=e4m3|e5m2:128x128:f32|pow2 d=bf16 acc=0 promote=32|64|128", kYes,
     "with invariant=1 K is never split, so that a row has the same bits at every token count"},
    {"gemm", "a=bf16|fp16|fp32", kNo, "A has to be quantised before an FP8 product"},
    {"gemm", "b=bf16|fp16|fp32", kNo, "B has to be quantised before an FP8 product"},
    {"gemm", "d=e4m3|e5m2", kNo, "not built yet: D quantised in the epilogue"},
    {"gemm", "a=*:*:bf16", kNo, "bf16 scales are for communication: widen A's to f32 first"},
    {"gemm", "b=*:*:bf16", kNo, "bf16 scales are for communication: widen B's to f32 first"},
    {"gemm", "a=*:1x128:ue8m0x4", kNo, "not built yet: A's exponents packed into int32"},
    {"gemm", "b=*:1x128:ue8m0x4", kNo, "not built yet: B's exponents packed into int32"},
    {"gemm", "a=*:1x128:f32|pow2 b=*:128x128:f32|pow2 acc=1", kNo,
     "not built yet: adding to D from a 1x128 by 128x128 product"},
    {"gemm", "a=*:1x128:f32|pow2 b=*:128x128:f32|pow2 d=fp16|fp32", kNo,
     "not built yet: D in fp16 or fp32"},
    {"gemm", "a=*:1x128:f32|pow2 b=*:1x128:f32|pow2", kNo,
     "not built yet: both operands in 1x128 blocks (weight gradients)"},
    {"gemm", "a=*:128x128:f32|pow2 b=*:1x128:f32|pow2", kNo,
     "the 128x128 operand goes second: exchange the operands for D transposed"},
    {"gemm", "a=*:128x128:f32|pow2 b=*:128x128:f32|pow2", kNo,
     "no recipe keeps both operands in 128x128 blocks"},
    {"gemm", "a=*:row:f32|pow2 b=*:row:f32|pow2", kNo, "not built yet: scales per row"},
    {"gemm", "a=*:tensor:f32|pow2 b=*:tensor:f32|pow2", kNo, "not built yet: scales per tensor"},
    {"gemm", "a=*:1x32:e8m0 b=*:1x32|32x32:e8m0", kNo,
     "not built yet: MX scales, which Hopper's tensor cores cannot apply themselves"},
    {"gemm", "", kNo, "no recipe multiplies operands scaled in this way"},

    // Of FP8 x the values are code * scale in fp32; what follows is no other than for fp32 x.
    {"quantize", "x=e4m3|e5m2:tensor|row|128x128:ue8m0x4|e8m0", kNo,
     "the layouts have no such scale format for x's granularity"},
    {"quantize", "x=e4m3|e5m2:1x128:e8m0", kNo,
     "the layouts have no such scale format for x's granularity"},
    {"quantize", "x=e4m3|e5m2:1x32|32x32:f32|pow2|ue8m0x4|bf16", kNo,
     "the layouts have no such scale format for x's granularity"},
    {"quantize", "x=e4m3|e5m2 src=fused|rmsnorm", kNo,
     "fused sources read bf16, fp16 and fp32: dequantize FP8 x first"},
    {"quantize", "x=e4m3|e5m2:tensor|128x128|32x32 group=contiguous|masked", kNo,
     "a scale of x would belong to several groups"},
    {"quantize", "x=e4m3|e5m2 group=masked", kNo,
     "masked groups are for decoding, which quantises once"},
    {"quantize", "x=e4m3|e5m2 shard=amax|cast", kNo,
     "shards are of a tensor that is quantised once: x is FP8 already"},
    {"quantize", "src=rmsnorm dbias=1", kNo,
     "a bias gradient is a sum of gradients, which a norm's result is not"},
    {"quantize", "src=rmsnorm group=contiguous|masked", kNo,
     "a norm is taken before tokens are dispatched to groups"},
    {"quantize", "dbias=1 group=contiguous|masked", kNo, "bias gradients are of one tensor"},
    {"quantize", "dbias=1 shard=amax|cast", kNo, "shards are of weights, which have no bias"},
    {"quantize", "shard=amax|cast src=fused|rmsnorm", kNo,
     "shards are of weights, which have no source"},
    {"quantize", "group=contiguous q=*:128x128|32x32", kNo,
     "a square block's rows would belong to several groups: square scales are for weights"},
    {"quantize", "group=contiguous q=*:row out=col|both", kNo,
     "a scale of a column would be a group's alone, and no product takes it: 1x128 and 1x32 blocks "
     "end with their group"},
    {"quantize", "group=contiguous scales=swizzled out=row|both", kNo,
     "a tile of 128 rows' scales would belong to several groups"},
    {"quantize", "group=masked out=col|both", kNo,
     "masked groups are for decoding, which has no backward pass to transpose for"},
    {"quantize", "shard=amax|cast group=contiguous|masked", kNo,
     "shards are of weights, which are not groups of tokens"},
    {"quantize", "shard=amax|cast out=col|both", kNo,
     "what a transposed row holds lies in several shards: transpose what was gathered"},
    {"quantize", "shard=amax|cast policy=delayed", kNo,
     "a given scale needs no maxima: quantise the range as a tensor of one row"},
    {"quantize", "shard=amax|cast scales=swizzled", kNo,
     "scales are put together over the shards before they are swizzled"},
    {"quantize", "shard=amax|cast q=*:row|32x32", kNo,
     "shards have maxima of a tensor, of 1x128, 128x128 and 1x32 blocks"},
    {"quantize", "scales=swizzled q=*:32x32", kNo,
     "the tensor cores read a scale of every row: 1x32 blocks have them"},
    {"quantize", "q=*:1x128|128x128:f32|pow2|bf16", kYes,
     "pow2 keeps the exponent bits of the encode scale; bf16 rounds the stored f32 scale, for "
     "communication"},
    {"quantize", "q=*:1x128:ue8m0x4", kYes, "four consecutive blocks' exponents in an int32"},
    {"quantize", "q=*:1x32|32x32:e8m0", kYes,
     "round=up: the smallest power of two that saturates nothing; round=ocp_floor: the OCP text's"},
    {"quantize", "q=*:tensor:f32|pow2|bf16", kYes,
     "a kernel of its own finds the maximum, in a workspace; policy=delayed: the scale is given, x "
     "is "
     "read once"},
    {"quantize", "q=*:row:f32|pow2|bf16 out=row", kYes,
     "rows of up to 65536 bytes are read once, longer ones twice"},
    {"quantize", "q=*:row:f32|pow2|bf16", kYes,
     "the transposed copy has a scale per column of x: a kernel of its own finds the maxima, in a "
     "workspace"},
    {"quantize", "", kNo, "the layouts have no such scale format for this granularity"},

    {"dequantize", "group=contiguous|masked", kNo,
     "a group's rows lie as one tensor's: dequantize them all"},
    {"dequantize", "x=*:tensor|row|1x128|128x128:f32|pow2|bf16", kYes,
     "code * scale, rounded to fp32 and then to q"},
    {"dequantize", "x=*:1x128:ue8m0x4", kYes, "four consecutive blocks' exponents in an int32"},
    {"dequantize", "x=*:1x32|32x32:e8m0", kYes, "255 is a scale of NaN"},
    {"dequantize", "", kNo, "the layouts have no such scale format for this granularity"},

    {"transpose", "group=contiguous|masked", kNo, "token groups have no scales of square blocks"},
    {"transpose", "scales=swizzled", kNo, "not built yet: moving swizzled scales"},
    {"transpose", "q=*:tensor|128x128:f32|pow2|bf16", kYes,
     "codes and scales are moved, nothing is rounded again"},
    {"transpose", "q=*:32x32:e8m0", kYes, "codes and scales are moved, nothing is rounded again"},
    {"transpose", "q=*:row|1x128|1x32", kNo,
     "blocks along the rows are no blocks along the columns: quantize x again, out=col"},
    {"transpose", "", kNo, "the layouts have no such scale format for this granularity"},
});

// TMA strides are multiples of 16 bytes: K of FP8, and N of bf16, in elements (CUDA driver API,
// cuTensorMapEncodeTiled).
constexpr std::int64_t kNMultiple = 8;
constexpr std::int64_t kKMultiple = 16;

// ---- matching
// ------------------------------------------------------------------------------------

// A field's name and the parts of its value, defaults included; parts it lacks are empty.
struct FieldValue {
  std::string_view name;
  std::array<std::string_view, 3> parts;
};
using FieldValues = std::vector<FieldValue>;

std::string_view operation_of(const Problem& problem) {
  const auto* quantize = std::get_if<QuantizeProblem>(&problem);
  return quantize == nullptr ? "gemm" : name_of(quantize->operation);
}

FieldValue type_field(std::string_view name, const TensorType& t) {
  return {name, {name_of(t.dtype), name_of(t.granularity), name_of(t.scale)}};
}

std::string_view promote_value(int promote) {
  switch (promote) {
    case 32:
      return "32";
    case 64:
      return "64";
    case 128:
      return "128";
    case 256:
      return "256";
    case 512:
      return "512";
    default:
      return "none";
  }
}

// k is looked at for being dynamic only: numbers have rules, not rows.
FieldValues values_of(const GemmProblem& p) {
  return {{"k", {p.k == kDynamic ? "?" : "number"}},
          type_field("a", p.a),
          type_field("b", p.b),
          {"d", {name_of(p.d)}},
          {"acc", {p.accumulate ? "1" : "0"}},
          {"promote", {promote_value(p.promote)}}};
}

FieldValues values_of(const QuantizeProblem& p) {
  const bool row = p.output == QuantizeOutput::kRowwise;
  return {type_field("x", p.x),
          type_field("q", p.q),
          {"out",
           {row                                       ? "row"
            : p.output == QuantizeOutput::kTransposed ? "col"
                                                      : "both"}},
          {"src",
           {p.source.empty()        ? "x"
            : p.source == "rmsnorm" ? "rmsnorm"
                                    : "fused"}},
          {"dbias", {p.bias_gradient ? "1" : "0"}},
          {"tap", {p.tap ? "1" : "0"}},
          {"group",
           {p.grouping == Grouping::kNone     ? "none"
            : p.grouping == Grouping::kContiguous ? "contiguous"
                                              : "masked"}},
          {"policy", {p.policy == ScalePolicy::kDelayed ? "delayed" : "current"}},
          {"shard",
           {p.shard == ShardStep::kNone   ? "none"
            : p.shard == ShardStep::kAmax ? "amax"
                                          : "cast"}},
          {"scales", {p.scale_layout == ScaleLayout::kSwizzled ? "swizzled" : "linear"}}};
}

// The text before the next `separator`, which is taken from `text` together with it.
std::string_view take(std::string_view& text, char separator) {
  const std::size_t cut = std::min(text.find(separator), text.size());
  const std::string_view head = text.substr(0, cut);
  text.remove_prefix(std::min(cut + 1, text.size()));
  return head;
}

bool part_matches(std::string_view alternatives, std::string_view part) {
  if (alternatives == "*") return true;
  while (!alternatives.empty()) {
    if (take(alternatives, '|') == part) return true;
  }
  return false;
}

bool value_matches(std::string_view pattern, const FieldValue& value) {
  for (std::size_t i = 0; !pattern.empty() && i < value.parts.size(); ++i) {
    if (!part_matches(take(pattern, ':'), value.parts[i])) return false;
  }
  return pattern.empty();
}

bool pattern_matches(std::string_view pattern, const FieldValues& values) {
  while (!pattern.empty()) {
    std::string_view field = take(pattern, ' ');
    const std::string_view name = take(field, '=');
    const auto it = std::find_if(values.begin(), values.end(),
                                 [&](const FieldValue& v) { return v.name == name; });
    if (it == values.end() || !value_matches(field, *it)) return false;
  }
  return true;
}

// ---- dimension rules
// -----------------------------------------------------------------------------

Status check_multiple(std::string_view field, std::int64_t value, std::int64_t multiple,
                      std::string_view why) {
  if (value == kDynamic || value % multiple == 0) return {};
  return fail(ErrorCode::kInvalidArgument, fmt::format("{} is {}; allowed are multiples of {}: {}",
                                                       field, value, multiple, why));
}

Status check_multiples(const GemmProblem& p) {
  if (Status s = check_multiple("n", p.n, kNMultiple, "a row of bf16 D is stored in 16-byte units");
      !s) {
    return s;
  }
  return check_multiple("k", p.k, kKMultiple, "rows of A and B are read in 16-byte units");
}

Status check_multiples(const QuantizeProblem&) { return {}; }

// Sizes are asked of the layouts, padding included. A dynamic extent counts as 0 here; the call
// that brings it checks it.
Status check_size(std::string_view tensor, const TensorType& type, std::int64_t rows,
                  std::int64_t cols, bool transposed = false) {
  const std::int64_t known_rows = std::max<std::int64_t>(rows, 0);
  const std::int64_t known_cols = std::max<std::int64_t>(cols, 0);
  const auto layout = quantized_layout(type, known_rows, known_cols, 0, transposed);
  if (layout) return {};
  return fail(layout.error().code, fmt::format("{}: {}", tensor, layout.error().message));
}

Status check_plain_size(std::string_view tensor, DType dtype, std::int64_t rows,
                        std::int64_t cols) {
  if (rows == kDynamic || cols == kDynamic || byte_size(rows, cols, size_of(dtype))) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is {} x {} of {} bytes; allowed are at most 2^63-1 bytes in all",
                          tensor, rows, cols, size_of(dtype)));
}

Status check_sizes(const GemmProblem& p) {
  if (Status s = check_size("A[m,k]", p.a, p.m, p.k); !s) return s;
  if (Status s = check_size("B[n,k]", p.b, p.n, p.k); !s) return s;
  return check_plain_size("D[m,n]", p.d, p.m, p.n);
}

Status check_sizes(const QuantizeProblem& p) {
  const Status x = is_fp8(p.x.dtype) ? check_size("X[rows,cols]", p.x, p.rows, p.cols)
                                     : check_plain_size("X[rows,cols]", p.x.dtype, p.rows, p.cols);
  if (!x) return x;
  if (!is_fp8(p.q.dtype)) return check_plain_size("Q[rows,cols]", p.q.dtype, p.rows, p.cols);
  if (p.output != QuantizeOutput::kTransposed) {
    if (Status s = check_size("Q[rows,cols]", p.q, p.rows, p.cols); !s) return s;
  }
  if (p.output == QuantizeOutput::kRowwise) return {};
  return check_size("transposed Q[cols,rows]", p.q, p.rows, p.cols, true);
}

// Patterns of the rows of an operation that are supported, for an error's "supported are".
std::string supported_patterns(std::string_view operation) {
  std::string text;
  for (const SupportRow& row : kMatrix) {
    if (row.operation != operation || !row.supported) continue;
    text.append(text.empty() ? "" : "; ").append(row.pattern);
  }
  return text;
}

}  // namespace

std::span<const SupportRow> support_matrix() { return kMatrix; }

bool matches(const SupportRow& row, const Problem& problem) {
  return row.operation == operation_of(problem) &&
         pattern_matches(row.pattern,
                         std::visit([](const auto& p) { return values_of(p); }, problem));
}

const SupportRow& support_of(const Problem& problem) {
  // The last row of each operation has an empty pattern, so one always matches.
  return *std::find_if(kMatrix.begin(), kMatrix.end(),
                       [&](const SupportRow& row) { return matches(row, problem); });
}

Status check_supported(const Problem& problem) {
  if (Status s = check_well_formed(problem); !s) return s;
  if (Status s = std::visit([](const auto& p) { return check_multiples(p); }, problem); !s) {
    return s;
  }
  const SupportRow& row = support_of(problem);
  if (!row.supported) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("'{}' is not supported: {}; supported are {}", to_text(problem),
                            row.reason, supported_patterns(row.operation)));
  }
  // Last: a combination the matrix takes is one the layouts have.
  return std::visit([](const auto& p) { return check_sizes(p); }, problem);
}

std::string support_matrix_markdown() {
  std::string text = "| operation | problem | supported | remark |\n|---|---|---|---|\n";
  for (const SupportRow& row : kMatrix) {
    std::string pattern = row.pattern.empty() ? "anything else" : fmt::format("`{}`", row.pattern);
    // A '|' would end the table's cell, also inside backquotes.
    for (std::size_t at = pattern.find('|'); at != std::string::npos;
         at = pattern.find('|', at + 2)) {
      pattern.insert(at, 1, '\\');
    }
    text += fmt::format("| {} | {} | {} | {} |\n", row.operation, pattern,
                        row.supported ? "yes" : "no", row.reason);
  }
  return text;
}

}  // namespace octile
