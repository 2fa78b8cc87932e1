#include "runtime/prove/gemm/tolerance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/reference/cast.h"

namespace octile::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr std::int64_t kIntervalOfC = 128;

// Returns c of Hopper's WGMMA. The largest measured on an H200 for 32, 64 and 128 was 2.3, 4.1 and
// 7.7. The tensor core truncates a sum once for every 32 elements of K. So c is 12 for each 128 of
// an interval: sums of one sign needed 20 of 48 for 512, 120 of 192 for 2048 and 1217 of 1536 for
// 16384.
double c_of_interval(std::int64_t interval) {
  constexpr double kOfBlock = 12;
  if (interval == 32) return 4;
  if (interval == 64) return 8;
  return kOfBlock * static_cast<double>(ceil_div(interval, kIntervalOfC));
}

// |D - R| as a share of the allowed difference; at most 1 is within the tolerance.
struct Verdict {
  double share = 0;
  double allowed = 0;
};

Verdict judge(double d, double r, double s, DType dtype, double c) {
  if (std::isnan(r)) return {std::isnan(d) ? 0.0 : kInfinity, 0.0};
  if (std::isinf(r)) return {d == r ? 0.0 : kInfinity, 0.0};
  const double half_ulp = ulp_of(dtype, r) / 2;
  const double allowed = half_ulp + c * 0x1p-13 * s;
  if (std::isnan(d)) return {kInfinity, allowed};
  // An infinity counts as the first value that rounds to it.
  const double largest = max_finite(dtype);
  const double value = std::isinf(d) ? std::copysign(largest + ulp_of(dtype, largest) / 2, d) : d;
  const double error = std::fabs(value - r);
  return {error == 0.0 ? 0.0 : error / allowed, allowed};
}

// The same for an element of FP8 D, whose code and `scale` give d.
Verdict judge_scaled(double d, double r, double s, DType dtype, double c, double scale) {
  // An infinity has the code of a NaN in E4M3.
  if (!std::isfinite(r)) return {std::isnan(d) || d == r ? 0.0 : kInfinity, 0.0};
  const double code = std::min(std::max(std::fabs(d), std::fabs(r)) / scale,
                               static_cast<double>(max_finite(dtype)));
  const double allowed = ulp_of(dtype, code) * scale / 2 + c * 0x1p-13 * s + std::fabs(r) * 0x1p-22;
  const double error = std::fabs(d - r);
  if (!std::isfinite(error)) return {kInfinity, allowed};
  return {error == 0.0 ? 0.0 : error / allowed, allowed};
}

}  // namespace

int mantissa_bits(DType dtype) {
  switch (dtype) {
    case DType::kE4M3:
      return 3;
    case DType::kE5M2:
      return 2;
    case DType::kBF16:
      return 7;
    case DType::kFP16:
      return 10;
    case DType::kFP32:
      break;
  }
  return 23;
}

double ulp_of(DType dtype, double x) {
  const bool like_fp16 = dtype == DType::kFP16 || dtype == DType::kE5M2;
  const int smallest_exponent = dtype == DType::kE4M3 ? -6 : like_fp16 ? -14 : -126;
  const int exponent = x == 0.0 ? smallest_exponent : std::ilogb(x);
  return std::ldexp(1.0, std::max(exponent, smallest_exponent) - mantissa_bits(dtype));
}

double tolerance_c(int promote, std::int64_t k, SumPrecision sums) {
  constexpr SumPrecision kOfWgmma;
  constexpr int kFp32Bits = 23;
  const std::int64_t interval = promote == kPromoteNone ? std::max(k, kIntervalOfC) : promote;
  double c = c_of_interval(interval);
  // The unit cuts the sum itself in every step. Where it keeps fp32, that cut is counted below.
  if (sums.bits < kFp32Bits) c *= static_cast<double>(kOfWgmma.step) / sums.step;
  if (sums.bits <= kOfWgmma.bits) return c;
  // fp32 rounds each promotion twice, of sums and products of at most S. The unit cuts its sum to
  // fp32 in every step, and half of S is in it in the mean.
  const auto promotions = static_cast<double>(ceil_div(std::max(k, interval), interval));
  constexpr double kRoundings = 2 * 0x1p-24 / 0x1p-13;
  constexpr double kCut = 0x1p-23 / 0x1p-13 / 2;
  return std::ldexp(c, kOfWgmma.bits - sums.bits) + kRoundings * promotions +
         kCut / sums.step * static_cast<double>(interval);
}

ToleranceReport check_tolerance(const void* d, DType dtype, std::int64_t ldd,
                                const Fp64Window& window, std::span<const double> r,
                                std::span<const double> s, double c, const ScalesOfD& scales) {
  ToleranceReport report;
  double worst_share = -1.0;
  for (std::int64_t row = 0; row < window.rows; ++row) {
    for (std::int64_t col = 0; col < window.cols; ++col) {
      const auto at = static_cast<std::size_t>(row * window.cols + col);
      const double scale = is_fp8(dtype) ? scales.of(row, col) : 1.0;
      const double value = scale * static_cast<double>(load_as_float(
                                       d, dtype, (window.row0 + row) * ldd + window.col0 + col));
      const Verdict verdict = is_fp8(dtype) ? judge_scaled(value, r[at], s[at], dtype, c, scale)
                                            : judge(value, r[at], s[at], dtype, c);
      if (std::isfinite(value) && std::isfinite(r[at]) && s[at] > 0.0) {
        const double error = std::fabs(value - r[at]);
        report.worst_error_over_s = std::max(report.worst_error_over_s, error / s[at]);
        report.worst_c = std::max(
            report.worst_c, (error - ulp_of(dtype, r[at] / scale) * scale / 2) / (0x1p-13 * s[at]));
      } else if (std::isfinite(r[at]) && verdict.share > 1) {
        report.worst_c = kInfinity;
      }
      if (verdict.share > worst_share) {
        worst_share = verdict.share;
        report.row = window.row0 + row;
        report.col = window.col0 + col;
        report.d = value;
        report.r = r[at];
        report.s = s[at];
        report.allowed = verdict.allowed;
      }
    }
  }
  report.ok = worst_share <= 1.0;
  return report;
}

std::string ToleranceReport::to_text() const {
  if (row < 0) return "no element to compare";
  return fmt::format(
      "{}: worst element ({}, {}): D = {:.9g}, R = {:.9g}, |D - R| = {:.3g}, allowed {:.3g}, "
      "S = {:.6g}; max |D - R| / S = {:.3g}",
      ok ? "within tolerance" : "OUT OF TOLERANCE", row, col, d, r, std::fabs(d - r), allowed, s,
      worst_error_over_s);
}

}  // namespace octile::reference
