// Measures of how far a result is from the correct one, as the documents and tests use them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "generator/core/error.h"
#include "generator/core/types.h"
#include "runtime/families/gemm/reference.h"

namespace octile::reference {

// The loss from quantising a tensor.
struct QuantizationLoss {
  double snr_db = 0;  // 10 log10(sum x^2 / sum (x - restored)^2); infinite if there is no error
  double flushed_share = 0;  // nonzero x restored as zero / all nonzero x
};

// Returns the loss of x against `restored`, where restored[i] = q * scale. `counted` has one byte
// for each element, and 0 excludes the element from every sum; empty counts all elements. It serves
// to find the loss of the other elements beside enormous outliers.
QuantizationLoss quantization_loss(std::span<const float> x, std::span<const float> restored,
                                   std::span<const std::uint8_t> counted = {});

// Returns 1 - 2 sum(xy) / sum(x^2 + y^2), which is 0 for equal arrays. DeepGEMM's tests use this
// measure.
double calc_diff(std::span<const float> x, std::span<const float> y);

// Returns sqrt(sum (x - y)^2 / sum y^2), the relative error of x as a whole.
double relative_error(std::span<const float> x, std::span<const float> y);

// Returns x after what tutorials call FP8: x / scale is rounded to the nearest *integer* in [-448,
// 448] and multiplied by the scale again. Each block has one fp32 scale = amax / 448. This model is
// fixed-point, whereas E4M3 is floating-point. x and the result are [rows][cols]; granularities:
// per tensor, per row, 1x128, 128x128.
Result<std::vector<float>> integer_model(std::span<const float> x, std::int64_t rows,
                                         std::int64_t cols, Granularity granularity);

// Returns the distance between neighbours of `dtype` (bf16, fp16, fp32) in the binade of x, also
// for subnormals.
double ulp_of(DType dtype, double x);

// Returns the c of the tolerance in docs/numerics.md for a promotion interval of K elements. It is
// fixed above what the GPU suite measured over all its cases (worst_c in tests/gpu/REPORT.json).
double tolerance_c(int promote);

// Result of checking a GEMM against the tolerance in docs/numerics.md: |D - R| <= ulp(R) / 2 + c *
// 2^-13 * S. If R is not finite, D must be the same infinity or a NaN.
struct ToleranceReport {
  bool ok = true;
  // max |D - R| / S over the elements with S > 0, and the smallest c that would pass.
  double worst_error_over_s = 0;
  double worst_c = 0;
  // The element that exceeds its bound most, or comes nearest to it.
  std::int64_t row = -1, col = -1;
  double d = 0, r = 0, s = 0, allowed = 0;
  std::string to_text() const;
};

// Checks a window of D. d, [..][ldd] of `dtype`, points at the whole D; r and s are the window's
// values from gemm_fp64.
ToleranceReport check_tolerance(const void* d, DType dtype, std::int64_t ldd,
                                const Fp64Window& window, std::span<const double> r,
                                std::span<const double> s, double c);

}  // namespace octile::reference
