// The functions of the expression tree that no single instruction computes. They use only fp32
// operations that every device and host rounds in the same way, so results have the same bits
// everywhere. templates/lib/{math,normal}.cuh have the same functions for a device; a test compares
// the two.
#pragma once

namespace octile::elementary {

// Return values within 2 ulp of the correctly rounded one for every x, and NaN for a NaN. Subnormal
// results are kept.
float exp(float x);
float tanh(float x);

// Returns 1 / (1 + exp(-x)) within 2 ulp of the correctly rounded value for x >= -87. Below -87,
// where the result would be subnormal, it returns its value at -87 (1.6e-38).
float sigmoid(float x);

// Return the cumulative function of the standard normal distribution, within 6 ulp of the correctly
// rounded value for x >= -12.9, and its density, within 3 ulp for |x| <= 12.9. Beyond, where
// results would become subnormal, the density and a cumulative function below 1/2 keep their value
// there (2.9e-37 and 2.2e-38).
float normcdf(float x);
float normpdf(float x);

// Returns 1 / sqrt(x), correctly rounded: an infinity of the same sign for a zero, NaN for x < 0.
float rsqrt(float x);

// Return NaN if either argument is NaN. -0 < +0.
float min(float x, float y);
float max(float x, float y);

}  // namespace octile::elementary
