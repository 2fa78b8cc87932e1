// A GEMM's computation and its numbers. Its canonical text is parsed and printed here alone:
//   gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128
//   gemm m=? n=7168 k=2048 a=e4m3:tensor b=e4m3:tensor d=bf16 acc=0 promote=none
// '?' marks the dynamic token count: m in fprop and dgrad, k in wgrad. `promote=none` sums all of K
// on the tensor core, which then multiplies scales of blocks itself. `d=e4m3:1x128` is FP8 D with
// its own scales. `bias=bf16|fp32`, `sentry=1|squares`, `invariant=1`, `group=contiguous groups=8`
// and `batch=4 sum=1` are printed only if they are set.
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
#include "generator/core/text_fields.h"
#include "generator/core/token_axis.h"
#include "generator/core/types.h"

namespace octile {

// A call's report on D, beside D itself.
enum class Sentry {
  kNone,
  kWord,     // whether an element is NaN or infinite
  kSquares,  // that, and the sum of the elements' squares
};

// D[m,n] (+)= A[m,k] * B[n,k]^T, row-major, both operands K-major.
struct GemmProblem {
  std::int64_t m = kDynamic;
  std::int64_t n = 0;
  std::int64_t k = 0;
  TensorType a{DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  TensorType b{DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32};
  TensorType d{DType::kBF16};  // if FP8, quantised from the fp32 sums
  bool accumulate = false;
  int promote = 128;  // K elements summed by the tensor core before fp32 promotion
  // The type of a vector [n] that is added to every row of the sum.
  std::optional<DType> bias = std::nullopt;
  Sentry sentry = Sentry::kNone;
  bool invariant = false;  // a row's bits do not depend on the token count
  // Groups of tokens, each with a GEMM of its own: a matrix B if tokens are in m, a matrix D if
  // they are in k. With masked groups, m is the rows that each group has room for.
  Grouping grouping = Grouping::kNone;
  std::int64_t groups = 0;
  // So many GEMMs of the same m, n and k, whose matrices lie at constant strides; 0: one GEMM.
  std::int64_t batch = 0;
  bool sums_batch = false;  // D is the sum of the batch's GEMMs, in order: K lies in their panels
  friend bool operator==(const GemmProblem&, const GemmProblem&) = default;
};

std::string to_text(const GemmProblem&);
// A promotion interval: "32" to "512", or "none" for kPromoteNone.
std::string promote_text(int promote);
Parsed<int> parse_promote(std::string_view text);
// Returns the shape and the fields that differ from those of GemmProblem(): "64x7168x2048" or
// "7168x2048x64 b=e4m3:1x128 d=fp32 acc=1". '?' stands for the dynamic token count.
std::string short_text(const GemmProblem&);
constexpr std::string_view operation_of(const GemmProblem&) { return "gemm"; }

// Reads a text that is split into words, the first of which is "gemm".
Result<GemmProblem> parse_gemm_problem(std::span<const std::string_view> words);

// Errors: kInvalidArgument for a negative count, two dynamic counts, scales on a type without them,
// a promotion interval that the scales do not allow, or invariance where tokens are summed.
Status check_well_formed(const GemmProblem&);

// Tokens lie in k if k is dynamic, and otherwise in m.
constexpr bool has_tokens_in_k(const GemmProblem& p) { return p.k == kDynamic; }
TokenAxis token_axis(const GemmProblem&);
GemmProblem with_tokens(GemmProblem, std::int64_t tokens);
// The dimensions at a token count.
constexpr std::int64_t m_at(const GemmProblem& p, std::int64_t tokens) {
  return has_tokens_in_k(p) ? p.m : tokens;
}
constexpr std::int64_t k_at(const GemmProblem& p, std::int64_t tokens) {
  return has_tokens_in_k(p) ? tokens : p.k;
}

inline constexpr std::int64_t kMostGemmGroups = 1024;
constexpr bool is_grouped(const GemmProblem& p) { return p.grouping != Grouping::kNone; }
// Returns true if each group has rows of A and D, and a B.
constexpr bool groups_rows(const GemmProblem& p) { return is_grouped(p) && !has_tokens_in_k(p); }
// Returns true if each group has columns of A and B, and a D.
constexpr bool groups_k(const GemmProblem& p) { return is_grouped(p) && has_tokens_in_k(p); }

inline constexpr std::int64_t kMostBatch = 1024;
constexpr bool has_sentry(const GemmProblem& p) { return p.sentry != Sentry::kNone; }
constexpr bool is_batched(const GemmProblem& p) { return p.batch > 0; }
// Returns true if a call computes the GEMMs of groups or of a batch.
constexpr bool has_several_gemms(const GemmProblem& p) { return is_grouped(p) || is_batched(p); }
// Returns the GEMMs of a call that each have all of m, n and k.
constexpr std::int64_t whole_gemms(const GemmProblem& p) {
  return is_batched(p) ? p.batch : p.grouping == Grouping::kMasked ? p.groups : 1;
}
// Returns the matrices D of those GEMMs.
constexpr std::int64_t whole_results(const GemmProblem& p) {
  return p.sums_batch ? 1 : whole_gemms(p);
}

// Returns true if the scales are MX's: an E8M0 byte for 32 of K, of one row or of 32.
constexpr bool is_mx(const TensorType& t) {
  switch (t.granularity) {
    case Granularity::k1x32:
    case Granularity::k32x32:
      return true;
    case Granularity::kNone:
    case Granularity::kPerTensor:
    case Granularity::kPerRow:
    case Granularity::k1x128:
    case Granularity::k128x128:
      break;
  }
  return false;
}
// Returns true if a scale of the type serves only a part of K.
constexpr bool has_block_scales(const TensorType& t) {
  switch (t.granularity) {
    case Granularity::k1x128:
    case Granularity::k128x128:
    case Granularity::k1x32:
    case Granularity::k32x32:
      return true;
    case Granularity::kNone:
    case Granularity::kPerTensor:
    case Granularity::kPerRow:
      break;
  }
  return false;
}
// Returns true if every scale of any pair of types, supported or not, serves all of K.
constexpr bool has_scales_of_all_k(const GemmProblem& p) {
  return !has_block_scales(p.a) && !has_block_scales(p.b);
}

// Returns true if the scales of blocks are multiplied in the instruction, and one accumulator sums
// all of K.
constexpr bool has_scales_inside(const GemmProblem& p) {
  return p.promote == kPromoteNone && !has_scales_of_all_k(p);
}

// How the scales of the operands serve the sums.
enum class Scheme {
  kBlockB,     // A 1x128, B 128x128: sums are promoted with both scales
  kRowB,       // A and B 1x128, as in weight gradients
  kPerRow,     // both per row: applied to the finished sum
  kPerTensor,  // both per tensor, likewise
  kMx,         // A 1x32, B 1x32 or 32x32, E8M0
};

// Returns the scheme of a problem that the support matrix takes; B decides. B without scales, which
// the matrix refuses, counts as one scale of 1.
//
// Code that depends on the scheme switches over it without `default`, so that the compiler names
// each place that a new scheme has to decide.
constexpr Scheme scheme_of(const GemmProblem& p) {
  switch (p.b.granularity) {
    case Granularity::k128x128:
      return Scheme::kBlockB;
    case Granularity::k1x128:
      return Scheme::kRowB;
    case Granularity::kPerRow:
      return Scheme::kPerRow;
    case Granularity::k1x32:
    case Granularity::k32x32:
      return Scheme::kMx;
    case Granularity::kNone:
    case Granularity::kPerTensor:
      break;
  }
  return Scheme::kPerTensor;
}

// Returns true if every scale serves all of K: it is applied to the finished sum.
constexpr bool scales_at_end(Scheme scheme) {
  switch (scheme) {
    case Scheme::kPerRow:
    case Scheme::kPerTensor:
      return true;
    case Scheme::kBlockB:
    case Scheme::kRowB:
    case Scheme::kMx:
      break;
  }
  return false;
}

// Returns true if the stages hold an fp32 scale of B for each column of a tile, as TMA copies it.
constexpr bool stages_scales_of_columns(Scheme scheme) {
  switch (scheme) {
    case Scheme::kRowB:
      return true;
    case Scheme::kBlockB:
    case Scheme::kPerRow:
    case Scheme::kPerTensor:
    case Scheme::kMx:
      break;
  }
  return false;
}
// Returns true if the scales of both operands are powers of two in fp32, and B has one for each
// column of a tile. The tensor core may then multiply them.
constexpr bool has_power_scales(const GemmProblem& p) {
  return scheme_of(p) == Scheme::kRowB && p.a.scale == ScaleFormat::kF32Pow2 &&
         p.b.scale == ScaleFormat::kF32Pow2;
}
// Returns the WGMMA groups into which the interval divides a K-block of 128.
constexpr int parts_of_block(int promote) { return promote == 32 ? 4 : promote == 64 ? 2 : 1; }
// Returns true if the tensor core sums more than a K-block before a promotion.
constexpr bool has_long_sums(int promote) { return promote == kPromoteNone || promote > 128; }
// Returns true if D can go through shared memory to TMA, which adds in fp32 only and shows no
// sentry the result.
constexpr bool can_stage(const GemmProblem& p) {
  return !p.accumulate || (p.d.dtype == DType::kFP32 && !has_sentry(p));
}

std::vector<Extent> extents(const GemmProblem&);  // n, k, m
constexpr bool is_empty(const GemmProblem& p) { return p.n == 0; }
double flops(const GemmProblem&, std::int64_t tokens);
// Returns true if a pass of the recipe has the problem's types.
bool has_types_of(const GemmProblem&, const Recipe&);
std::optional<GemmProblem> without_invariance(const GemmProblem&);
// Returns the problem with E4M3 operands, bf16 D instead of fp16, E4M3 D with fp32 scales instead
// of other FP8 D, no bias and no sentry.
std::optional<GemmProblem> tuned_alike(const GemmProblem&);

}  // namespace octile
