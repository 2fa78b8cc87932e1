#include "runtime/measure/gpu_session.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/driver/device.h"
#include "runtime/engine/library.h"
#include "runtime/engine/target.h"

namespace octile {

Result<std::unique_ptr<GpuSession>> GpuSession::open(Library& library, const std::string& device) {
  auto target = resolve_target(device);
  if (!target) return tl::unexpected<Error>(target.error());
  if (target->kind != TargetKind::kLive) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--device is {}; allowed: a live GPU, cuda or cuda:N", device));
  }
  const auto trusted = library.trusted_devices.of(library, *target);
  if (!trusted->any) return tl::unexpected<Error>(trusted->any.error());
  auto context = PrimaryContext::retain(target->driver, target->ordinal);
  if (!context) return tl::unexpected<Error>(context.error());
  auto guard = ContextGuard::enter(*target->driver, context->get());
  if (!guard) return tl::unexpected<Error>(guard.error());
  auto stream = Stream::create(target->driver);
  if (!stream) return tl::unexpected<Error>(stream.error());
  return std::unique_ptr<GpuSession>(new GpuSession(
      target->text, trusted->device, std::move(*context), std::move(*guard), std::move(*stream)));
}

std::string GpuSession::uuid() const { return device_uuid(*driver(), ordinal()).value_or(""); }

Result<DeviceBuffer> GpuSession::allocate(std::size_t bytes) const {
  return DeviceBuffer::allocate(driver(), bytes);
}

Result<DeviceBuffer> GpuSession::upload(const void* source, std::size_t bytes) const {
  auto buffer = allocate(bytes);
  if (!buffer) return buffer;
  if (Status ok = buffer->upload(source, bytes, stream()); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  if (Status ok = synchronize(); !ok) return tl::unexpected<Error>(ok.error());
  return buffer;
}

Result<std::size_t> GpuSession::free_bytes() const {
  std::size_t free = 0;
  std::size_t total = 0;
  if (Status ok = driver()->check((*driver())->cuMemGetInfo(&free, &total), "cuMemGetInfo"); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  return free;
}

}  // namespace octile
