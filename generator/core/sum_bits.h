// How precisely matrix units keep a sum.
#pragma once

#include <compare>

#include "generator/core/device_spec.h"

namespace octile {

// A step of a unit adds this number of products to a sum. It cuts all of them at this number of
// bits behind the point of the largest, and then the sum at as many, or at fp32's 23 if these are
// fewer.
struct SumPrecision {
  int bits = kFewestSumBits;
  int step = 32;  // elements of K
  friend auto operator<=>(const SumPrecision&, const SumPrecision&) = default;
};

// Returns that of a unit of the device; the default without the unit.
SumPrecision sum_precision(const DeviceSpec& device, MatrixUnit unit);
// Returns its bits. DeviceSpec::sum_bits() is that of the default unit.
int sum_bits(const DeviceSpec& device, MatrixUnit unit);
// Returns that of the device's unit with the fewest bits, and of these with the shortest step: what
// a check of any GEMM here may ask for.
SumPrecision coarsest_sums(const DeviceSpec& device);

}  // namespace octile
