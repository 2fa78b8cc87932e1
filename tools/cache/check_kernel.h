// Compares what an entry says about its kernel with the kernel.
#pragma once

#include "cache/entry.h"
#include "generator/core/error.h"

namespace octile::tools {

// Checks that the ELF image is for the architecture and has the kernel with its parameters, that
// the metadata agrees with the image, and that it describes a launch that a device can do. Errors:
// kInternal, with one sentence.
Status check_kernel(const cache::Entry& entry);

}  // namespace octile::tools
