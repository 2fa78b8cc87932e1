#include "runtime/tuner/device_decider.h"

#include <utility>

namespace octile::tuner {

Result<std::unique_ptr<Decider>> DeviceDecider::open(Library& library, const std::string& device,
                                                     const std::string& folder,
                                                     GpuDeciderOptions options) {
  const auto driver = Driver::open();  // never unloaded
  if (!driver) return tl::unexpected<Error>(driver.error());
  auto relaxed = std::make_unique<RelaxedCapture>(**driver);
  auto gpu = GpuSession::open(library, device);
  if (!gpu) return tl::unexpected<Error>(gpu.error());
  return std::unique_ptr<Decider>(
      new DeviceDecider(library, std::move(relaxed), std::move(*gpu), folder, std::move(options)));
}

}  // namespace octile::tuner
