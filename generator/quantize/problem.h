// A quantiser's computation and its numbers. Its canonical text is parsed and printed here
// alone:
//   quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row
//   dequantize rows=? cols=7168 x=e4m3:1x128 q=bf16 out=row
//   transpose rows=? cols=7168 x=e4m3:128x128 q=e4m3:128x128 out=col
//   gather rows=? cols=7168 x=e4m3:1x128:pow2 q=e4m3:1x128:pow2 out=row
//   amax rows=? cols=7168 x=bf16 q=e4m3:tensor
// '?' marks a dynamic token count. Optional fields are printed only if they differ from their
// default: `eps=...`, `round=ocp_floor`, `policy=delayed`, `src=silu_mul`, `norm_eps=...`,
// `weighted=1`, `dbias=1`, `tap=1`, `group=contiguous`, `scales=swizzled`, `skip=unchanged`,
// `via=bf16`, `pieces=cast`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"
#include "generator/core/grouping.h"
#include "generator/core/recipe.h"
#include "generator/core/token_axis.h"
#include "generator/core/types.h"

namespace octile {

enum class QuantizeOutput : int { kRowwise = 1, kTransposed = 2, kBoth = 3 };  // row, col, both
constexpr bool has_rowwise(QuantizeOutput o) { return o != QuantizeOutput::kTransposed; }
constexpr bool has_transposed(QuantizeOutput o) { return o != QuantizeOutput::kRowwise; }

// How an E8M0 scale is rounded to a power of two.
enum class E8M0Rounding : int {
  kUp = 0,  // "up": the smallest that lets no finite element saturate
  // "ocp_floor": 2^floor(log2 amax) over the format's largest power of two (OCP MX 1.0, section
  // 6.3). A block's largest elements may saturate.
  kOcpFloor = 1,
};

// The source of a tensor's scale.
enum class ScalePolicy : int {
  kCurrent = 0,  // "current": from its own maximum
  kDelayed = 1,  // "delayed": given, derived from the maxima of earlier steps
};

// The operation on x. The text's first word.
enum class QuantizeOperation : int {
  kQuantize = 0,    // "quantize": q = fp8(x * encode_scale); x may be FP8 with scales of its own
  kDequantize = 1,  // "dequantize": q = x * scale, in bf16, fp16 or fp32
  kTranspose = 2,   // "transpose": moves the codes of x and its scales without changing them
  // "gather": row r of q is row index[r] of x, whose scales lie by rows; no code is changed.
  kGather = 3,
  kAmax = 4,  // "amax": raises a float to the largest finite |x|; q's type has one scale
};

// A step of many flat ranges of tensors, the rest of which lies elsewhere (weights split over the
// ranks of an optimizer). Values are those of octile_pieces_step.
enum class PiecesStep : int {
  kNone = 0,       // "none": one tensor
  kAmax = 1,       // "amax": raises the maxima of the blocks that the ranges touch
  kScales = 2,     // "scales": makes the scales of both copies of the reduced maxima
  kCast = 3,       // "cast": quantises the ranges by the reduced maxima
  kTranspose = 4,  // "transpose": the operation transpose of whole tensors
};

// How row-wise scales lie in memory.
enum class ScaleLayout : int {
  kLinear = 0,
  kSwizzled = 1,  // "swizzled": in tiles of 128 x 4, as block-scaled tensor cores read them
  // "rows": the 1x128 scales of a row lie together, so that they travel with it.
  kByRow = 2,
};

// The words of the problem's text.
std::string_view name_of(QuantizeOperation);
std::string_view name_of(QuantizeOutput);
std::string_view name_of(E8M0Rounding);
std::string_view name_of(ScalePolicy);
std::string_view name_of(PiecesStep);
std::string_view name_of(ScaleLayout);

struct QuantizeProblem {
  QuantizeOperation operation = QuantizeOperation::kQuantize;
  std::int64_t rows = kDynamic;
  std::int64_t cols = 0;  // columns of q before transposing
  TensorType x{DType::kBF16};
  TensorType q{DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  QuantizeOutput output = QuantizeOutput::kRowwise;
  float amax_epsilon = 0.0F;
  E8M0Rounding e8m0_rounding = E8M0Rounding::kUp;
  ScalePolicy policy = ScalePolicy::kCurrent;
  // The source that is quantised in place of x: the name of a fused source, or an expression over
  // x0 (x itself) to x3 (expression.h). Empty: x.
  std::string source;
  float norm_epsilon = kDefaultNormEpsilon;  // added by source "rmsnorm" to the mean of squares
  bool weighted = false;                     // a factor of each row multiplies the source's values
  bool bias_gradient = false;                // also the sums of the source's columns
  bool tap = false;                          // also the fp32 values that the cast sees
  Grouping grouping = Grouping::kNone;
  ScaleLayout scale_layout = ScaleLayout::kLinear;
  bool skip_unchanged = false;  // a call does nothing if x is as it was in the call before
  // kBF16: fp32 x is rounded to bf16 before anything else, so that the result is that of bf16(x).
  std::optional<DType> via;
  // Others than kNone are of many tensors or ranges, which a table lists; rows and cols are theirs.
  PiecesStep pieces = PiecesStep::kNone;
  friend bool operator==(const QuantizeProblem&, const QuantizeProblem&) = default;

  static constexpr float kDefaultNormEpsilon = 1e-6F;  // that of DeepSeek-V3, Qwen3 (config.json)
};

// Returns whether the problem's kernel walks flat ranges. The range of kAmax is the whole tensor.
constexpr bool is_of_range(const QuantizeProblem& p) {
  return p.operation == QuantizeOperation::kAmax || p.pieces == PiecesStep::kAmax ||
         p.pieces == PiecesStep::kCast;
}

std::string to_text(const QuantizeProblem&);
// Returns the shape and what is not usual: "4096x7168 q=e4m3:1x128 out=row".
std::string short_text(const QuantizeProblem&);
std::string_view operation_of(const QuantizeProblem&);
std::span<const std::string_view> quantize_operations();

// Reads a text that is split into words, the first of which is one of quantize_operations().
Result<QuantizeProblem> parse_quantize_problem(std::span<const std::string_view> words);

// Errors: kInvalidArgument for a negative count, scales on a type without them, options that do not
// fit the operation or each other, a source that cannot be read, or an eps that is not >= 0.
Status check_well_formed(const QuantizeProblem&);

TokenAxis token_axis(const QuantizeProblem&);
QuantizeProblem with_tokens(QuantizeProblem, std::int64_t tokens);
std::vector<Extent> extents(const QuantizeProblem&);  // cols, rows
inline bool is_empty(const QuantizeProblem& p) {
  return p.cols == 0 && p.pieces == PiecesStep::kNone;
}
inline double flops(const QuantizeProblem&, std::int64_t /*tokens*/) { return 0; }
// Returns true if q has the type of one of the recipe's tensor roles.
bool has_types_of(const QuantizeProblem&, const Recipe&);
// Returns nothing: a row's bits never depend on the token count.
inline std::optional<QuantizeProblem> without_invariance(const QuantizeProblem&) {
  return std::nullopt;
}
// Returns the problem whose kernel has the same best configuration: that without skip_unchanged and
// via.
// Other fields that a problem leaves out change the bytes that are moved.
std::optional<QuantizeProblem> tuned_alike(const QuantizeProblem&);

// Reads the short form of the command line, "--quantize 4096x7168 --recipe blockwise": an
// activation of the recipe. The rows may be open ('?' or '_'). Errors: kInvalidArgument.
Result<QuantizeProblem> parse_quantize_shape(std::string_view rows_x_cols, std::string_view recipe);

}  // namespace octile
