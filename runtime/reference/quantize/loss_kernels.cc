#include "runtime/reference/quantize/loss_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "runtime/reference/cast_bits.h"
#include "runtime/reference/multiversion.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kRunPiece = 128;  // number of elements whose codes are widened together
// The number of lanes of a sum. It is the same on every processor, and so are the sum's bits.
constexpr std::int64_t kLanes = 8;
using Doubles = double __attribute__((vector_size(kLanes * sizeof(double))));
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));

struct LaneSums {
  Doubles signal{}, noise{};
  double signal_sum() const { return sum_of(signal); }
  double noise_sum() const { return sum_of(noise); }

 private:
  static double sum_of(const Doubles& lanes) {
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  }
};

[[gnu::always_inline]] inline void add_lanes(const float* x, const float* values, double decode,
                                             LaneSums& sums) {
  Floats narrow, restored;
  std::memcpy(&narrow, x, sizeof(narrow));
  std::memcpy(&restored, values, sizeof(restored));
  const Doubles wide = __builtin_convertvector(narrow, Doubles);
  const Doubles error = wide - __builtin_convertvector(restored, Doubles) * decode;
  sums.signal += wide * wide;
  sums.noise += error * error;
}

// Adds x^2 and (x - value * decode)^2 to the lanes.
[[gnu::always_inline]] inline void add_piece(const float* x, const float* values, double decode,
                                             std::int64_t count, LaneSums& sums) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) add_lanes(x + i, values + i, decode, sums);
  if (i == count) return;
  std::array<float, kLanes> last{}, last_values{};
  std::copy(x + i, x + count, last.begin());
  std::copy(values + i, values + count, last_values.begin());
  add_lanes(last.data(), last_values.data(), decode, sums);
}

// Counts up to kRunPiece elements. The four counts are the bytes of one sum.
[[gnu::always_inline]] inline void count_piece(const float* x, const std::uint8_t* codes,
                                               std::int64_t count, float amax, float limit,
                                               RunSums& sums) {
  static_assert(kRunPiece < 256);
  std::uint32_t counts = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(x[i]);
    const std::uint32_t of_nonzero = (codes[i] & 0x7F) == 0 ? 0x0101U : 0x0001U;
    counts += (magnitude != 0.0F ? of_nonzero : 0U) + (magnitude > limit ? 0x010000U : 0U) +
              (magnitude * 2.0F > amax ? 0x01000000U : 0U);
  }
  sums.nonzero += counts & 0xFFU;
  sums.flushed += counts >> 8U & 0xFFU;
  sums.saturated += counts >> 16U & 0xFFU;
  sums.above += counts >> 24U;
}

// Returns the largest magnitude that rounds to the format's largest value. Halfway to the value
// that would follow, E4M3's even code is the lower one, and E5M2's the upper one.
template <DType fp8>
float saturation_limit(double decode) {
  const double limit = fp8 == DType::kE4M3 ? 464.0 * decode : std::nextafter(61440.0 * decode, 0.0);
  const auto rounded = static_cast<float>(limit);
  return static_cast<double>(rounded) > limit ? std::nextafter(rounded, 0.0F) : rounded;
}

[[gnu::always_inline]] inline float zero_unless(bool condition, float x) {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & mask);
}

template <DType fp8>
[[gnu::always_inline]] inline RunSums sums_as(const float* x, const std::uint8_t* codes,
                                              std::int64_t count, double decode, float amax,
                                              float limit) {
  RunSums sums;
  LaneSums lanes;
  std::array<float, kRunPiece> values;  // NOLINT: written before read
  for (std::int64_t begin = 0; begin < count; begin += kRunPiece) {
    const std::int64_t piece = std::min(kRunPiece, count - begin);
    const float* const part = x + begin;
    for (std::int64_t i = 0; i < piece; ++i) {
      const float value = widen_finite_fp8<fp8>(codes[begin + i]);
      values[static_cast<std::size_t>(i)] = zero_unless(part[i] != 0.0F, value);
    }
    count_piece(part, codes + begin, piece, amax, limit, sums);
    add_piece(part, values.data(), decode, piece, lanes);
  }
  sums.signal = lanes.signal_sum();
  sums.noise = lanes.noise_sum();
  return sums;
}

template <DType fp8>
[[gnu::always_inline]] inline RestSums rest_as(const float* x, const std::uint8_t* codes,
                                               std::int64_t count, double decode, float amax) {
  LaneSums lanes;
  std::array<float, kRunPiece> rest, values;  // NOLINT: written before read
  for (std::int64_t begin = 0; begin < count; begin += kRunPiece) {
    const std::int64_t piece = std::min(kRunPiece, count - begin);
    for (std::int64_t i = 0; i < piece; ++i) {
      const float one = x[begin + i];
      const bool is_below = std::fabs(one) * 2.0F <= amax;
      const float value = zero_unless(is_below, widen_finite_fp8<fp8>(codes[begin + i]));
      rest[static_cast<std::size_t>(i)] = zero_unless(is_below, one);
      values[static_cast<std::size_t>(i)] = zero_unless(one != 0.0F, value);
    }
    add_piece(rest.data(), values.data(), decode, piece, lanes);
  }
  return {lanes.signal_sum(), lanes.noise_sum()};
}

OCTILE_MULTIVERSION
RunSums sums_e4m3(const float* x, const std::uint8_t* codes, std::int64_t count, double decode,
                  float amax, float limit) {
  return sums_as<DType::kE4M3>(x, codes, count, decode, amax, limit);
}

OCTILE_MULTIVERSION
RunSums sums_e5m2(const float* x, const std::uint8_t* codes, std::int64_t count, double decode,
                  float amax, float limit) {
  return sums_as<DType::kE5M2>(x, codes, count, decode, amax, limit);
}

OCTILE_MULTIVERSION
void dequantize_e4m3(const std::uint8_t* codes, float scale, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = widen_fp8<DType::kE4M3>(codes[i]) * scale;
}

OCTILE_MULTIVERSION
void dequantize_e5m2(const std::uint8_t* codes, float scale, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = widen_fp8<DType::kE5M2>(codes[i]) * scale;
}

}  // namespace

void dequantize_run(const std::uint8_t* codes, DType fp8, float scale, std::int64_t count,
                    float* out) {
  if (fp8 == DType::kE4M3) {
    dequantize_e4m3(codes, scale, count, out);
  } else {
    dequantize_e5m2(codes, scale, count, out);
  }
}

RunSums& RunSums::operator+=(const RunSums& other) {
  signal += other.signal;
  noise += other.noise;
  nonzero += other.nonzero;
  flushed += other.flushed;
  saturated += other.saturated;
  above += other.above;
  return *this;
}

RestSums& RestSums::operator+=(const RestSums& other) {
  signal += other.signal;
  noise += other.noise;
  return *this;
}

RunSums sums_of_run(const float* x, const std::uint8_t* codes, std::int64_t count,
                    const RunScale& scale) {
  if (scale.fp8 == DType::kE4M3) {
    return sums_e4m3(x, codes, count, scale.decode, scale.amax,
                     saturation_limit<DType::kE4M3>(scale.decode));
  }
  return sums_e5m2(x, codes, count, scale.decode, scale.amax,
                   saturation_limit<DType::kE5M2>(scale.decode));
}

RestSums rest_of_run(const float* x, const std::uint8_t* codes, std::int64_t count,
                     const RunScale& scale) {
  return scale.fp8 == DType::kE4M3
             ? rest_as<DType::kE4M3>(x, codes, count, scale.decode, scale.amax)
             : rest_as<DType::kE5M2>(x, codes, count, scale.decode, scale.amax);
}

RunDifference& RunDifference::operator+=(const RunDifference& other) {
  signal += other.signal;
  noise += other.noise;
  largest = std::max(largest, other.largest);
  differing += other.differing;
  nonfinite += other.nonfinite;
  return *this;
}

RunDifference difference_of_run(const double* a, const double* b, std::int64_t count) {
  RunDifference all;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) {
      ++all.nonfinite;
      continue;
    }
    const double x = a[i], error = x - b[i];
    all.signal += x * x;
    all.noise += error * error;
    all.largest = std::max(all.largest, std::fabs(error));
    all.differing += error != 0 ? 1 : 0;
  }
  return all;
}

OCTILE_MULTIVERSION
RunCounts counts_of_run(const float* x, std::int64_t count) {
  constexpr std::int64_t kCounted = std::int64_t{1} << 16;  // number of elements of narrow counts
  // Comparisons would become branches, which GCC does not vectorise.
  const auto is_at_least = [](std::uint32_t magnitude, std::uint32_t bound) {
    return (magnitude + (kSignBit - bound)) >> 31U;
  };
  RunCounts counts;
  for (std::int64_t begin = 0; begin < count; begin += kCounted) {
    const std::int64_t end = std::min(count, begin + kCounted);
    std::uint32_t nonzero = 0, nonfinite = 0, nans = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(x[i]) & kMagnitude;
      nonzero += is_at_least(magnitude, 1);
      nonfinite += is_at_least(magnitude, kInfinityBits);
      nans += is_at_least(magnitude, kInfinityBits + 1);
    }
    counts.zeros += end - begin - nonzero;
    counts.nans += nans;
    counts.infinities += nonfinite - nans;
  }
  return counts;
}

OCTILE_MULTIVERSION
void clear_nonfinite(float* x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(x[i]);
    x[i] = (bits & kMagnitude) < kInfinityBits ? x[i] : 0.0F;
  }
}

}  // namespace octile::reference
