// `octile tune --explain`: what there is to search.
#pragma once

#include <vector>

#include "tools/tune/options.h"
#include "tools/tune/questions.h"

namespace octile::tools {

// Returns --device; without it a GPU if there is one, and else the device that `compile` is for.
// Errors: those of device_spec().
Result<DeviceSpec> device_to_explain(const std::string& device);

// Prints a line for each problem of a layer or for each question, or with --list all of each.
// Needs no GPU. Errors: those of check_supported().
Status explain(const TuneOptions& options, const DeviceSpec& device,
               const std::vector<Question>& questions);

}  // namespace octile::tools
