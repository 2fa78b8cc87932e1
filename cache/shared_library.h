// Opens libraries of other makers: the driver, NVRTC, NVML, cuBLASLt, libarchive.
#pragma once

#include <string>
#include <tl/expected.hpp>

namespace octile::cache {

// Returns the handle of dlopen(), with symbols bound at once and kept to itself; or why there is
// none. A path with a '/' has to lead to a regular file, because the loader waits at a FIFO for
// ever. The loader searches any other name.
tl::expected<void*, std::string> open_library(const std::string& path);

}  // namespace octile::cache
