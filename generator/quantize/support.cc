#include "generator/quantize/support.h"

#include <fmt/format.h>

#include <array>

#include "generator/core/checks.h"
#include "generator/quantize/fused_source.h"

namespace octile {
namespace {

constexpr bool kYes = true;
constexpr bool kNo = false;
constexpr std::string_view kNoFp8 =
    "the GPU has no conversions to FP8, which came with compute capability 8.9";

constexpr std::array kRows = std::to_array<SupportRow>({
    // unit= matches only if a device is asked about.
    {"quantize", "unit=none", kNo, kNoFp8},
    // The values of FP8 x are code * scale in fp32. From there on x is treated as fp32 x.
    // A fingerprint is of one tensor as it lies in memory.
    {"quantize", "skip=unchanged x=e4m3|e5m2", kNo,
     "only weights are compared, in bf16, fp16 or fp32"},
    {"quantize", "skip=unchanged src=fused|rmsnorm|layernorm", kNo,
     "only weights are compared, and they have no source"},
    {"quantize", "skip=unchanged dbias=1", kNo,
     "only weights are compared, not gradients of outputs"},
    {"quantize", "skip=unchanged group=contiguous|masked", kNo,
     "only weights are compared, not groups of tokens"},
    {"quantize", "group=stacked x=e4m3|e5m2", kNo,
     "only weights are stacked, in bf16, fp16 or fp32"},
    {"quantize", "group=stacked src=fused|rmsnorm|layernorm", kNo,
     "only weights are stacked, and they have no source"},
    {"quantize", "group=stacked dbias=1", kNo,
     "only weights are stacked, not gradients of outputs"},
    {"quantize", "group=stacked policy=delayed", kNo,
     "only weights are stacked, and each has its own scales"},
    {"quantize", "group=stacked scales=swizzled|rows", kNo,
     "only weights are stacked, and their scales are linear"},
    {"quantize", "x=e4m3|e5m2:tensor|row|128x128:ue8m0x4|e8m0", kNo,
     "the layouts have no such scale format for x's granularity"},
    {"quantize", "x=e4m3|e5m2:1x128:e8m0", kNo,
     "the layouts have no such scale format for x's granularity"},
    {"quantize", "x=e4m3|e5m2:1x32|32x32:f32|pow2|ue8m0x4|bf16", kNo,
     "the layouts have no such scale format for x's granularity"},
    {"quantize", "x=e4m3|e5m2 src=fused|rmsnorm|layernorm", kNo,
     "fused sources read bf16, fp16 and fp32: dequantize FP8 x first"},
    {"quantize", "x=e4m3|e5m2:tensor|128x128|32x32 group=contiguous|masked", kNo,
     "a scale of x would belong to several groups"},
    {"quantize", "x=e4m3|e5m2 group=masked", kNo,
     "masked groups are for decoding, which quantises once"},
    {"quantize", "src=layernorm out=row|both", kNo,
     "a layer norm is computed again only for its transposed copy: quantise its result for the "
     "row-wise one"},
    {"quantize", "src=layernorm tap=1", kNo, "not built yet: the values of a layer norm"},
    {"quantize", "src=rmsnorm|layernorm weighted=1", kNo,
     "a norm's rows are weighted by its own factor"},
    {"quantize", "src=rmsnorm|layernorm dbias=1", kNo,
     "a bias gradient is a sum of gradients, which a norm's result is not"},
    {"quantize", "src=rmsnorm|layernorm group=contiguous|masked", kNo,
     "a norm is taken before tokens are dispatched to groups"},
    {"quantize", "dbias=1 group=contiguous|masked", kNo, "bias gradients are of one tensor"},
    {"quantize", "group=contiguous q=*:128x128|32x32", kNo,
     "a square block's rows would belong to several groups: square scales are for weights"},
    {"quantize", "group=contiguous q=*:row out=col|both", kNo,
     "no GEMM takes a scale of a column for each group: use 1x128 or 1x32 blocks, which end with "
     "their group"},
    {"quantize", "group=contiguous scales=swizzled out=row|both", kNo,
     "a tile of 128 rows' scales would belong to several groups"},
    {"quantize", "group=masked out=col|both", kNo,
     "masked groups are for decoding, which has no backward pass to transpose for"},
    {"quantize", "pieces=amax|scales|cast q=*:row|1x128|1x32", kNo,
     "pieces have scales of square blocks or of tensors, which transposed copies have too"},
    {"quantize", "scales=swizzled q=*:32x32", kNo,
     "the tensor cores read a scale of every row: 1x32 blocks have them"},
    {"quantize", "scales=rows x=e4m3|e5m2", kNo,
     "FP8 codes with scales are moved unchanged: use gather"},
    {"quantize", "scales=rows out=col|both", kNo,
     "only rows travel; their transposed copy is made after they have arrived"},
    {"quantize", "scales=rows src=rmsnorm", kNo, "not built yet: norms whose rows travel"},
    {"quantize", "scales=rows dbias=1", kNo, "not built yet: bias gradients of rows that travel"},
    {"quantize", "scales=rows group=contiguous|masked", kNo,
     "rows are quantised before they are sorted into groups"},
    {"quantize", "scales=rows skip=unchanged", kNo,
     "only weights are compared, and their rows do not travel"},
    {"quantize", "scales=rows q=*:1x128:ue8m0x4|bf16", kNo,
     "not built yet: rows that travel with other scales than fp32"},
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

    {"dequantize", "unit=none", kNo, kNoFp8},
    {"dequantize", "group=contiguous|masked|stacked", kNo,
     "a group's rows lie as one tensor's: dequantize them all"},
    {"dequantize", "x=*:tensor|row|1x128|128x128:f32|pow2|bf16", kYes,
     "code * scale, rounded to fp32 and then to q"},
    {"dequantize", "x=*:1x128:ue8m0x4", kYes, "four consecutive blocks' exponents in an int32"},
    {"dequantize", "x=*:1x32|32x32:e8m0", kYes, "255 is a scale of NaN"},
    {"dequantize", "", kNo, "the layouts have no such scale format for this granularity"},

    {"transpose", "unit=none", kNo, kNoFp8},
    {"transpose", "group=contiguous|masked", kNo, "token groups have no scales of square blocks"},
    {"transpose", "scales=swizzled", kNo, "not built yet: moving swizzled scales"},
    {"transpose", "q=*:tensor|128x128:f32|pow2|bf16", kYes,
     "codes and scales are moved, nothing is rounded again"},
    {"transpose", "q=*:32x32:e8m0", kYes, "codes and scales are moved, nothing is rounded again"},
    {"transpose", "q=*:row|1x128|1x32", kNo,
     "blocks along the rows are not blocks along the columns: quantize x again, out=col"},
    {"transpose", "", kNo, "the layouts have no such scale format for this granularity"},

    {"gather", "unit=none", kNo, kNoFp8},
    {"gather", "group=contiguous|masked|stacked", kNo, "the index says which rows a group has"},
    {"gather", "scales=rows", kNo,
     "gathered rows are multiplied next, so their scales are in the GEMM's layout"},
    {"gather", "q=*:1x128:f32|pow2", kYes,
     "codes and scales are moved; x's scales lie by rows, q's as a GEMM reads them"},
    {"gather", "", kNo, "rows travel with fp32 scales of 1x128 blocks"},

    {"amax", "unit=none", kNo, kNoFp8},
    {"amax", "q=*:tensor:f32|pow2|bf16", kYes,
     "x is read once; the maximum raises a float of the caller, which ranks reduce"},
    {"amax", "", kNo, "the layouts have no such scale format for this granularity"},
});

std::string_view name_of(const SourceShape& source) {
  return source.layer_norm ? "layernorm" : source.norms ? "rmsnorm" : "fused";
}

Status check_sizes(const QuantizeProblem& p) {
  Status x = is_fp8(p.x.dtype) ? check_quantized_size("X[rows,cols]", p.x, p.rows, p.cols)
                               : check_plain_size("X[rows,cols]", p.x.dtype, p.rows, p.cols);
  if (!x) return x;
  if (!is_fp8(p.q.dtype)) return check_plain_size("Q[rows,cols]", p.q.dtype, p.rows, p.cols);
  if (p.output != QuantizeOutput::kTransposed) {
    if (Status s = check_quantized_size("Q[rows,cols]", p.q, p.rows, p.cols); !s) return s;
  }
  if (p.output == QuantizeOutput::kRowwise) return {};
  return check_quantized_size("transposed Q[cols,rows]", p.q, p.rows, p.cols, true);
}

}  // namespace

std::span<const SupportRow> quantize_support_rows() { return kRows; }

FieldValues field_values(const QuantizeProblem& p) {
  const auto text_of_source = [&]() -> std::string_view {
    return p.source.empty() ? "x" : name_of(source_shape(p.source));
  };
  return {type_value("x", p.x),
          type_value("q", p.q),
          {"out", {name_of(p.output)}},
          {"src", {text_of_source()}},
          {"weighted", {p.weighted ? "1" : "0"}},
          {"dbias", {p.bias_gradient ? "1" : "0"}},
          {"tap", {p.tap ? "1" : "0"}},
          {"group", {name_of(p.grouping)}},
          {"policy", {name_of(p.policy)}},
          {"scales", {name_of(p.scale_layout)}},
          {"skip", {p.skip_unchanged ? "unchanged" : "never"}},
          {"via", {p.via ? name_of(*p.via) : "none"}},
          {"pieces", {name_of(p.pieces)}}};
}

const SupportRow& support_of(const QuantizeProblem& p) {
  return first_match(kRows, operation_of(p), field_values(p));
}

Status check_supported(const QuantizeProblem& p) {
  if (Status s = check_well_formed(p); !s) return s;
  if (Status s = check_rows(kRows, operation_of(p), field_values(p),
                            field_values(QuantizeProblem{}), to_text(p));
      !s)
    return s;
  // Last, because only a combination that the matrix takes has a layout.
  return check_sizes(p);
}

Status check_supported(const QuantizeProblem& p, const DeviceSpec& device) {
  if (Status s = check_supported(p); !s) return s;
  return check_device_rows(kRows, operation_of(p), field_values(p), fmt::format("'{}'", to_text(p)),
                           device);
}

}  // namespace octile
