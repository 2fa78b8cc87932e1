#include "tools/explain/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "generator/core/expression.h"
#include "generator/quantize/fused_source.h"

namespace octile::tools {
namespace {

constexpr std::string_view kFp8Type =
    "dtype:granularity[:format], such as e4m3:1x128 or e4m3:row:pow2";

// '_' means '?' and needs no quotes in a shell.
constexpr std::string_view kCountOrOpen = "0 to 2147483647, or '?' or '_'";

constexpr std::array kGemmFields{
    FieldMeaning{"m", kCountOrOpen, "",
                 "rows of A and D; '?' leaves the token count open, and one plan serves all of "
                 "them"},
    FieldMeaning{"n", "0 to 2147483647, a multiple of 8 (of 16 if D is FP8)", "",
                 "columns of D, rows of B: a layer's output features"},
    FieldMeaning{
        "k", kCountOrOpen, "",
        "columns of A and B, over which products are summed; rows begin at multiples of 16 "
        "elements (lda, ldb); '?' is for weight gradients, which sum over the tokens"},
    FieldMeaning{"a", kFp8Type, "",
                 "type of A [m,k]: its FP8 format, how many elements share a scale, and the "
                 "format of the scales"},
    FieldMeaning{"b", kFp8Type, "", "type of B [n,k]: as that of A"},
    FieldMeaning{
        "d", "bf16, fp16, fp32, or e4m3:1x128, e5m2:1x128", "",
        "type of D [m,n]; FP8 D is quantised from the fp32 sums and has scales of its own"},
    FieldMeaning{"acc", "0 or 1", "", "1 adds to the sums that D holds, as weight gradients do"},
    FieldMeaning{
        "promote", "32, 64, 128 or none with block scales, otherwise 128, 256, 512 or none", "",
        "after this number of elements of K the tensor core's partial sum is added to an fp32 "
        "sum; none: it sums all of K and multiplies block scales, powers of two, itself"},
    FieldMeaning{"bias", "bf16 or fp32", "none",
                 "type of a vector [n] that is added to every row of the fp32 sum"},
    FieldMeaning{"sentry", "1 or squares", "none",
                 "1 reports whether D has a NaN or an infinity; squares also sums its squares"},
    FieldMeaning{"invariant", "0 or 1", "0",
                 "1: a row of D has the same bits at every token count"},
    FieldMeaning{"group", "contiguous or masked", "none",
                 "groups of tokens (experts), each with a B of its own, or with a D of its own if "
                 "k is open"},
    FieldMeaning{"groups", "1 to 1024", "none", "how many groups; given with group"},
    FieldMeaning{
        "batch", "1 to 1024", "one GEMM",
        "this number of GEMMs of these dimensions, whose matrices lie at constant strides"},
    FieldMeaning{"sum", "0 or 1", "0",
                 "1: D is the sum of the batch's products, so that the tokens of a weight gradient "
                 "lie in as many panels; with k=?"},
};

constexpr FieldMeaning kRows{"rows", kCountOrOpen, "",
                             "rows of x: tokens, or a weight's output features; '?' leaves the "
                             "count open"};
constexpr FieldMeaning kCols{"cols", "0 to 2147483647", "", "columns of x"};
constexpr FieldMeaning kGroup{"group", "contiguous, masked or stacked", "none",
                              "groups of tokens: contiguous ones have their offsets on the device, "
                              "masked ones their counts; stacked: tensors of one shape, one behind "
                              "the other, such as the weights of experts"};
constexpr FieldMeaning kScales{"scales", "linear, swizzled or rows", "linear",
                               "how row-wise scales lie in memory; swizzled: E8M0 in tiles of "
                               "128 x 4, as block-scaled tensor cores read them; rows: the 1x128 "
                               "scales of a row together, so that they travel with it"};
constexpr FieldMeaning kPieces{
    "pieces", "none, amax, scales or cast", "none",
    "a step of flat ranges of many tensors, which lie on several ranks, "
    "in one launch: amax finds the maxima of the ranges, scales makes "
    "all scales of the maxima of all ranks, cast quantises the ranges by "
    "them. A table gives the rows and columns of each (octile/pieces.h)"};
constexpr FieldMeaning kTransposedPieces{"pieces", "none or transpose", "none",
                                         "transpose: many tensors in one launch, whose rows and "
                                         "columns a table gives (octile/pieces.h)"};
constexpr FieldMeaning kVia{"via", "none or bf16", "none",
                            "bf16 rounds fp32 x to bf16 before its maxima are found, so that the "
                            "result is that of x in bf16"};
// The parser takes them for every operation; the other operations take the default only.
constexpr std::string_view kOnlyDefault =
    "takes its default only: no scale is found, and nothing is computed before the cast";

constexpr std::array kQuantizeFields{
    kRows,
    kCols,
    FieldMeaning{"x", "bf16, fp16, fp32, or an FP8 type with scales", "", "type of the input"},
    FieldMeaning{"q", kFp8Type, "",
                 "type of the result: its FP8 format, how many elements share a scale, and the "
                 "format of the scales"},
    FieldMeaning{"out", "row, col or both", "",
                 "which copies are written: row keeps the layout of x, col is the transposed copy "
                 "with blocks along the rows, both come from one read"},
    FieldMeaning{"eps", "a number from 0 on", "0", "a block's maximum below it is raised to it"},
    FieldMeaning{"round", "up or ocp_floor", "up",
                 "how an E8M0 scale becomes a power of two: up saturates nothing, ocp_floor is the "
                 "OCP text's and may"},
    FieldMeaning{"policy", "current or delayed", "current",
                 "current takes the scale from the tensor's own maximum; delayed is given the "
                 "scale and records the maximum"},
    FieldMeaning{"src",
                 "a name such as silu_mul or rmsnorm, or calls of functions over x0 to x3 such as "
                 "mul(x0,x0)",
                 "x itself", "what is computed from the inputs before the cast", true},
    FieldMeaning{"norm_eps", "a number from 0 on", "1e-6",
                 "added to the mean of squares by src=rmsnorm"},
    FieldMeaning{"weighted", "0 or 1", "0",
                 "1 multiplies the source's values by a factor of each row; with src of at most "
                 "three inputs"},
    FieldMeaning{"dbias", "0 or 1", "0", "1 also writes the sums of the columns: a bias gradient"},
    FieldMeaning{"tap", "0 or 1", "0",
                 "1 also writes the fp32 values that the cast sees; with src"},
    kGroup,
    kScales,
    FieldMeaning{
        "skip", "never or unchanged", "never",
        "unchanged compares x with the x of the call before, and does nothing if they are equal"},
    kVia,
    kPieces,
};

// Fields that the other operations take with their default only.
constexpr std::array kBeforeTheCast{
    FieldMeaning{"eps", "0", "0", kOnlyDefault},
    FieldMeaning{"round", "up", "up", kOnlyDefault},
    FieldMeaning{"policy", "current", "current", kOnlyDefault},
    FieldMeaning{"src", "", "x itself", kOnlyDefault},
    FieldMeaning{"norm_eps", "1e-6", "1e-6", kOnlyDefault},
    FieldMeaning{"weighted", "0", "0", kOnlyDefault},
    FieldMeaning{"dbias", "0", "0", kOnlyDefault},
    FieldMeaning{"tap", "0", "0", kOnlyDefault},
};
constexpr FieldMeaning kAlways{"skip", "never", "never", kOnlyDefault};
constexpr FieldMeaning kNoPieces{"pieces", "none", "none", kOnlyDefault};
constexpr FieldMeaning kNoType{"via", "none", "none", kOnlyDefault};

// Returns the fields of an operation that finds no scales: `own` are its input, its result and the
// layout of that.
constexpr auto fields_without_scales(const std::array<FieldMeaning, 3>& own,
                                     const FieldMeaning& pieces,
                                     const FieldMeaning& via = kNoType) {
  std::array<FieldMeaning, 2 + 3 + kBeforeTheCast.size() + 5> all{kRows, kCols};
  auto end = std::ranges::copy(own, all.begin() + 2).out;
  end = std::ranges::copy(kBeforeTheCast, end).out;
  std::ranges::copy(std::array{kGroup, kScales, kAlways, via, pieces}, end);
  return all;
}

constexpr std::array kDequantizeFields = fields_without_scales(
    {{
        {"x", kFp8Type, "", "type of the input, with its scales"},
        {"q", "bf16, fp16 or fp32", "", "type of the result, x times its scale"},
        {"out", "row", "", "the result has the layout of x"},
    }},
    kNoPieces);

constexpr std::array kTransposeFields = fields_without_scales(
    {{
        {"x", "an FP8 type with square blocks: e4m3:128x128, e4m3:32x32, e4m3:tensor", "",
         "type of the input, with its scales"},
        {"q", "the type of x", "", "type of the result: codes move and are not rounded"},
        {"out", "col", "", "the result is the transposed copy"},
    }},
    kTransposedPieces);

constexpr std::array kGatherFields = fields_without_scales(
    {{
        {"x", "an FP8 type with 1x128 blocks: e4m3:1x128:pow2", "",
         "type of the input, whose scales lie by rows"},
        {"q", "the type of x", "", "type of the result: codes move and are not rounded"},
        {"out", "row", "", "the result has rows of x, by an index, with scales as a GEMM reads"},
    }},
    kNoPieces);

constexpr auto kAmaxFields = [] {
  auto all = fields_without_scales({{
                                       {"x", "bf16, fp16 or fp32", "", "type of the input"},
                                       {"q", "an FP8 type with one scale: e4m3:tensor", "",
                                        "type that the maximum is to scale; no q is written"},
                                       {"out", "row", "row", kOnlyDefault},
                                   }},
                                   kNoPieces, kVia);
  for (FieldMeaning& field : all) {
    if (field.name == kGroup.name || field.name == kScales.name) field.meaning = kOnlyDefault;
  }
  return all;
}();

constexpr std::array<OperationMeaning, 6> kOperations{{
    {"gemm", "D[m,n] = A[m,k] B[n,k]^T, or added to D; A and B are FP8 with scales, row-major",
     "gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128", kGemmFields},
    {"quantize", "q = fp8(x * encode_scale), with one scale for each block",
     "quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row", kQuantizeFields},
    {"dequantize", "q = x * scale", "dequantize rows=? cols=7168 x=e4m3:1x128 q=bf16 out=row",
     kDequantizeFields},
    {"transpose", "q = x^T, codes and scales moved without rounding",
     "transpose rows=? cols=7168 x=e4m3:128x128 q=e4m3:128x128 out=col", kTransposeFields},
    {"gather", "rows of x by an index, codes and scales moved without rounding",
     "gather rows=? cols=7168 x=e4m3:1x128:pow2 q=e4m3:1x128:pow2 out=row", kGatherFields},
    {"amax", "the largest finite |x|, which raises a float of the caller",
     "amax rows=? cols=7168 x=bf16 q=e4m3:tensor", kAmaxFields},
}};

// Returns the section about src=.
std::string sources_markdown() {
  std::string functions = expression_functions();
  functions.replace(functions.find(" neg"), 1, "\n");  // the line's width
  std::string text = fmt::format(
      "\n## Fused sources\n\n"
      "A source is a name, or an expression in function notation without spaces: "
      "`mul(x0,x0)`, not `x0*x0`.\n"
      "`x0` is x; `x1` to `x3` are the inputs beside it. Two expressions joined by `;` write the "
      "two halves of the columns.\n"
      "[numerics.md](numerics.md#fused-sources) has their rounding.\n\n"
      "Functions: `{}`, and decimal constants.\n\n| name | expression | source |\n|---|---|---|\n",
      functions);
  for (const Activation& a : activations())
    text += fmt::format("| `{}` | `{}` | {} |\n", a.name, a.text, a.source);
  return text +
         "| `rmsnorm` | x0 times 1 / sqrt(mean of squares of a row + norm_eps), times a weight x1 "
         "of one row | Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4 |\n"
         "| `rmsnorm_again` | x0 times a given number of the row, rstd, times a weight x1 of one "
         "row | the same, of rows whose 1 / sqrt(..) an earlier call has found |\n"
         "| `layernorm_again` | (x0 - mean) times rstd, two given numbers of the row, times a "
         "weight x1, plus a bias x2, each of one row | Layer Normalization, arXiv 1607.06450 |\n";
}

bool is_useful(const FieldMeaning& field) { return field.meaning != kOnlyDefault; }

}  // namespace

std::span<const OperationMeaning> operation_meanings() { return kOperations; }

const OperationMeaning* find_operation(std::string_view name) {
  const auto* const found = std::ranges::find(kOperations, name, &OperationMeaning::name);
  return found == kOperations.end() ? nullptr : found;
}

const FieldMeaning* find_field(const OperationMeaning& operation, std::string_view name) {
  const auto found = std::ranges::find(operation.fields, name, &FieldMeaning::name);
  return found == operation.fields.end() ? nullptr : &*found;
}

std::string source_words() {
  std::string names;
  for (const Activation& a : activations()) names.append(a.name).append(", ");
  return fmt::format("functions: {}; names: {}rmsnorm, rmsnorm_again, layernorm_again",
                     expression_functions(), names);
}

std::string fields_markdown() {
  std::string text;
  for (const OperationMeaning& operation : kOperations) {
    text += fmt::format(
        "{}## {}\n\n{}.\n\n    {}\n\n| field | takes | default | meaning |\n"
        "|---|---|---|---|\n",
        text.empty() ? "" : "\n", operation.name, operation.formula, operation.example);
    for (const FieldMeaning& field : operation.fields) {
      if (!is_useful(field)) continue;
      text +=
          fmt::format("| `{}` | {} | {} | {}{} |\n", field.name, field.values,
                      field.otherwise.empty() ? "must be given" : field.otherwise, field.meaning,
                      field.is_source ? "; see [fused sources](#fused-sources)" : "");
    }
  }
  return text + sources_markdown();
}

}  // namespace octile::tools
