#include "generator/quantize/residency.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "generator/quantize/composition.h"
#include "generator/quantize/fused_source.h"
#include "generator/quantize/support.h"

namespace octile {
namespace {

using enum TileKind;

constexpr std::string_view kGroup = "a group's first row takes registers";
constexpr std::string_view kSharedGroup =
    "what a thread block knows of its group stays in shared memory";
constexpr std::string_view kWeight = "the factors of the rows take registers";
constexpr std::string_view kRounding = "rounding takes registers";
constexpr std::string_view kSwizzle = "a scale's swizzled address takes registers";
constexpr std::string_view kTwoAdditions = "a tap and a bias gradient take registers";
constexpr std::string_view kAddition = "a tap or a bias gradient takes registers";
constexpr std::string_view kOwn =
    "of little arithmetic on several inputs the assembler keeps more at once";
constexpr std::string_view kNormal = "the normal distribution takes registers";
constexpr std::string_view kCompact = "scales are put together before they are stored";
constexpr std::string_view kOneThingMore = "a patch takes 32 registers; one thing more fits";

// Every row of kPatch and kHalves with 16 warps stands for a problem that spilled with 32, or for a
// kind of problem of which some spilled. For computed values, 17 sources of one to four 16-bit
// inputs were compiled with every granularity and output, a bias gradient, a tap and groups.
constexpr std::array kResidencyRows = std::to_array<ResidencyRow>({
    {kLoads, "scales=swizzled", 20, kSwizzle},
    {kLoads, "op=gather", 32, "codes are moved as they are"},
    {kLoads, "x=e4m3|e5m2 group=contiguous|masked", 20, kGroup},
    {kLoads, "group=masked", 20, kGroup},
    {kLoads, "held=fp32", 24, "vectors hold four elements and need more addresses"},
    {kLoads, "q=*:tensor", 24, "the tensor's scale and a maximum take registers"},
    {kLoads, "q=*:*:ue8m0x4|e8m0", 24, kCompact},
    {kLoads, "", 32, "a scale and an address are all that loads need beside them"},

    {kOneRow, "held=fp32", 24, "vectors hold four elements and need more addresses"},
    {kOneRow, "", 32, "a row has one address"},

    {kStreamed, "x=fp32 inputs=3|4 group=masked", 8,
     "the addresses of six loads a row, and a group's"},
    {kStreamed, "x=fp32 inputs=3|4 group=contiguous", 14,
     "the addresses of six loads a row, and a group's"},
    {kStreamed, "group=masked", 16, kGroup},
    {kStreamed, "", 20, "a step of 32 values, and the addresses of its rows"},

    {kStaged, "out=both scales=swizzled", 16, kSwizzle},
    {kStaged, "out=both x=e4m3|e5m2 q=*:1x32 group=contiguous|masked", 16, kGroup},
    {kStaged, "out=both", 24, "two copies are stored from one patch"},
    {kStaged, "q=*:1x128|128x128|1x32|32x32 group=none scales=linear dbias=0", 32,
     "nothing but a patch is held"},
    {kStaged, "q=*:1x128:f32|pow2|bf16 x=bf16|fp16|fp32 group=contiguous dbias=0", 32,
     "strips of groups need no more than those of a tensor"},
    {kStaged, "", 24,
     "maxima of another kernel, a group's first row, a swizzled address or sums of columns take "
     "registers"},

    {kPatch, "scales=swizzled", 16, kSwizzle},
    {kPatch, "by=name x=bf16|fp16 q=*:1x128:f32|pow2 group=contiguous weighted=1 out=col tap=0", 32,
     kSharedGroup},
    {kPatch, "weighted=1", 16, kWeight},
    {kPatch, "group=contiguous|masked", 16, kGroup},
    {kPatch, "src=x x=fp32 q=e5m2:row|1x32 group=stacked", 16, kGroup},
    {kPatch, "src=x dbias=1", 16, kAddition},
    {kPatch, "src=x out=col", 32, kOneThingMore},
    {kPatch, "src=x q=*:tensor|row|128x128|32x32", 32,
     "scales of square blocks are stored when the patch is no longer needed"},
    {kPatch, "src=x q=e4m3:1x128:f32|pow2", 32, kOneThingMore},
    {kPatch, "src=x", 16, "two copies' scales and codes are held beside the patch"},
    {kPatch, "x=fp32", 16, "inputs of four bytes wait beside the patch"},
    {kPatch, "inputs=4", 16, "four inputs wait beside the patch"},
    {kPatch, "tap=1 dbias=1", 16, kTwoAdditions},
    {kPatch, "normal=1 out=both", 16, kNormal},
    {kPatch, "src=layernorm q=*:tensor", 16, "a mean, a weight and a bias wait beside the patch"},
    {kPatch, "divides=1", 16, "a division is a function with registers of its own"},
    {kPatch, "halves=1 by=caller inputs=2|3", 16, kOwn},
    {kPatch, "halves=1 tap=1", 16, kAddition},
    {kPatch, "halves=1 dbias=1", 16, kAddition},
    {kPatch, "halves=1 q=*:*:ue8m0x4", 16, kCompact},
    {kPatch, "halves=1 q=*:row", 16, "the place of a half and a row's scale take registers"},
    {kPatch, "halves=1 q=*:1x32 out=row|col", 16, "four scales of 128 elements take registers"},
    {kPatch, "halves=1 out=row|col", 32, kOneThingMore},
    {kPatch, "halves=1 q=e4m3:1x128:f32|pow2", 32, kOneThingMore},
    {kPatch, "halves=1", 16, "two copies' scales and codes are held beside the patch"},
    {kPatch, "q=*:row", 32, "scales of rows are another kernel's"},
    {kPatch, "q=*:tensor tap=1", 16, kAddition},
    {kPatch, "q=*:tensor by=caller inputs=2|3 out=both", 16, kOwn},
    {kPatch, "q=*:tensor by=caller inputs=2|3 dbias=1", 16, kOwn},
    {kPatch, "q=*:tensor", 32, "the tensor's scale is another kernel's"},
    {kPatch, "q=*:128x128|32x32 out=row|col", 32, kOneThingMore},
    {kPatch, "q=*:128x128|32x32 tap=1", 16, kAddition},
    {kPatch, "q=*:128x128|32x32 dbias=1", 16, kAddition},
    {kPatch, "q=*:128x128|32x32 by=caller inputs=2|3", 16, kOwn},
    {kPatch, "q=*:128x128|32x32", 32, "both copies have the same scales"},
    {kPatch, "q=*:1x128 out=both tap=1", 16, kAddition},
    {kPatch, "q=*:1x128 out=both dbias=1", 16, kAddition},
    {kPatch, "q=*:1x128:ue8m0x4|bf16 out=both", 16, kCompact},
    {kPatch, "q=*:1x128 out=both", 32, kOneThingMore},
    {kPatch, "q=*:1x128:ue8m0x4 tap=1", 16, kCompact},
    {kPatch, "q=*:1x128:ue8m0x4 dbias=1", 16, kCompact},
    {kPatch, "q=*:1x128:ue8m0x4 by=caller inputs=2|3", 16, kCompact},
    {kPatch, "q=*:1x128", 32, kOneThingMore},
    {kPatch, "q=*:1x32 out=both", 16, "four scales of 128 elements take registers"},
    {kPatch, "q=*:1x32 tap=1", 16, kAddition},
    {kPatch, "q=*:1x32 dbias=1", 16, kAddition},
    {kPatch, "q=*:1x32 by=caller inputs=2|3", 16, kOwn},
    {kPatch, "", 32, kOneThingMore},

    // The tile's origin waits in shared memory.
    {kHalves, "scales=swizzled", 16, kSwizzle},
    {kHalves,
     "by=name sigmoid=1 x=bf16|fp16 q=*:1x128:f32|pow2 group=contiguous weighted=1 out=both tap=0",
     32, kSharedGroup},
    {kHalves, "weighted=1", 16, kWeight},
    {kHalves, "x=fp32", 16, "inputs of four bytes wait beside the patch"},
    {kHalves, "by=caller", 16, kOwn},
    {kHalves, "normal=1 out=both", 16, kNormal},
    {kHalves, "tap=1 dbias=1", 16, kTwoAdditions},
    {kHalves, "q=*:1x128 group=contiguous|masked", 16, kGroup},
    {kHalves, "q=*:1x128 out=both tap=1", 16, kAddition},
    {kHalves, "q=*:1x128 out=both via=bf16", 16, kRounding},
    {kHalves, "q=*:1x128:ue8m0x4|bf16 out=both", 16, kCompact},
    {kHalves, "q=*:1x32 out=both", 16, "four scales of 128 elements take registers"},
    {kHalves, "q=*:tensor out=both dbias=1", 16, kAddition},
    {kHalves, "", 32, kOneThingMore},

    {kRowwise, "x=e4m3|e5m2 dbias=1", 8, kAddition},
    {kRowwise, "x=e4m3|e5m2", 24, "a thread holds 32 bytes of codes"},
    // With 64 registers and 32 warps bf16 128x128 is 1 % slower on an H200.
    {kRowwise, "src=x x=bf16|fp16", 24, "80 registers are faster than 64"},
    {kRowwise, "dbias=1", 16, kAddition},
    {kRowwise, "src=x", 32, kOneThingMore},
    {kRowwise, "group=contiguous|masked", 16, kGroup},
    {kRowwise, "x=fp32 inputs=2|3|4", 16, "inputs of more than four bytes a value"},
    {kRowwise, "inputs=3|4", 16, "inputs of more than four bytes a value"},
    {kRowwise, "", 32, kOneThingMore},

    {kRow, "inputs=3|4", 16, "inputs of more than four bytes a value"},
    {kRow, "src=fused|rmsnorm group=contiguous|masked", 18, kGroup},
    {kRow, "x=e4m3|e5m2 group=contiguous|masked", 18, kGroup},
    {kRow, "x=fp32 q=e5m2:row group=masked", 16, kGroup},
    {kRow, "x=fp32 group=contiguous|masked", 24, kGroup},
    {kRow, "src=fused|rmsnorm", 24, "computed values are fp32"},
    {kRow, "x=e4m3|e5m2", 24, "widened codes are fp32"},
    {kRow, "via=bf16", 24, kRounding},
    {kRow, "", 32, "32 registers of input"},

    {kNorm, "tap=1", 24, kAddition},
    {kNorm, "q=*:*:ue8m0x4", 24, kCompact},
    {kNorm, "x=fp32", 24, "inputs of four bytes take registers"},
    {kNorm, "", 28, "32 registers of values"},
    {kLongNorm, "tap=1", 16, kAddition},
    {kLongNorm, "q=*:*:ue8m0x4", 16, kCompact},
    {kLongNorm, "x=fp32", 16, "inputs of four bytes take registers"},
    {kLongNorm, "", 20, "64 registers of values"},
});

constexpr std::string_view kAda = "ptxas takes more registers for compute capability 8.9";
constexpr std::string_view kBlackwell =
    "ptxas takes more registers for compute capabilities 10.x and 12.x";
constexpr std::array kTighterRows = std::to_array<TighterRow>({
    {"unit=mma q=*:1x32 scales=swizzled dbias=1", kAda},
    {"unit=mma halves=1 q=*:1x128 out=both via=bf16", kAda},
    {"unit=mma x=fp32 q=*:row group=masked", kAda},
    {"unit=tcgen05|mma_scaled out=col", kBlackwell},
    {"unit=tcgen05|mma_scaled x=fp32 out=both", kBlackwell},
    {"unit=tcgen05|mma_scaled src=fused|rmsnorm|layernorm", kBlackwell},
    {"unit=tcgen05|mma_scaled dbias=1", kBlackwell},
});

std::string_view flag_text(bool value) { return value ? "1" : "0"; }

// Returns whether a source calls one of the functions.
bool reads(std::string_view source, std::initializer_list<std::string_view> functions) {
  const auto named = std::ranges::find(activations(), source, &Activation::name);
  if (named != activations().end()) source = named->text;
  return std::ranges::any_of(functions, [&](std::string_view function) {
    return source.find(function) != std::string_view::npos;
  });
}
bool reads_normal(std::string_view source) { return reads(source, {"normcdf(", "normpdf("}); }

// Returns the type of a thread's elements, of which a 16-byte vector has elements_per_vector().
DType element_type(const QuantizeProblem& p) {
  if (holds_codes(p)) return DType::kBF16;  // codes are held by eights, as 16-bit values are
  return p.operation == QuantizeOperation::kDequantize ? p.q.dtype : source_type(p);
}

}  // namespace

FieldValues residency_values(const QuantizeProblem& p) {
  constexpr std::array<std::string_view, 5> kCounts{"0", "1", "2", "3", "4"};
  const SourceShape source = source_shape(p.source);
  const bool divides = p.source.find("div(") != std::string::npos ||
                       p.source.find("reciprocal(") != std::string::npos;
  const auto inputs = static_cast<std::size_t>(std::clamp(source.streams(), 0, 4));
  FieldValues values = field_values(p);
  values.insert(values.end(),
                {{"op", {operation_of(p)}},
                 {"held", {name_of(element_type(p))}},
                 {"inputs", {kCounts.at(inputs)}},
                 {"halves", {flag_text(source.halves)}},
                 {"by", {p.source.find('(') != std::string::npos ? "caller" : "name"}},
                 {"divides", {flag_text(divides)}},
                 {"normal", {flag_text(reads_normal(p.source))}},
                 {"sigmoid", {flag_text(reads(p.source, {"sigmoid("}))}}});
  return values;
}

bool matches_values(std::string_view pattern, const FieldValues& values) {
  return matches(SupportRow{.operation = {}, .pattern = pattern, .reason = {}}, {}, values);
}

const ResidencyRow& residency_of(TileKind kind, const FieldValues& values) {
  return *std::ranges::find_if(kResidencyRows, [&](const ResidencyRow& row) {
    return row.kind == kind && matches_values(row.pattern, values);
  });
}

std::span<const ResidencyRow> residency_rows() { return kResidencyRows; }

const TighterRow* tighter_of(const FieldValues& values) {
  const auto it = std::ranges::find_if(
      kTighterRows, [&](const TighterRow& row) { return matches_values(row.pattern, values); });
  return it == kTighterRows.end() ? nullptr : &*it;
}

std::span<const TighterRow> tighter_rows() { return kTighterRows; }

}  // namespace octile
