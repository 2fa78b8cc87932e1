// The greatest memory use of this process.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace octile::test {

// Returns its bytes, or 0 if /proc does not tell.
inline std::int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

}  // namespace octile::test
