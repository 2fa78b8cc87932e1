// How many bits matrix units keep of a sum.
#pragma once

#include "generator/core/device_spec.h"

namespace octile {

// Returns the bits behind the binary point that a unit of the device keeps of a sum; kFewestSumBits
// without the unit. DeviceSpec::sum_bits() is that of the default unit.
int sum_bits(const DeviceSpec& device, MatrixUnit unit);
// Returns the fewest of the device's units: what a check of any GEMM here may ask for.
int fewest_sum_bits(const DeviceSpec& device);

}  // namespace octile
