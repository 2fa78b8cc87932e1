// Measures of how far a result is from the correct one, as the documents and tests use them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generator/core/error.h"
#include "generator/core/types.h"

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

}  // namespace octile::reference
