// Writes all that is known of one kernel into a folder.
#pragma once

#include <string>

#include "generator/core/device_spec.h"
#include "generator/families.h"

namespace octile::tools {

// Compiles the kernel, or takes it from the cache, and writes <name>.cu, .cubin, .json (what it
// needs of the device) and .sass (where a disassembler is found) into `folder`, which is created.
// Prints the paths. Errors: those of the engine; kInternal for a file that cannot be written.
Status dump_kernel(const Problem& problem, const KernelConfig& config, const DeviceSpec& device,
                   const std::string& folder, bool json);

}  // namespace octile::tools
