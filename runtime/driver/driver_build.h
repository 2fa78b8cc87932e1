// Tells builds of the driver apart.
#pragma once

#include <string>
#include <string_view>

namespace octile {

// Where the driver's module says which one it is. A machine without the module, as under WSL, has
// no such file.
constexpr const char* kModuleVersion = "/proc/driver/nvidia/version";

// Returns the version of CUDA, the file's name and a digest: "13.0 libcuda.so.580.95.05 0f1e...".
// An update may leave the name as it is. So the digest is that of the file's size, modification
// time and inode, and of the text of the module's version, as far as they can be read.
std::string driver_build(std::string_view cuda, const std::string& file,
                         const std::string& module_version = kModuleVersion);

}  // namespace octile
