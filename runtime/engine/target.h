// The device of a plan: a live GPU, a GPU known by name only, or the host's reference executor.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "generator/core/device_spec.h"
#include "generator/core/error.h"
#include "runtime/driver/driver.h"

namespace octile {

enum class TargetKind { kLive, kNamed, kHost };

struct Target {
  TargetKind kind = TargetKind::kHost;
  std::string text;                      // "cuda:0", "h200", "host"
  DeviceSpec spec;                       // live and named
  std::shared_ptr<const Driver> driver;  // live
  int ordinal = 0;                       // live
};

// Returns the target for a text. This is "cuda" (the device of the calling thread's current
// context, else the first), "cuda:N", the name of a known device, or "host". Opens the driver for
// the first two only. Errors: kInvalidArgument (listing what is allowed), kUnsupported (a live
// device that no kernel here runs on), kNoDriver, kDeviceError.
Result<Target> resolve_target(std::string_view text);

}  // namespace octile
