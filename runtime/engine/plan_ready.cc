// Questions that callers of several plans ask of each before they enqueue anything, and memory of
// a plan's device.
#include <cstring>
#include <utility>

#include "runtime/driver/stream.h"
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

Result<DeviceBuffer> Plan::to_device(const void* bytes, std::size_t count) const {
  if (!is_loaded(any_kernel())) return tl::unexpected<Error>(cannot_run(1, nullptr));
  DeviceBuffer buffer;
  const Status ok = on_device(*any_kernel(), nullptr, [&](const LaunchSite& site) -> Status {
    const RelaxedCapture relaxed(site.driver);
    auto made = DeviceBuffer::allocate(target_.driver, count);
    if (!made) return tl::unexpected<Error>(made.error());
    const auto stream = Stream::create(target_.driver);
    if (!stream) return tl::unexpected<Error>(stream.error());
    if (Status copied = made->upload(bytes, count, stream->get()); !copied) return copied;
    if (Status there = stream->synchronize(); !there) return there;
    buffer = std::move(*made);
    return {};
  });
  if (!ok) return tl::unexpected<Error>(ok.error());
  return buffer;
}

void Plan::release(DeviceBuffer buffer) const {
  const PreparedKernel* kernel = any_kernel();
  if (!is_loaded(kernel)) return;
  (void)on_device(*kernel, nullptr, [&](const LaunchSite& site) -> Status {
    const RelaxedCapture relaxed(site.driver);
    const DeviceBuffer freed = std::move(buffer);
    return {};
  });
}

}  // namespace octile
