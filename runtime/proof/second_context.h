// Whether a second process may have a context on a device.
#pragma once

#include <string>

#include "runtime/driver/driver.h"

namespace octile {

// Returns why no second process may, and the remedy: the device's compute mode, or a multi-process
// service (MPS), whose clients a fault would reach. Empty: one may.
std::string why_no_second_context(const Driver& driver, int ordinal);

}  // namespace octile
