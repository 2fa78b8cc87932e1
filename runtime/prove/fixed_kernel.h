// A kernel of a stated configuration, ready on one device. Searches time such kernels, and
// benchmarks run a search's winner with one. Plans choose their kernels themselves.
#pragma once

#include <cuda.h>

#include <memory>
#include <utility>

#include "runtime/engine/library.h"
#include "runtime/families/families.h"

namespace octile {

template <typename P>
class FixedKernel {
 public:
  // Loads what was built. The device's primary context must be current in this thread, here and in
  // run(). The library outlives this object. Errors: kDeviceError, kOutOfMemory.
  static Result<FixedKernel> load(Library& library, const std::shared_ptr<const Driver>& driver,
                                  int ordinal, const DeviceSpec& device, const P& problem,
                                  const ConfigOf<P>& config, Built built) {
    auto ready = load_built(library, driver, ordinal, problem, config, device, std::move(built));
    if (!ready) return tl::unexpected<Error>(ready.error());
    return FixedKernel(driver, resolve(problem, config, device, ready->loaded),
                       std::move(ready->built));
  }

  // Runs as the family's call of the C API, for a call that has something to do. Legal in a
  // capture.
  Status run(const ArgumentsOf<P>& args, CUstream stream) const {
    const auto call = complete(resolved_.problem, args);
    if (!call) return tl::unexpected<Error>(call.error());
    return enqueue({.driver = *driver_, .stream = stream, .in_primary = true}, resolved_, *call);
  }

  const KernelBuild& build() const { return *built_.kernel; }

 private:
  FixedKernel(std::shared_ptr<const Driver> driver, ResolvedOf<P> resolved, Built built)
      : driver_(std::move(driver)), resolved_(std::move(resolved)), built_(std::move(built)) {}

  std::shared_ptr<const Driver> driver_;
  ResolvedOf<P> resolved_;
  Built built_;
};

}  // namespace octile
