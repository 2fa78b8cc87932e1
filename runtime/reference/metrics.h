// How far a result is from what it should be, in the measures the documents and tests speak of.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "generator/core/error.h"
#include "generator/core/types.h"
#include "runtime/families/gemm/reference.h"

namespace octile::reference {

// What quantising a tensor lost.
struct QuantizationLoss {
  double snr_db = 0;         // 10 log10(sum x^2 / sum (x - restored)^2); infinite for no error
  double flushed_share = 0;  // nonzero x restored as zero, over all nonzero x
};

// restored[i] = q * scale. `counted` (one byte an element, 0 leaves it out of every sum) is empty
// for all elements: beside enormous outliers the loss of the rest is the interesting one.
QuantizationLoss quantization_loss(std::span<const float> x, std::span<const float> restored,
                                   std::span<const std::uint8_t> counted = {});

// 1 - 2 sum(xy) / sum(x^2 + y^2): 0 for equal arrays. The measure DeepGEMM's tests use.
double calc_diff(std::span<const float> x, std::span<const float> y);

// sqrt(sum (x - y)^2 / sum y^2): the relative error of x as a whole.
double relative_error(std::span<const float> x, std::span<const float> y);

// What tutorials call FP8: x / scale rounded to the nearest *integer* in [-448, 448] and multiplied
// back, scale = amax / 448 over the block, one scale of fp32. It is a fixed-point model; E4M3
// floats. x and the result are [rows][cols]; granularities: per tensor, per row, 1x128, 128x128.
Result<std::vector<float>> integer_model(std::span<const float> x, std::int64_t rows,
                                         std::int64_t cols, Granularity granularity);

// Distance between neighbours of `dtype` (bf16, fp16, fp32) in the binade of x, subnormals
// included.
double ulp_of(DType dtype, double x);

// The c of the contract's tolerance for a promotion interval (K elements): frozen above what the
// GPU suite measured over all its cases (docs/numerics.md; worst_c in tests/gpu/REPORT.json).
double tolerance_c(int promote);

// The contract's check of a product: |D - R| <= ulp(R) / 2 + c * 2^-13 * S. Where R is not finite,
// D must be the same infinity or a NaN.
struct ToleranceReport {
  bool ok = true;
  // max |D - R| / S over the elements with S > 0, and what `c` would have had to be.
  double worst_error_over_s = 0;
  double worst_c = 0;
  // The element furthest over (or nearest to) its bound.
  std::int64_t row = -1, col = -1;
  double d = 0, r = 0, s = 0, allowed = 0;
  std::string to_text() const;
};

// d, [..][ldd] of `dtype`, points at the whole product; r and s are the window's, from gemm_fp64.
ToleranceReport check_tolerance(const void* d, DType dtype, std::int64_t ldd,
                                const Fp64Window& window, std::span<const double> r,
                                std::span<const double> s, double c);

}  // namespace octile::reference
