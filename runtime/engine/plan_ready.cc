// What callers that run several plans ask of each before they enqueue anything, and memory of a
// plan's device.
#include <algorithm>
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

Status Plan::clear(const Bytes& bytes, std::int64_t tokens, CUstream stream) const {
  const std::size_t pitch = bytes.rows == 1 ? bytes.width : bytes.pitch;
  if (target_.kind == TargetKind::kHost) {
    for (std::size_t row = 0; row < bytes.rows; ++row)
      std::memset(static_cast<char*>(bytes.first) + row * pitch, 0, bytes.width);
    return {};
  }
  if (Status ok = check_ready(tokens, stream); !ok) return ok;
  return on_device(*kernel_for(tokens), stream, [&](const LaunchSite& site) {
    const CUresult cleared = site.driver->cuMemsetD2D8Async(
        reinterpret_cast<CUdeviceptr>(bytes.first), pitch, 0, bytes.width, bytes.rows, site.stream);
    return site.driver.check(cleared, "cuMemsetD2D8Async");
  });
}

Status Plan::set_words(std::uint32_t* words, std::size_t count, std::int64_t tokens,
                       CUstream stream) const {
  if (target_.kind == TargetKind::kHost) {
    std::fill_n(words, count, 1U);
    return {};
  }
  if (Status ok = check_ready(tokens, stream); !ok) return ok;
  return on_device(*kernel_for(tokens), stream, [&](const LaunchSite& site) {
    const CUresult set =
        site.driver->cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(words), 1, count, site.stream);
    return site.driver.check(set, "cuMemsetD32Async");
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
