// What a live GPU is, as the plain data planning works on.
#pragma once

#include "generator/core/device_spec.h"
#include "generator/core/error.h"
#include "runtime/driver/driver.h"

namespace octile {

// The device of that ordinal: limits as the driver reports them; speeds from the known device of
// the same name and SM count, else scaled from the nearest known one by SM count and clock, so that
// a cost model has something to rank by. Errors: kInvalidArgument (ordinal outside [0,
// device_count)), kDeviceError.
Result<DeviceSpec> query_device(const Driver& driver, int ordinal);

// "NVIDIA H100 80GB HBM3" -> "h100-80gb-hbm3": lower case, maker's name dropped, words joined by
// '-'.
std::string normalize_device_name(std::string_view full_name);

}  // namespace octile
