// A problem says what to compute and in which numbers, never how. It has one canonical text, parsed
// and printed here and nowhere else:
//   gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128
//   quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row
//   dequantize rows=? cols=7168 x=e4m3:1x128 q=bf16 out=row
//   transpose rows=? cols=7168 x=e4m3:128x128 q=e4m3:128x128 out=col
// '?' marks the dynamic token count, which a gemm has in m (fprop, dgrad) or in k (wgrad).
// `promote=none` sums all of K on the tensor core. Optional fields are printed only where they
// differ from their default: gemm `invariant=1`; of the quantise family `eps=...`,
// `round=ocp_floor`, `policy=delayed`, `src=silu_mul`, `norm_eps=...`, `dbias=1`, `tap=1`,
// `group=contiguous`, `shard=amax`, `scales=swizzled`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "generator/core/error.h"
#include "generator/core/types.h"

namespace octile {

inline constexpr std::int64_t kDynamic = -1;
inline constexpr int kPromoteNone = -1;

// D[m,n] (+)= A[m,k] * B[n,k]^T, row-major, both operands K-major.
struct GemmProblem {
  std::int64_t m = kDynamic;
  std::int64_t n = 0;
  std::int64_t k = 0;
  TensorType a{DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  TensorType b{DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32};
  DType d = DType::kBF16;
  bool accumulate = false;
  int promote = 128;       // K elements summed by the tensor core before fp32 promotion
  bool invariant = false;  // a row's bits do not depend on the token count
  friend bool operator==(const GemmProblem&, const GemmProblem&) = default;
};

enum class QuantizeOutput : int { kRowwise = 1, kTransposed = 2, kBoth = 3 };  // row, col, both
constexpr bool has_rowwise(QuantizeOutput o) { return o != QuantizeOutput::kTransposed; }
constexpr bool has_transposed(QuantizeOutput o) { return o != QuantizeOutput::kRowwise; }

// Which power of two an E8M0 scale is.
enum class E8M0Rounding : int {
  kUp = 0,        // "up": the smallest that lets no finite element saturate
  kOcpFloor = 1,  // "ocp_floor": 2^floor(log2 amax) over the format's largest power of two (OCP MX
                  // 1.0, section 6.3): a block's largest elements may saturate
};

// Where the scale of a tensor comes from.
enum class ScalePolicy : int {
  kCurrent = 0,  // "current": its own maximum
  kDelayed = 1,  // "delayed": given, derived from the maxima of earlier steps
};

// What becomes of x. The text's first word.
enum class QuantizeOperation : int {
  kQuantize = 0,    // "quantize": q = fp8(x * encode); x may be FP8 with scales of its own
  kDequantize = 1,  // "dequantize": q = x * scale, in bf16, fp16 or fp32
  kTranspose = 2,   // "transpose": the codes of x and its scales, transposed and not touched
};

std::string_view name_of(QuantizeOperation);

// Several tensors in one: the token groups of a mixture of experts.
enum class Grouping : int {
  kNone = 0,
  kContiguous = 1,  // "contiguous": groups follow one another in the rows; offsets are on the device
  kMasked = 2,  // "masked": groups of as many rows each, of which the first few exist
};

// Quantising a flat range of the tensor's elements, the rest of which lies elsewhere (a weight
// split over optimizer shards).
enum class ShardStep : int {
  kNone = 0,
  kAmax = 1,  // "amax": raises the maxima of the blocks that the range touches
  kCast = 2,  // "cast": quantises the range by maxima that all shards have reduced
};

// How E8M0 scales lie in memory.
enum class ScaleLayout : int {
  kLinear = 0,
  kSwizzled = 1,  // "swizzled": in tiles of 128 x 4, as block-scaled tensor cores read them
};

struct QuantizeProblem {
  QuantizeOperation operation = QuantizeOperation::kQuantize;
  std::int64_t rows = kDynamic;
  std::int64_t cols = 0;  // of q (before transposing)
  TensorType x{DType::kBF16};
  TensorType q{DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  QuantizeOutput output = QuantizeOutput::kRowwise;
  float amax_epsilon = 0.0F;
  E8M0Rounding e8m0_rounding = E8M0Rounding::kUp;
  ScalePolicy policy = ScalePolicy::kCurrent;
  // What is quantised in place of x: the name of a fused source, or an expression over x0 (x
  // itself) to x3 (expression.h). Empty: x.
  std::string source;
  float norm_epsilon = kDefaultNormEpsilon;  // of source "rmsnorm"
  bool bias_gradient = false;                // also the sums of the source's columns
  bool tap = false;                          // also the fp32 values that the cast sees
  Grouping grouping = Grouping::kNone;
  ShardStep shard = ShardStep::kNone;
  ScaleLayout scale_layout = ScaleLayout::kLinear;
  friend bool operator==(const QuantizeProblem&, const QuantizeProblem&) = default;

  static constexpr float kDefaultNormEpsilon = 1e-6F;  // of DeepSeek-V3, Qwen3 (config.json)
};

using Problem = std::variant<GemmProblem, QuantizeProblem>;

std::string to_text(const Problem&);

// What holds for any problem, whatever is built: counts >= 0 (or dynamic where that is allowed),
// FP8 and nothing else carries scales, a promotion interval the scales allow, a finite eps >= 0.
// The error names the field, its value and what is allowed.
Status check_well_formed(const Problem&);

// Accepts fields in any order; refuses unknown, repeated, missing or malformed ones by name. The
// result is well formed; whether it is supported is the matrix's to say (check_supported).
Result<Problem> parse_problem(std::string_view text);

// Short forms of the command line: "--gemm 4096x7168x2048 --recipe blockwise". '?' is allowed for
// the token count.
Result<GemmProblem> parse_gemm_shape(std::string_view mxnxk, std::string_view recipe);
Result<QuantizeProblem> parse_quantize_shape(std::string_view rows_x_cols, std::string_view recipe);

}  // namespace octile
