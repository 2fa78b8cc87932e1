// Checks what the field has learnt about FP8 on the host reference. The tests print numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <string_view>
#include <vector>

#include "runtime/reference/synthetic.h"
#include "tests/support/host_quantized.h"

namespace octile {
namespace {

using tests::HostQuantized;

constexpr std::array kGranularities{Granularity::kPerTensor, Granularity::kPerRow,
                                    Granularity::k1x128,     Granularity::k128x128,
                                    Granularity::k1x32,      Granularity::k32x32};

std::vector<float> normal(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(reference::random_normal(seed, i));
  }
  return x;
}

QuantizeProblem problem_of(std::int64_t cols, Granularity g, DType fp8 = DType::kE4M3) {
  QuantizeProblem p;
  p.cols = cols;
  p.x = {DType::kFP32};
  p.q = {fp8, g, default_scale_format(g)};
  return p;
}

// Returns the signal-to-noise ratio in dB over the elements for which `counts(i)` is true.
template <typename Counts>
double snr(const std::vector<float>& x, const std::vector<float>& y, const Counts& counts) {
  double signal = 0, noise = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!counts(i)) continue;
    const double d = double{x[i]} - y[i];
    signal += double{x[i]} * x[i];
    noise += d * d;
  }
  return 10 * std::log10(signal / noise);
}
double snr(const std::vector<float>& x, const std::vector<float>& y) {
  return snr(x, y, [](std::size_t) { return true; });
}

TEST(QuantizeLessons, AnOutliersDamageStaysInItsTile) {
  constexpr std::int64_t kRows = 512, kCols = 1024, kRow = 200, kCol = 700;
  const std::vector<float> without = normal(kRows, kCols, 1);
  std::vector<float> with = without;
  constexpr auto kAt = static_cast<std::size_t>(kRow * kCols + kCol);
  with[kAt] = 2e6F;
  fmt::print("one element of 2e6 among N(0,1), 512 x 1024, E4M3: bulk SNR and codes changed\n");
  for (const Granularity g : kGranularities) {
    const QuantizeProblem p = problem_of(kCols, g);
    const HostQuantized clean = tests::quantize_on_host(p, kRows, without.data()).first;
    const HostQuantized hit = tests::quantize_on_host(p, kRows, with.data()).first;
    std::int64_t changed = 0;
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kCols; ++c) {
        const bool same =
            clean.code(r, c) == hit.code(r, c) && clean.scale(r, c) == hit.scale(r, c);
        const bool in_tile = r / clean.index.block_rows == kRow / clean.index.block_rows &&
                             c / clean.index.block_cols == kCol / clean.index.block_cols;
        ASSERT_TRUE(same || in_tile) << r << " " << c;
        changed += same ? 0 : 1;
      }
    }
    const double bulk = snr(with, tests::values_of(hit), [](std::size_t i) { return i != kAt; });
    fmt::print("  {:<8} {:5.1f} dB  {:>6} elements\n", name_of(g), bulk, changed);
    const bool tensor = g == Granularity::kPerTensor;
    EXPECT_EQ(bulk < 5, tensor);
    EXPECT_GT(bulk, tensor ? -1 : 10);
  }
}

// Quantising dequantised values again costs nothing more. Multiplying by a scale a second time, a
// likely mistake in a fused pipeline, would show.
TEST(QuantizeLessons, TheDequantisedQuantisesAgainWithoutASecondError) {
  constexpr std::int64_t kRows = 256, kCols = 512;
  const std::vector<float> x = normal(kRows, kCols, 2);
  fmt::print("SNR of N(0,1) in dB: quantised, quantised twice, scaled twice\n");
  for (const Granularity g : kGranularities) {
    QuantizeProblem p = problem_of(kCols, g);
    const HostQuantized once = tests::quantize_on_host(p, kRows, x.data()).first;
    const std::vector<float> values = tests::values_of(once);
    p.x = p.q;
    const HostQuantized twice =
        tests::quantize_on_host(p, kRows, once.codes.data(), once.scales.data()).first;
    std::vector<float> scaled_twice = values;
    for (std::size_t i = 0; i < scaled_twice.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      scaled_twice[i] *= once.scale(at / kCols, at % kCols);
    }
    const double first = snr(x, values), second = snr(x, tests::values_of(twice));
    const double wrong = snr(x, scaled_twice);
    fmt::print("  {:<8} {:5.1f} {:5.1f} {:5.1f}\n", name_of(g), first, second, wrong);
    EXPECT_GT(first, 30);
    EXPECT_GT(second, first - 0.5);  // an error added to itself would cost 3 dB, a squared one 30
    EXPECT_LT(wrong, 1);
  }
}

// E4M3 spans 5.7 decades from half its smallest subnormal to its largest value, E5M2 9.9.
TEST(QuantizeLessons, GradientsOverSixDecadesNeedE5M2) {
  constexpr std::int64_t kRows = 256, kCols = 1024;
  std::vector<float> x(kRows * kCols);
  std::mt19937 random(3);
  std::uniform_real_distribution<double> decades(-6.0, 0.0);
  for (float& v : x) {
    v = static_cast<float>(std::pow(10.0, decades(random)) * (random() % 2 == 0 ? 1 : -1));
  }
  x[0] = 1.0F;
  struct Loss {
    // The share of elements that became 0, and the relative error in the smallest decade.
    double flushed = 0, worst_decade = 0;
  };
  const auto loss = [&](DType fp8, Granularity g) {
    const HostQuantized q =
        tests::quantize_on_host(problem_of(kCols, g, fp8), kRows, x.data()).first;
    const std::vector<float> values = tests::values_of(q);
    Loss l;
    double error = 0, sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      l.flushed += values[i] == 0 ? 1.0 / static_cast<double>(x.size()) : 0;
      if (std::fabs(x[i]) >= 1e-5F) continue;
      error += std::fabs(double{values[i]} - x[i]);
      sum += std::fabs(x[i]);
    }
    l.worst_decade = error / sum;
    return l;
  };
  fmt::print("gradients uniform over 10^-6 .. 1: flushed, error of those below 10^-5\n");
  for (const DType fp8 : {DType::kE4M3, DType::kE5M2}) {
    for (const Granularity g : {Granularity::kPerTensor, Granularity::k1x128}) {
      const Loss l = loss(fp8, g);
      fmt::print("  {} {:<8} {:6.2f} % {:6.1f} %\n", name_of(fp8), name_of(g), 100 * l.flushed,
                 100 * l.worst_decade);
    }
  }
  const Loss e4m3 = loss(DType::kE4M3, Granularity::kPerTensor);
  const Loss e5m2 = loss(DType::kE5M2, Granularity::kPerTensor);
  EXPECT_GT(e4m3.flushed, 0.03);
  EXPECT_GT(e4m3.worst_decade, 0.25);
  EXPECT_EQ(e5m2.flushed, 0);
  EXPECT_LT(e5m2.worst_decade, 0.08);  // half a step of 2 mantissa bits, as in every decade
}

// ---- others' arithmetic on finite data, restated ------------------------------------------------

// TransformerEngine, common/recipe/recipe_common.cuh: the scale is max / amax in fp32, and 1 if
// amax is 0 or infinite. An infinite scale becomes the input type's largest value. Power-of-two
// scales keep sign and exponent.
float transformer_engine_scale(float amax, float fp8_max, float input_max, bool power_of_two,
                               float epsilon) {
  if (amax < epsilon) amax = epsilon;
  if (std::isinf(amax) || amax == 0) return 1.0F;
  float scale = fp8_max / amax;
  if (std::isinf(scale)) scale = input_max;
  if (power_of_two) scale = std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale) & 0xFF800000U);
  return scale;
}

// torchao, prototype/blockwise_fp8_training/kernels.py: 448 / clamp(amax, 1e-12) in FP64, rounded.
float torchao_scale(float amax) {
  return static_cast<float>(448.0 / double{std::max(amax, 1e-12F)});
}

TEST(QuantizeLessons, ScalesAreTransformerEnginesAndTorchaos) {
  std::mt19937 random(4);
  int compared = 0;
  for (int i = 0; i < 400000; ++i) {
    const auto amax = std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0x7FFFFFFFU);
    if (!std::isfinite(amax)) continue;
    QuantizeProblem p = problem_of(128, Granularity::k1x128);
    p.amax_epsilon = 1e-12F;
    ASSERT_EQ(reference::encode_scale(amax, p), torchao_scale(amax)) << amax;
    for (const DType input : {DType::kBF16, DType::kFP16, DType::kFP32}) {
      if (amax > max_finite(input)) continue;
      for (const DType fp8 : {DType::kE4M3, DType::kE5M2}) {
        for (const bool power_of_two : {false, true}) {
          p.x = {input};
          p.q = {fp8, Granularity::k1x128,
                 power_of_two ? ScaleFormat::kF32Pow2 : ScaleFormat::kF32};
          p.amax_epsilon = i % 2 == 0 ? 0.0F : 0x1p-10F;
          ASSERT_EQ(reference::encode_scale(amax, p),
                    transformer_engine_scale(amax, max_finite(fp8), max_finite(input), power_of_two,
                                             p.amax_epsilon))
              << amax;
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 1000000);
}

// ---- tensor parallelism -------------------------------------------------------------------------

// Expects that rows [begin, end) quantised separately have the codes and scales that the whole
// tensor gives them.
void expect_shard_of(const HostQuantized& whole, const QuantizeProblem& p,
                     const std::vector<float>& x, std::int64_t begin, std::int64_t end) {
  const HostQuantized shard =
      tests::quantize_on_host(p, end - begin, x.data() + begin * p.cols).first;
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t c = 0; c < p.cols; ++c) {
      ASSERT_EQ(shard.code(r - begin, c), whole.code(r, c)) << r << " " << c;
      ASSERT_EQ(shard.scale(r - begin, c), whole.scale(r, c)) << r << " " << c;
    }
  }
}

TEST(QuantizeLessons, RowShardsQuantisedApartEqualTheWhole) {
  constexpr std::int64_t kRows = 400, kCols = 300;
  const std::vector<float> x = normal(kRows, kCols, 5);
  constexpr std::array<std::int64_t, 6> kAnywhere{0, 1, 38, 38, 255, kRows};
  constexpr std::array<std::int64_t, 4> kWholeBlocks{0, 128, 256, kRows};
  for (const Granularity g : kGranularities) {
    if (g == Granularity::kPerTensor) continue;  // its shards share a maximum
    const bool square = g == Granularity::k128x128 || g == Granularity::k32x32;
    for (const ScaleFormat f : {default_scale_format(g), ScaleFormat::kF32Pow2}) {
      QuantizeProblem p = problem_of(kCols, g);
      p.q.scale = f;
      if (!quantized_layout(p.q, kRows, kCols)) continue;
      SCOPED_TRACE(to_text(Problem(p)));
      const HostQuantized whole = tests::quantize_on_host(p, kRows, x.data()).first;
      const auto each = [&](const auto& cuts) {
        for (std::size_t i = 1; i < cuts.size(); ++i) {
          expect_shard_of(whole, p, x, cuts[i - 1], cuts[i]);
        }
      };
      square ? each(kWholeBlocks) : each(kAnywhere);
    }
  }
}

}  // namespace
}  // namespace octile
