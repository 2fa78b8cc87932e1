// What a kernel's ELF image needs of the device.
#pragma once

#include "runtime/compiler/cubin.h"
#include "tools/common/handles.h"

namespace octile::tools {

// Returns what the image says, which is what the driver uses.
Json resources(const CubinInfo& cubin);

}  // namespace octile::tools
