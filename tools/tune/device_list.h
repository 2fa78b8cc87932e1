// The GPUs that --devices names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/core/error.h"

namespace octile::tools {

// Returns the numbers of the GPUs that --devices names, in its order; nothing for "all". Errors:
// kInvalidArgument for any other text, and for a GPU that is named twice.
Result<std::optional<std::vector<int>>> read_devices(const std::string& text);

std::string device_name(int number);                        // "cuda:0"
std::string device_names(const std::vector<int>& numbers);  // "cuda:0,cuda:1"

struct UsableDevices {
  std::vector<int> numbers;
  DeviceSpec spec;  // of the first; the others are of its kind
};
// Returns what read_devices() said of `text`, with the numbers of all. Opens the driver. Errors:
// kInvalidArgument if there is no GPU, not that GPU, or GPUs of different kinds.
Result<UsableDevices> usable_devices(const std::string& text,
                                     const std::optional<std::vector<int>>& numbers);

}  // namespace octile::tools
