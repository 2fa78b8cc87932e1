// What callers that run several plans ask of each before they enqueue anything.
#include <cstring>

#include "runtime/engine/plan_run.h"

namespace octile {

Status Plan::check_ready(std::int64_t tokens, CUstream stream) const {
  if (target_.kind == TargetKind::kHost || is_loaded(kernel_for(tokens))) [[likely]]
    return {};
  return tl::unexpected<Error>(cannot_run(tokens, stream));
}

Status Plan::clear(void* memory, std::size_t bytes, CUstream stream) const {
  if (target_.kind == TargetKind::kHost) {
    std::memset(memory, 0, bytes);
    return {};
  }
  if (Status ok = check_ready(0, stream); !ok) return ok;
  return on_device(*kernel_for(0), stream, [&](const LaunchSite& site) {
    const CUresult cleared = site.driver->cuMemsetD2D8Async(reinterpret_cast<CUdeviceptr>(memory),
                                                            bytes, 0, bytes, 1, site.stream);
    return site.driver.check(cleared, "cuMemsetD2D8Async");
  });
}

}  // namespace octile
