// Resources of the device that a kernel's ELF image needs.
#pragma once

#include "runtime/compiler/cubin.h"
#include "tools/common/handles.h"

namespace octile::tools {

// Returns the image's figures, which the driver uses.
Json resources(const CubinInfo& cubin);

}  // namespace octile::tools
