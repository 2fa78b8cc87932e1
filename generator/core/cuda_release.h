// Releases of CUDA, as NVRTC names its own.
#pragma once

#include <compare>
#include <string_view>

namespace octile {

struct CudaRelease {
  int major = 0;
  int minor = 0;
  friend auto operator<=>(const CudaRelease&, const CudaRelease&) = default;
};

// Returns the first release whose NVRTC compiles for an architecture as DeviceSpec::arch() names it
// ("sm_103a"); 0.0 for any other.
CudaRelease first_nvrtc(std::string_view arch);

}  // namespace octile
