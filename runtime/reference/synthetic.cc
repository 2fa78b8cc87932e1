#include "runtime/reference/synthetic.h"

#include <cmath>
#include <numbers>

#include "runtime/reference/cast.h"
#include "runtime/reference/parallel.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kRowsPerRange = 16;

// Constants of SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators"
// (2014).
constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15U;

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

std::uint16_t to_bf16(double value) { return float_to_bf16(static_cast<float>(value)); }

}  // namespace

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index) {
  return mix(mix(seed + 1) + (index + 1) * kGamma);
}

double random_uniform(std::uint64_t seed, std::uint64_t index) {
  return static_cast<double>(random_bits(seed, index) >> 11) * 0x1p-53;
}

double random_normal(std::uint64_t seed, std::uint64_t index) {
  // The value lies in (0, 1], so its logarithm is finite.
  const double radius_draw = 1.0 - random_uniform(seed, 2 * index);
  const double angle_draw = random_uniform(seed, 2 * index + 1);
  return std::sqrt(-2.0 * std::log(radius_draw)) * std::cos(2.0 * std::numbers::pi * angle_draw);
}

std::vector<std::uint16_t> synthetic_activations(const ActivationSpec& spec, int threads) {
  std::vector<std::uint16_t> x(static_cast<std::size_t>(spec.rows * spec.cols));
  parallel_for(spec.rows, kRowsPerRange, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t col = 0; col < spec.cols; ++col) {
        const auto at = static_cast<std::size_t>(row * spec.cols + col);
        const double gain = col == spec.channel_30 ? 30.0 : col == spec.channel_50 ? 50.0 : 1.0;
        x[at] = to_bf16(gain * random_normal(spec.seed, at));
      }
    }
  });
  const bool inside = spec.outlier_row < spec.rows && spec.outlier_col < spec.cols;
  if (spec.outlier != 0.0F && inside) {
    x[static_cast<std::size_t>(spec.outlier_row * spec.cols + spec.outlier_col)] =
        float_to_bf16(spec.outlier);
  }
  return x;
}

std::vector<std::uint8_t> bulk_of(const ActivationSpec& spec) {
  std::vector<std::uint8_t> bulk(static_cast<std::size_t>(spec.rows * spec.cols), 1);
  for (std::int64_t row = 0; row < spec.rows; ++row) {
    for (std::int64_t col = 0; col < spec.cols; ++col) {
      const bool cell = row == spec.outlier_row && col == spec.outlier_col;
      if (cell || col == spec.channel_30 || col == spec.channel_50) {
        bulk[static_cast<std::size_t>(row * spec.cols + col)] = 0;
      }
    }
  }
  return bulk;
}

std::vector<std::uint16_t> synthetic_weight(std::int64_t rows, std::int64_t cols,
                                            std::uint64_t seed, double sigma, int threads) {
  std::vector<std::uint16_t> w(static_cast<std::size_t>(rows * cols));
  parallel_for(rows, kRowsPerRange, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * cols; i < end * cols; ++i) {
      const auto at = static_cast<std::size_t>(i);
      w[at] = to_bf16(sigma * random_normal(seed, at));
    }
  });
  return w;
}

}  // namespace octile::reference
