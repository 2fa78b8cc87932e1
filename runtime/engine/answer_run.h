// One call of a known-answer test on a device: its operands and results are one piece of memory,
// with the same offsets on the host and on the device.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/driver/buffer.h"
#include "runtime/driver/stream.h"
#include "runtime/engine/target.h"
#include "runtime/families/families.h"
#include "runtime/launch/device_scope.h"

namespace octile {

// Hands out offsets of one piece of memory.
class Places {
 public:
  std::size_t take(std::size_t bytes) {
    constexpr std::size_t kAlign = 256;
    const std::size_t at = (bytes_ + kAlign - 1) / kAlign * kAlign;
    bytes_ = at + bytes;
    return at;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

// Returns the address at an offset of `base`.
template <typename T = void>
T* placed(void* base, std::size_t offset) {
  return reinterpret_cast<T*>(static_cast<std::uint8_t*>(base) + offset);
}

// Runs the kernel on a copy of `memory` in a stream of its own, and copies the result back.
// args_at(base) returns the call's arguments.
template <typename Resolved, typename ArgumentsAt>
Status run_on_device(const Target& target, const LoadedKernel& loaded, const Resolved& kernel,
                     const ArgumentsAt& args_at, std::vector<std::uint8_t>& memory) {
  const Driver& driver = *target.driver;
  const DeviceScope scope(driver, target.ordinal, loaded.primary);
  if (scope.result() != CUDA_SUCCESS) return driver.check(scope.result(), "cuCtxPushCurrent");
  const RelaxedCapture relaxed(driver);
  auto on_device = DeviceBuffer::allocate(target.driver, memory.size());
  if (!on_device) return tl::unexpected<Error>(on_device.error());
  const auto stream = Stream::create(target.driver);
  if (!stream) return tl::unexpected<Error>(stream.error());
  const auto call = complete(kernel.problem, args_at(on_device->pointer()));
  if (!call) return tl::unexpected<Error>(call.error());
  Status ok = on_device->upload(memory.data(), memory.size(), stream->get());
  if (ok) ok = enqueue({driver, stream->get(), scope.in_primary()}, kernel, *call);
  if (ok) ok = on_device->download(memory.data(), memory.size(), stream->get());
  if (ok) ok = stream->synchronize();
  return ok;
}

}  // namespace octile
