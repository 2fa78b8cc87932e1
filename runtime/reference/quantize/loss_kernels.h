// The inner loops that measure the loss of quantising.
#pragma once

#include <cstdint>

#include "generator/core/types.h"

namespace octile::reference {

// Sums over elements of one block.
struct RunSums {
  double signal = 0, noise = 0;
  std::int64_t nonzero = 0, flushed = 0, saturated = 0;
  std::int64_t above = 0;  // magnitudes of more than half the block's largest
  RunSums& operator+=(const RunSums& other);
};

// Sums over the elements of a block that are not above half its largest magnitude.
struct RestSums {
  double signal = 0, noise = 0;
  RestSums& operator+=(const RestSums& other);
};

// The FP8 type of a run's elements, their block's decode scale and its largest finite magnitude.
struct RunScale {
  DType fp8 = DType::kE4M3;
  double decode = 1;
  float amax = 0;
};

// Returns the sums of x[i] against its code. A zero has no error. x is finite.
RunSums sums_of_run(const float* x, const std::uint8_t* codes, std::int64_t count,
                    const RunScale& scale);
RestSums rest_of_run(const float* x, const std::uint8_t* codes, std::int64_t count,
                     const RunScale& scale);

// How two runs differ: the sums of a^2 and (a - b)^2, and the largest |a - b|. Elements of which
// one is NaN or infinite are counted and have no other part.
struct RunDifference {
  double signal = 0, noise = 0, largest = 0;
  std::int64_t differing = 0, nonfinite = 0;
  RunDifference& operator+=(const RunDifference& other);
};
RunDifference difference_of_run(const double* a, const double* b, std::int64_t count);

// Counts of a run of values.
struct RunCounts {
  std::int64_t zeros = 0, nans = 0, infinities = 0;
};
RunCounts counts_of_run(const float* x, std::int64_t count);

// Sets out[i] to the value of codes[i] times `scale`, rounded to fp32, as dequantising does.
void dequantize_run(const std::uint8_t* codes, DType fp8, float scale, std::int64_t count,
                    float* out);

// Sets NaNs and infinities to zero.
void clear_nonfinite(float* x, std::int64_t count);

}  // namespace octile::reference
