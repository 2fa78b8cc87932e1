// Describes a live GPU as the plain data that planning uses.
#pragma once

#include <string>
#include <string_view>

#include "generator/core/device_spec.h"
#include "generator/core/error.h"
#include "runtime/driver/driver.h"

namespace octile {

// Returns the device of that ordinal: what its compute capability decides, with the limits that the
// driver reports. Speeds come from the known device of the same name and SM count. If there is
// none, they are scaled from the nearest known device of the same compute capability by SM count
// and clock, so that the cost model can rank candidates. Errors: kInvalidArgument (ordinal outside
// [0, device_count)), kDeviceError.
Result<DeviceSpec> query_device(const Driver& driver, int ordinal);

// Returns the UUID of the device, or of the part of it that MIG gives, as 32 hex digits. Errors:
// kDeviceError.
Result<std::string> device_uuid(const Driver& driver, int ordinal);

// Returns the short name: "NVIDIA H100 80GB HBM3" -> "h100-80gb-hbm3". Letters become lower case,
// the maker's name is dropped and words are joined by '-'.
std::string normalize_device_name(std::string_view full_name);

}  // namespace octile
