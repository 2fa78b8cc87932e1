// The matrix is compared with a second statement of the kernels that exist, over all combinations.
// It is also checked for rows that are never reached or are reached by accident.
#include "generator/families.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "generator/core/layout.h"
#include "generator/core/recipe.h"
#include "generator/gemm/passes.h"
#include "generator/gemm/support.h"
#include "tests/support/coverage.h"

namespace octile {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

std::vector<TensorType> all_types() {
  std::vector<TensorType> types;
  for (const DType t : {DType::kBF16, DType::kFP16, DType::kFP32}) {
    types.push_back({t, Granularity::kNone, ScaleFormat::kNone});
  }
  for (const DType t : {DType::kE4M3, DType::kE5M2}) {
    for (int g = 1; g <= 6; ++g) {
      for (int f = 1; f <= 5; ++f) {
        types.push_back({t, static_cast<Granularity>(g), static_cast<ScaleFormat>(f)});
      }
    }
  }
  return types;
}

constexpr int kCoveringStep = 11;
constexpr DType kDTypes[] = {DType::kE4M3, DType::kE5M2, DType::kBF16, DType::kFP16, DType::kFP32};

// Visits every `step`-th combination. Neighbours differ in one field, so a step that is a prime
// reaches each value of each field.
void for_each_gemm(const std::function<void(const GemmProblem&)>& visit, int step = 1) {
  const std::vector<TensorType> types = all_types();
  int at = 0;
  for (const TensorType& a : types) {
    for (const TensorType& b : types) {
      for (const TensorType& d : types) {
        for (const int promote : {32, 64, 128, kPromoteNone}) {
          for (const bool accumulate : {false, true}) {
            if (at++ % step != 0) continue;
            GemmProblem p;
            p.n = 256;
            p.k = 512;
            p.a = a;
            p.b = b;
            p.d = d;
            p.promote = promote;
            p.accumulate = accumulate;
            if (check_well_formed(p)) visit(p);
          }
        }
      }
    }
  }
}

void for_each_quantize(const std::function<void(const QuantizeProblem&)>& visit) {
  for (const DType x : kDTypes) {
    for (const TensorType& q : all_types()) {
      for (const int output : {1, 2, 3}) {
        QuantizeProblem p;
        p.cols = 256;
        p.x = {x};
        p.q = q;
        p.output = static_cast<QuantizeOutput>(output);
        if (check_well_formed(p)) visit(p);
        p.e8m0_rounding = E8M0Rounding::kOcpFloor;
        if (check_well_formed(p)) visit(p);
      }
    }
  }
}

// Visits problems that read FP8: requantising, dequantising, transposing.
void for_each_inverse(const std::function<void(const QuantizeProblem&)>& visit) {
  for (const QuantizeOperation operation :
       {QuantizeOperation::kQuantize, QuantizeOperation::kDequantize,
        QuantizeOperation::kTranspose}) {
    for (const TensorType& x : all_types()) {
      for (const TensorType& q : all_types()) {
        for (const int output : {1, 2, 3}) {
          QuantizeProblem p;
          p.operation = operation;
          p.cols = 256;
          p.x = x;
          p.q = q;
          p.output = static_cast<QuantizeOutput>(output);
          if (is_fp8(x.dtype) && check_well_formed(p)) visit(p);
        }
      }
    }
  }
}

// One problem of each kind that does more than quantise one tensor.
constexpr auto kFurther = std::to_array<std::string_view>({
    "quantize rows=? cols=512 x=e4m3:1x128 q=e4m3:1x128 out=row skip=unchanged",
    "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row src=silu_mul skip=unchanged",
    "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row dbias=1 skip=unchanged",
    "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row group=contiguous skip=unchanged",
    "quantize rows=? cols=512 x=e4m3:1x128 q=e4m3:1x128 out=row group=stacked",
    "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row src=silu_mul group=stacked",
    "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row dbias=1 group=stacked",
    "quantize rows=? cols=512 x=bf16 q=e4m3:tensor out=row policy=delayed group=stacked",
    "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row group=stacked scales=rows",
    "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row src=rmsnorm weighted=1",
    "quantize rows=? cols=512 x=e4m3:1x128 q=e4m3:1x128 out=row scales=rows",
    "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=both scales=rows",
    "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row src=rmsnorm scales=rows",
    "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row dbias=1 scales=rows",
    "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row group=contiguous scales=rows",
    "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row scales=rows skip=unchanged",
    "quantize rows=? cols=512 x=bf16 q=e4m3:1x128:ue8m0x4 out=row scales=rows",
    "gather rows=? cols=512 x=e4m3:1x128 q=e4m3:1x128 out=row group=contiguous",
    "gather rows=? cols=512 x=e4m3:1x128 q=e4m3:1x128 out=row scales=rows",
    "gather rows=? cols=512 x=e4m3:1x128:pow2 q=e4m3:1x128:pow2 out=row",
    "gather rows=? cols=512 x=e4m3:row q=e4m3:row out=row",
    "quantize rows=? cols=0 x=bf16 q=e4m3:1x128 out=row pieces=cast",
    "amax rows=? cols=512 x=bf16 q=e4m3:tensor",
    "amax rows=? cols=512 x=bf16 q=e4m3:tensor:e8m0",
    "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 bias=fp16",
    "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 bias=fp32 "
    "group=masked groups=4",
    "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128 group=masked "
    "groups=8",
    "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 group=contiguous "
    "groups=4",
    "gemm m=512 n=256 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 group=contiguous "
    "groups=4",
    "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:1x128 d=bf16 acc=0 promote=128 group=contiguous "
    "groups=4",
    "gemm m=512 n=256 k=? a=e4m3:1x128:ue8m0x4 b=e4m3:1x128 d=fp32 acc=1 promote=128 "
    "group=contiguous groups=4",
    "gemm m=512 n=256 k=? a=e4m3:1x128 b=e4m3:1x128:ue8m0x4 d=fp32 acc=1 promote=128 "
    "group=contiguous groups=4",
    "gemm m=? n=256 k=512 a=e4m3:row b=e4m3:row d=bf16 acc=0 promote=128 group=contiguous groups=4",
    "gemm m=256 n=256 k=? a=e4m3:row b=e4m3:row d=fp32 acc=1 promote=128 group=contiguous groups=4",
    "gemm m=? n=256 k=512 a=e4m3:tensor b=e4m3:tensor d=bf16 acc=0 promote=none group=masked "
    "groups=4",
    "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128 "
    "group=contiguous groups=8",
    "gemm m=512 n=256 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 batch=4",
    "gemm m=512 n=256 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 batch=4 sum=1",
    "gemm m=512 n=256 k=? a=e4m3:tensor b=e4m3:tensor d=fp32 acc=1 promote=128 batch=4 sum=1",
    "gemm m=512 n=256 k=? a=e4m3:row b=e4m3:row d=fp32 acc=1 promote=128 batch=4 sum=1",
    "gemm m=512 n=256 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 bias=fp32 batch=4 "
    "sum=1",
    "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:1x128 d=bf16 acc=0 promote=128 batch=4 sum=1",
    "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 bias=fp32 batch=4",
    "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128 batch=4",
    "gemm m=? n=256 k=512 a=e4m3:row b=e4m3:row d=bf16 acc=0 promote=128 batch=4",
    "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 batch=4",
    "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:1x128 d=bf16 acc=0 promote=128 batch=4",
    "gemm m=? n=256 k=512 a=e4m3:1x32 b=e4m3:32x32 d=bf16 acc=0 promote=32 group=masked groups=4",
    "gemm m=? n=256 k=512 a=e4m3:1x32 b=e4m3:32x32 d=bf16 acc=0 promote=32 batch=4",
    "quantize rows=? cols=256 x=bf16 q=e4m3:1x128 out=row src=silu_mul",
    "quantize rows=? cols=256 x=bf16 q=e4m3:1x128 out=both src=layernorm_again",
    "quantize rows=? cols=256 x=bf16 q=e4m3:1x128 out=col src=layernorm_again tap=1",
    "quantize rows=? cols=256 x=bf16 q=e4m3:1x128 out=row src=rmsnorm dbias=1",
    "quantize rows=? cols=256 x=bf16 q=e4m3:1x128 out=row src=rmsnorm group=contiguous",
    "quantize rows=? cols=256 x=bf16 q=e4m3:1x128 out=row dbias=1 group=contiguous",
    "quantize rows=? cols=256 x=bf16 q=e4m3:128x128 out=row group=contiguous",
    "quantize rows=? cols=256 x=bf16 q=e4m3:row out=both group=contiguous",
    "quantize rows=? cols=256 x=bf16 q=e4m3:1x32 out=row group=contiguous scales=swizzled",
    "quantize rows=? cols=256 x=bf16 q=e4m3:1x128 out=col group=masked",
    "quantize rows=? cols=256 x=bf16 q=e4m3:32x32 out=row scales=swizzled",
    "quantize rows=? cols=256 x=e4m3:1x128 q=e4m3:1x128 out=row src=silu_mul",
    "quantize rows=? cols=256 x=e4m3:tensor q=e4m3:1x128 out=row group=contiguous",
    "quantize rows=? cols=256 x=e4m3:1x128 q=e4m3:1x128 out=row group=masked",
    "dequantize rows=? cols=256 x=e4m3:1x128 q=bf16 out=row group=masked",
    "transpose rows=? cols=256 x=e4m3:128x128 q=e4m3:128x128 out=col group=contiguous",
    "transpose rows=? cols=256 x=e4m3:32x32 q=e4m3:32x32 out=col scales=swizzled",
});

bool fp32_in_memory(const TensorType& t) {
  return t.scale == ScaleFormat::kF32 || t.scale == ScaleFormat::kF32Pow2;
}

TEST(SupportMatrix, GemmSupportIsWhatTheKernelDoes) {
  int cells = 0, supported = 0;
  for_each_gemm([&](const GemmProblem& p) {
    const bool blocks_of_b =
        p.b.granularity == Granularity::k128x128 || p.b.granularity == Granularity::k1x128;
    const auto has_format = [](const TensorType& t) {
      return fp32_in_memory(t) ||
             (t.granularity == Granularity::k1x128 && t.scale == ScaleFormat::kUe8m0x4);
    };
    const auto is_power = [](const TensorType& t) {
      return t.scale == ScaleFormat::kF32Pow2 || t.scale == ScaleFormat::kUe8m0x4;
    };
    const bool blocks = p.a.granularity == Granularity::k1x128 && blocks_of_b &&
                        (p.promote != kPromoteNone || (is_power(p.a) && is_power(p.b)));
    const bool of_all_k =
        p.a.granularity == p.b.granularity && p.promote != 32 && p.promote != 64 &&
        (p.a.granularity == Granularity::kPerTensor || p.a.granularity == Granularity::kPerRow);
    const bool plain_d = !is_fp8(p.d.dtype) && !(p.d.dtype == DType::kFP16 && p.accumulate);
    const bool fp8_d = is_fp8(p.d.dtype) && p.d.granularity == Granularity::k1x128 &&
                       fp32_in_memory(p.d) && !p.accumulate;
    const bool mx = p.a.granularity == Granularity::k1x32 && p.a.scale == ScaleFormat::kE8M0 &&
                    is_mx(p.b) && p.b.scale == ScaleFormat::kE8M0 &&
                    (p.promote == 32 || p.promote == kPromoteNone);
    const bool others = ((blocks && (plain_d || fp8_d)) || (of_all_k && plain_d)) &&
                        has_format(p.a) && has_format(p.b);
    const bool expected = is_fp8(p.a.dtype) && is_fp8(p.b.dtype) && (others || (mx && plain_d));
    ++cells;
    supported += expected ? 1 : 0;
    ASSERT_EQ(support_of(p).supported, expected) << to_text(p);
    if (expected) {
      ASSERT_TRUE(check_supported(p)) << to_text(p);
    }
  });
  // Two FP8 types of each operand; three scale formats of A; two of a 128x128 B and three of a
  // 1x128 B; three intervals; D in three types, two of which take sums, and in two FP8 types with
  // two scale formats. With promote=none a scale format less. Per row and per tensor: two formats
  // of each operand, two intervals, and no FP8 D. MX: two granularities of B, two intervals.
  EXPECT_EQ(supported,
            4 * ((3 * 3 * (2 + 3) + 2 * (1 + 2)) * (5 + 4) + 2 * 2 * 2 * 2 * 5 + 2 * 2 * 5));
  EXPECT_GT(cells, 40000);
}

// The scheme of every supported pair of granularities is its own.
TEST(SupportMatrix, EverySupportedPairHasItsScheme) {
  using G = Granularity;
  const std::map<std::pair<G, G>, Scheme> schemes{
      {{G::k1x128, G::k128x128}, Scheme::kBlockB},
      {{G::k1x128, G::k1x128}, Scheme::kRowB},
      {{G::kPerRow, G::kPerRow}, Scheme::kPerRow},
      {{G::kPerTensor, G::kPerTensor}, Scheme::kPerTensor},
      {{G::k1x32, G::k1x32}, Scheme::kMx},
      {{G::k1x32, G::k32x32}, Scheme::kMx}};
  std::set<std::pair<G, G>> seen;
  GemmProblem p;
  for (int a = 1; a <= static_cast<int>(G::k32x32); ++a) {
    for (int b = 1; b <= static_cast<int>(G::k32x32); ++b) {
      const std::pair pair{static_cast<G>(a), static_cast<G>(b)};
      p.a = {DType::kE4M3, pair.first, default_scale_format(pair.first)};
      p.b = {DType::kE4M3, pair.second, default_scale_format(pair.second)};
      p.promote = scales_at_end(scheme_of(p)) ? 128 : 32;
      if (!support_of(p).supported) continue;
      seen.insert(pair);
      ASSERT_TRUE(schemes.contains(pair)) << to_text(p);
      EXPECT_EQ(scheme_of(p), schemes.at(pair)) << to_text(p);
      EXPECT_EQ(scales_at_end(scheme_of(p)), has_scales_of_all_k(p)) << to_text(p);
      EXPECT_EQ(scheme_of(p) == Scheme::kMx, is_mx(p.a)) << to_text(p);
    }
  }
  EXPECT_EQ(seen.size(), schemes.size());
}

// A batch is supported with plain D, block scales and tokens in m, and with nothing else.
TEST(SupportMatrix, BatchesAreWhatTheKernelDoes) {
  const int step = tests::runs_all_cases() ? 1 : kCoveringStep;
  int supported = 0;
  for_each_gemm(
      [&](const GemmProblem& one) {
        GemmProblem p = one;
        p.batch = 4;
        const bool expected = support_of(one).supported && !is_fp8(p.d.dtype) &&
                              !scales_at_end(scheme_of(p)) && scheme_of(p) != Scheme::kMx;
        supported += expected ? 1 : 0;
        ASSERT_EQ(support_of(p).supported, expected) << to_text(p);
      },
      step);
  const int all = 4 * (3 * 3 * (2 + 3) + 2 * (1 + 2)) * 5;
  EXPECT_GT(supported, all / step / 2);
  if (step == 1) {
    EXPECT_EQ(supported, all);
  }
}

// A sum over a batch is a weight gradient with plain D and fp32 scales, 1x128 or one a tensor.
TEST(SupportMatrix, SumsOverBatchesAreWhatTheKernelDoes) {
  const int step = tests::runs_all_cases() ? 1 : kCoveringStep;
  int supported = 0;
  for_each_gemm(
      [&](const GemmProblem& one) {
        GemmProblem p = one;
        p.batch = 4;
        p.sums_batch = true;
        ASSERT_FALSE(support_of(p).supported) << to_text(p);
        p.m = 512;
        p.k = kDynamic;
        const Scheme scheme = scheme_of(p);
        const bool expected = support_of(one).supported && !is_fp8(p.d.dtype) &&
                              (scheme == Scheme::kRowB || scheme == Scheme::kPerTensor) &&
                              p.a.scale != ScaleFormat::kUe8m0x4 &&
                              p.b.scale != ScaleFormat::kUe8m0x4;
        supported += expected ? 1 : 0;
        ASSERT_EQ(support_of(p).supported, expected) << to_text(p);
      },
      step);
  // Pairs of FP8 types and of formats, D, and D that is added to; intervals of each scheme.
  // promote=none takes powers of two alone, of both operands.
  const int all = 4 * 5 * (4 * (3 + 2) + 1);
  EXPECT_GT(supported, all / step / 2);
  if (step == 1) {
    EXPECT_EQ(supported, all);
  }
}

TEST(SupportMatrix, QuantizeSupportIsWhatTheKernelsDo) {
  int supported = 0;
  for_each_quantize([&](const QuantizeProblem& p) {
    const Granularity g = p.q.granularity;
    const bool mx = g == Granularity::k1x32 || g == Granularity::k32x32;
    const bool format = mx ? p.q.scale == ScaleFormat::kE8M0
                           : fp32_in_memory(p.q) || p.q.scale == ScaleFormat::kBF16 ||
                                 (g == Granularity::k1x128 && p.q.scale == ScaleFormat::kUe8m0x4);
    const bool expected = !is_fp8(p.x.dtype) && format;
    supported += expected ? 1 : 0;
    ASSERT_EQ(check_supported(p).has_value(), expected) << to_text(p);
  });
  // The factors are x, q's type and the output; then tensor, row and 128x128 in 3 formats, 1x128 in
  // 4, two MX in 2 roundings.
  EXPECT_EQ(supported, 3 * 2 * 3 * (3 * 3 + 4 + 2 * 2));
}

// Exactly these granularities and outputs have groups, pieces and maxima.
TEST(SupportMatrix, GroupsAndPiecesAreWhatTheKernelsDo) {
  int supported = 0;
  for_each_quantize([&](const QuantizeProblem& tensor) {
    const Granularity g = tensor.q.granularity;
    const bool square = g == Granularity::k128x128 || g == Granularity::k32x32;
    const bool row = tensor.output == QuantizeOutput::kRowwise;
    const bool plain = check_supported(tensor).has_value();
    const auto expect = [&](const QuantizeProblem& p, bool expected) {
      supported += expected ? 1 : 0;
      ASSERT_EQ(check_supported(p).has_value(), expected) << to_text(p);
    };
    QuantizeProblem p = tensor;
    p.grouping = Grouping::kContiguous;
    expect(p, plain && !square && (row || g != Granularity::kPerRow));
    p.grouping = Grouping::kMasked;
    expect(p, plain && row);
    p = tensor;
    p.cols = 0;
    const bool with_transposed = square || g == Granularity::kPerTensor;
    for (const PiecesStep step : {PiecesStep::kAmax, PiecesStep::kCast, PiecesStep::kScales}) {
      const auto output =
          step == PiecesStep::kScales ? QuantizeOutput::kBoth : QuantizeOutput::kRowwise;
      p.pieces = step;
      expect(p, plain && with_transposed && p.output == output);
    }
    p.cols = tensor.cols;
    p.pieces = PiecesStep::kNone;
    p.operation = QuantizeOperation::kAmax;
    expect(p, plain && row && g == Granularity::kPerTensor &&
                  tensor.e8m0_rounding == E8M0Rounding::kUp);
    if (tensor.q.scale != ScaleFormat::kE8M0) return;
    p = tensor;
    p.scale_layout = ScaleLayout::kSwizzled;
    expect(p, plain && g == Granularity::k1x32);
    p.grouping = Grouping::kContiguous;
    expect(p, plain && g == Granularity::k1x32 && tensor.output == QuantizeOutput::kTransposed);
  });
  EXPECT_GT(supported, 0);
}

// Returns true if docs/numerics.md lists a layout for the granularity in this format.
bool has_layout(const TensorType& t) {
  const bool mx = t.granularity == Granularity::k1x32 || t.granularity == Granularity::k32x32;
  if (mx) return t.scale == ScaleFormat::kE8M0;
  return fp32_in_memory(t) || t.scale == ScaleFormat::kBF16 ||
         (t.granularity == Granularity::k1x128 && t.scale == ScaleFormat::kUe8m0x4);
}

TEST(SupportMatrix, InversesAreSupportedWhereverTheLayoutsAre) {
  int requantize = 0, dequantize = 0, transpose = 0;
  for_each_inverse([&](const QuantizeProblem& p) {
    bool expected = has_layout(p.x) && (!is_fp8(p.q.dtype) || has_layout(p.q));
    const Granularity g = p.q.granularity;
    const bool transposes = p.operation == QuantizeOperation::kTranspose;
    if (transposes) {
      expected = expected && (g == Granularity::kPerTensor || g == Granularity::k128x128 ||
                              g == Granularity::k32x32);
    }
    const bool widens = p.operation == QuantizeOperation::kDequantize;
    (transposes ? transpose : widens ? dequantize : requantize) += expected ? 1 : 0;
    ASSERT_EQ(check_supported(p).has_value(), expected) << to_text(p);
  });
  constexpr int kLayouts = 2 * (3 * 3 + 4 + 2);  // formats of tensor, row, 128x128; 1x128; two MX
  EXPECT_EQ(requantize, kLayouts * kLayouts * 3);
  EXPECT_EQ(dequantize, kLayouts * 3);
  EXPECT_EQ(transpose, 2 * (3 + 3 + 1));
}

// Returns whether only a device has the fields of the row.
bool is_about_devices(const SupportRow& row) {
  return row.pattern.starts_with("unit=") || row.pattern.starts_with("serves=") ||
         row.pattern.starts_with("inside=") || row.pattern.starts_with("tma=") ||
         row.pattern.starts_with("pdl=");
}

TEST(SupportMatrix, EveryRowDecidesSomething) {
  std::set<const SupportRow*> reached;
  for_each_gemm([&](const GemmProblem& p) { reached.insert(&support_of(p)); });
  for_each_quantize([&](const QuantizeProblem& p) { reached.insert(&support_of(p)); });
  for_each_inverse([&](const QuantizeProblem& p) { reached.insert(&support_of(p)); });
  for (const std::string_view text : kFurther) {
    const auto problem = parse_problem(text);
    ASSERT_TRUE(problem) << problem.error().message;
    reached.insert(&support_of(*problem));
  }
  std::set<std::string> reasons;  // of devices
  std::vector<DeviceSpec> devices(known_devices().begin(), known_devices().end());
  devices.push_back(with_capability({}, 8, 0));
  for (const char* text :
       {"gemm m=? n=512 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
        "gemm m=? n=512 k=512 a=e4m3:1x32 b=e4m3:32x32 d=bf16 acc=0 promote=32",
        "gemm m=? n=512 k=512 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128",
        "gemm m=? n=512 k=512 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=bf16 acc=0 promote=none",
        "gemm m=? n=512 k=512 a=e4m3:1x32 b=e4m3:32x32 d=bf16 acc=0 promote=none",
        "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row",
        "dequantize rows=? cols=512 x=e4m3:1x128 q=bf16 out=row",
        "transpose rows=? cols=512 x=e4m3:128x128 q=e4m3:128x128 out=col",
        "gather rows=? cols=512 x=e4m3:1x128 q=e4m3:1x128 out=row",
        "amax rows=? cols=512 x=bf16 q=e4m3:tensor"}) {
    for (const DeviceSpec& device : devices) {
      const auto problem = parse_problem(text);
      ASSERT_TRUE(problem) << problem.error().message;
      const Status status = check_supported(*problem, device);
      if (!status) reasons.insert(std::string(operation_of(*problem)) + status.error().message);
    }
  }
  const auto refuses_a_device = [&](const SupportRow& row) {
    return std::ranges::any_of(reasons, [&](const std::string& text) {
      return text.starts_with(row.operation) && text.find(row.reason) != std::string::npos;
    });
  };
  for (const SupportRow& row : support_matrix()) {
    EXPECT_TRUE(reached.count(&row) == 1 || (is_about_devices(row) && refuses_a_device(row)))
        << row.operation << " " << row.pattern;
    EXPECT_FALSE(row.reason.empty()) << row.operation << " " << row.pattern;
  }
}

// A misspelt field in a pattern would otherwise silently never match.
TEST(SupportMatrix, PatternsNameFieldsOfTheProblemText) {
  GemmProblem options;
  options.bias = DType::kFP32;
  options.sentry = Sentry::kWord;
  options.invariant = true;
  options.grouping = Grouping::kContiguous;
  options.batch = 1;
  options.sums_batch = true;
  const std::string gemm = to_text(options);
  QuantizeProblem all;  // every optional field is printed
  all.q = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
  all.amax_epsilon = 1;
  all.e8m0_rounding = E8M0Rounding::kOcpFloor;
  all.policy = ScalePolicy::kDelayed;
  all.source = "x0";
  all.norm_epsilon = 1;
  all.weighted = all.bias_gradient = all.tap = true;
  all.grouping = Grouping::kContiguous;
  all.scale_layout = ScaleLayout::kSwizzled;
  all.skip_unchanged = true;
  all.via = DType::kBF16;
  all.pieces = PiecesStep::kCast;
  const std::string quantize = to_text(all);
  for (const SupportRow& row : support_matrix()) {
    const std::string& text = row.operation == "gemm" ? gemm : quantize;
    if (is_about_devices(row)) continue;
    for (std::string_view rest = row.pattern; !rest.empty();) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      const std::string field = " " + std::string(rest.substr(0, rest.find('=') + 1));
      EXPECT_NE(text.find(field), std::string::npos) << row.pattern;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
}

TEST(SupportMatrix, FirstMatchingRowDecides) {
  const auto is_first = [](const Problem& p) {
    const auto rows = support_matrix();
    const auto first = std::find_if(rows.begin(), rows.end(),
                                    [&](const SupportRow& row) { return matches(row, p); });
    return &first->get() == &support_of(p);
  };
  for_each_quantize([&](const QuantizeProblem& p) { ASSERT_TRUE(is_first(p)) << to_text(p); });
  EXPECT_FALSE(matches(support_of(GemmProblem{}), QuantizeProblem{}));
}

// Every combination that the matrix accepts must have a layout.
TEST(SupportMatrix, WhatIsSupportedHasALayout) {
  for_each_quantize([&](const QuantizeProblem& p) {
    if (!support_of(p).supported || !check_supported(p)) return;
    EXPECT_TRUE(quantized_layout(p.q, 300, p.cols)) << to_text(p);
    EXPECT_TRUE(quantized_layout(p.q, 300, p.cols, 0, true)) << to_text(p);
  });
}

TEST(SupportMatrix, ReasonsReachTheCaller) {
  GemmProblem p;
  p.n = 256;
  p.k = 512;
  p.d.dtype = DType::kFP16;
  p.accumulate = true;
  const Status s = check_supported(p);
  ASSERT_FALSE(s);
  EXPECT_EQ(s.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(
      s.error().message,
      "'gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=fp16 acc=1 promote=128' is not "
      "supported: sums over many calls leave the range of fp16: add in bf16 or fp32; the "
      "nearest supported one has d=bf16 instead; docs/support.md and `octile doctor --matrix` "
      "list the supported ones");
}

// The sentence's part about the nearest supported problem, by the fields that differ.
TEST(SupportMatrix, NamesTheNearestSupportedProblem) {
  const auto nearest = [](const std::string& text) {
    const auto problem = parse_problem(text);
    EXPECT_TRUE(problem) << problem.error().message;
    const Status s = check_supported(*problem);
    EXPECT_FALSE(s) << text;
    if (s) return std::string();
    const std::string from = "; the nearest supported one has ";
    const std::size_t at = s.error().message.find(from) + from.size();
    return s.error().message.substr(at, s.error().message.find(" instead;") - at);
  };
  const std::string shape = "gemm m=? n=256 k=512 ";
  EXPECT_EQ(nearest(shape + "a=bf16 b=e4m3:128x128 d=bf16 acc=0 promote=128"),
            "a=e4m3|e5m2:1x128:f32|pow2|ue8m0x4");
  EXPECT_EQ(nearest(shape + "a=e4m3:1x32 b=e4m3:1x32 d=bf16 acc=0 promote=128"), "promote=32|none");
  EXPECT_EQ(nearest(shape + "a=e4m3:1x32 b=e4m3:1x32 d=e4m3:1x128 acc=0 promote=128"),
            "d=bf16|fp16|fp32 and promote=32|none");
  EXPECT_EQ(nearest(shape + "a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 bias=bf16 "
                            "group=contiguous groups=4"),
            "no bias");
  EXPECT_EQ(nearest(shape + "a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=none"), "promote=32");
  EXPECT_EQ(nearest("gemm m=64 n=256 k=? a=e4m3:1x128 b=e4m3:1x128 d=bf16 acc=0 promote=128 "
                    "batch=4"),
            "no batch");
  EXPECT_EQ(nearest("quantize rows=? cols=512 x=e4m3:1x128 q=e4m3:1x128 out=row src=silu"),
            "x=bf16");
  EXPECT_EQ(nearest("dequantize rows=? cols=512 x=e4m3:1x128 q=bf16 out=row group=contiguous"),
            "no group");
}

// For every refused combination the problem that is called the nearest is supported, and the
// sentence is short.
TEST(SupportMatrix, TheNearestProblemIsSupported) {
  int cells = 0, refused = 0;
  const auto check = [&](const auto& p, const auto& usual, auto rows) {
    if (++cells % 53 != 0) return;  // a covering part: neighbours differ in one field
    const std::string_view operation = operation_of(p);
    const FieldValues values = field_values(p);
    if (first_match(rows, operation, values).supported) return;
    ++refused;
    const auto nearest = nearest_supported(rows, operation, values, field_values(usual));
    ASSERT_TRUE(nearest) << to_text(p);
    EXPECT_TRUE(first_match(rows, operation, nearest->values).supported) << to_text(p);
    EXPECT_TRUE(matches(*nearest->row, operation, nearest->values)) << to_text(p);
    const Status s = check_supported(p);
    ASSERT_FALSE(s);
    EXPECT_LE(s.error().message.size(), 600U) << s.error().message;
  };
  for_each_gemm([&](const GemmProblem& p) { check(p, GemmProblem{}, gemm_support_rows()); });
  for_each_quantize(
      [&](const QuantizeProblem& p) { check(p, QuantizeProblem{}, quantize_support_rows()); });
  EXPECT_GT(refused, 500);
}

// A device of which no kernel exists is refused by a row, in a sentence that says which devices
// have one; the problem's own fault comes first.
TEST(SupportMatrix, DevicesAreRefusedByRows) {
  const Problem gemm =
      *parse_problem("gemm m=? n=512 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
  const Problem fp8 = *parse_problem(
      "gemm m=? n=512 k=512 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128");
  const Problem mx =
      *parse_problem("gemm m=? n=512 k=512 a=e4m3:1x32 b=e4m3:32x32 d=bf16 acc=0 promote=32");
  const Problem inside = *parse_problem(
      "gemm m=? n=512 k=512 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=bf16 acc=0 promote=none");
  const Problem mx_inside =
      *parse_problem("gemm m=? n=512 k=512 a=e4m3:1x32 b=e4m3:32x32 d=bf16 acc=0 promote=none");
  const Problem quantize = *parse_problem("quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row");
  for (const DeviceSpec& device : known_devices()) {
    EXPECT_TRUE(check_supported(gemm, device)) << device.name;
    const bool is_emulated = device.serving_unit() != device.default_unit();
    EXPECT_EQ(check_supported(fp8, device).has_value(), device.has_tma && !is_emulated)
        << device.name;
    EXPECT_EQ(check_supported(fp8, device.with_all_units()).has_value(), device.has_tma)
        << device.name;
    EXPECT_TRUE(check_supported(mx, device)) << device.name;
    for (const Problem& p : {inside, mx_inside}) {
      const bool by_warps = device.has_unit(MatrixUnit::kMmaScaled);
      EXPECT_EQ(check_supported(p, device).has_value(), by_warps) << device.name;
      EXPECT_EQ(check_supported(p, device.with_all_units()).has_value(),
                by_warps || device.has_unit(MatrixUnit::kTcgen05))
          << device.name;
    }
    EXPECT_TRUE(check_supported(quantize, device)) << device.name;
    EXPECT_TRUE(check_device(device)) << device.name;
    EXPECT_TRUE(refused_operations(device).empty()) << device.name;
  }
  EXPECT_EQ(supported_device_names(),
            "h200, h100, h20, l4, l40s, rtx4090, rtx6000ada, rtx5090, rtxpro6000, b200, b300");
  EXPECT_THAT(machines_markdown(),
              testing::HasSubstr("| l4, l40s, rtx4090, rtx6000ada | sm_89 | amax | yes |\n"
                                 "| rtx5090, rtxpro6000 | sm_120a | gemm | yes |"));
  EXPECT_EQ(check_supported(fp8, *find_device("l40s")).error().message,
            "'" + to_text(fp8) +
                "' is not supported on NVIDIA L40S (compute capability 8.9): not built yet: FP8 D "
                "without TMA, which came with compute capability 9.0: quantise the bf16 D; "
                "supported on: h200, h100, h20, rtx5090, rtxpro6000");
  EXPECT_THAT(
      check_supported(inside, *find_device("h200")).error().message,
      testing::HasSubstr("no instruction multiplies block scales here (mma_scaled of compute "
                         "capability 12.x and tcgen05 of 10.x do): promote=128; "
                         "supported on: rtx5090, rtxpro6000"));
  EXPECT_THAT(check_supported(mx_inside, *find_device("b200")).error().message,
              testing::HasSubstr("only tcgen05 multiplies block scales here, once its tests with "
                                 "them have passed on the card: promote=32; supported on: rtx5090, "
                                 "rtxpro6000"));
  // The tests of tcgen05 have passed, and those with scales in the instruction have not.
  DeviceSpec without_scales = find_device("b200")->with_all_units();
  without_scales.has_unused_scales = true;
  EXPECT_TRUE(check_supported(fp8, without_scales));
  EXPECT_FALSE(check_supported(inside, without_scales));
  EXPECT_FALSE(check_supported(mx_inside, without_scales));
  const Problem not_powers =
      *parse_problem("gemm m=? n=512 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=none");
  EXPECT_THAT(check_supported(not_powers, find_device("b200")->with_all_units()).error().message,
              testing::HasSubstr("the instruction only multiplies scales that are powers of two: "
                                 "use pow2 or ue8m0x4, or promote=128"));
  EXPECT_THAT(check_supported(quantize, with_capability({}, 8, 6)).error().message,
              testing::HasSubstr("the GPU has no conversions to FP8, which came with compute "
                                 "capability 8.9"));
  EXPECT_THAT(check_device(with_capability({}, 8, 0)).error().message,
              testing::HasSubstr("the GPU has no FP8 tensor cores"));
  const Problem wrong =
      *parse_problem("gemm m=? n=511 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
  EXPECT_EQ(check_supported(wrong, *find_device("l40s")).error().message,
            check_supported(wrong).error().message);
}

TEST(SupportMatrix, DimensionRules) {
  GemmProblem p;
  p.n = 7164;
  p.k = 2048;
  EXPECT_EQ(check_supported(p).error().message,
            "n is 7164; allowed are multiples of 8: a row of bf16 D is stored 8 columns at a time");
  p.d.dtype = DType::kFP32;
  EXPECT_EQ(check_supported(p).error().message,
            "n is 7164; allowed are multiples of 8: a row of fp32 D is stored 8 columns at a time");
  p.d.dtype = DType::kBF16;
  p.n = 7168;
  for (const std::int64_t k : {0, 1, 77, 127, 129, 2040}) {
    p.k = k;
    EXPECT_TRUE(check_supported(p)) << k;
  }
  p.k = 2048;
  for (const std::int64_t m : {kDynamic, std::int64_t{0}, std::int64_t{1}, std::int64_t{4097}}) {
    p.m = m;
    EXPECT_TRUE(check_supported(p)) << m;
  }
  p.n = 0;
  p.k = 0;
  EXPECT_TRUE(check_supported(p));
  p.m = -2;
  EXPECT_EQ(check_supported(p).error().code, ErrorCode::kInvalidArgument);

  QuantizeProblem q;
  for (const std::int64_t n : {0, 1, 127, 7168}) {
    q.rows = n;
    q.cols = n + 1;
    EXPECT_TRUE(check_supported(q)) << n;
  }
}

TEST(SupportMatrix, SizesBeyondInt64AreRefused) {
  const auto message = [](const Problem& p) {
    const Status s = check_supported(p);
    if (s) return std::string("accepted");
    EXPECT_EQ(s.error().code, ErrorCode::kInvalidArgument);
    return s.error().message;
  };
  const std::int64_t most = 2147483647;
  GemmProblem p;
  p.m = most;
  p.n = 8;
  p.k = 1024;  // m * k exceeds 2^31 and is far below 2^63
  EXPECT_EQ(message(p), "accepted");
  p.n = most - 7;
  p.d.dtype = DType::kFP32;
  EXPECT_EQ(
      message(p),
      "D[m,n] is 2147483647 x 2147483640 of 4 bytes; allowed are at most 2^63-1 bytes in all");
  QuantizeProblem q;
  q.x.dtype = DType::kFP32;
  q.rows = most;
  q.cols = most;
  EXPECT_EQ(message(q).rfind("X[rows,cols] is 2147483647 x 2147483647 of 4 bytes", 0), 0U)
      << message(q);
}

// Kernels index rows and columns with 32 bits.
TEST(SupportMatrix, ADimensionBeyondInt32IsRefused) {
  const std::string allowed = "; allowed is a decimal integer from 0 to 2147483647";
  const auto message = [](const Problem& p) {
    const Status s = check_supported(p);
    return s ? std::string("accepted") : s.error().message;
  };
  GemmProblem p;
  p.n = std::int64_t{1} << 31;
  p.k = 1024;
  EXPECT_EQ(message(p), "n is 2147483648" + allowed);
  p.n = 8;
  p.m = kMax;
  EXPECT_EQ(message(p), "m is 9223372036854775807" + allowed + ", or '?'");
  QuantizeProblem q;
  q.rows = 1;
  q.cols = std::int64_t{1} << 61;
  EXPECT_EQ(message(q), "cols is 2305843009213693952" + allowed);
}

TEST(SupportMatrix, MarkdownHasOneRowPerRow) {
  const std::string text = support_matrix_markdown();
  const auto lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_EQ(static_cast<std::size_t>(lines), support_matrix().size() + 2);
  EXPECT_NE(
      text.find(
          "| gemm | `a=e4m3\\|e5m2:1x128:f32\\|pow2\\|ue8m0x4 b=e4m3\\|e5m2:128x128:f32\\|pow2 "
          "d=bf16\\|fp16\\|fp32 promote=32\\|64\\|128\\|none group=none` | yes |"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("| quantize | `q=*:1x128:ue8m0x4` | yes |"), std::string::npos);
  EXPECT_NE(text.find("| gemm | anything else | no |"), std::string::npos);
  // Outside backquoted alternatives every '|' is a cell border: four cells in each line.
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    int borders = 0;
    for (std::size_t i = at; i < end; ++i) {
      if (text[i] == '|' && (i == 0 || text[i - 1] != '\\')) ++borders;
    }
    EXPECT_EQ(borders, 5) << text.substr(at, end - at);
    at = end + 1;
  }
}

}  // namespace
}  // namespace octile
