// Tells builds of the driver apart.
#pragma once

#include <string>
#include <string_view>

namespace octile {

// Where the driver's module says which one it is. A machine without the module, as under WSL, has
// no such file.
constexpr const char* kModuleVersion = "/proc/driver/nvidia/version";

// Returns the version of CUDA, the file's name, and a digest of what an update changes where the
// name stays the same: the file's size, modification time and inode, and the text of the module's
// version, as far as they can be read. "13.0 libcuda.so.580.95.05 0f1e..."
std::string driver_build(std::string_view cuda, const std::string& file,
                         const std::string& module_version = kModuleVersion);

}  // namespace octile
