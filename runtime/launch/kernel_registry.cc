#include "runtime/launch/kernel_registry.h"

#include "runtime/launch/device_scope.h"

namespace octile {

KernelRegistry::~KernelRegistry() {
  // A driver that is shutting down refuses, but then nothing is left to unload.
  for (auto& [key, library] : libraries_) {
    const RelaxedCapture relaxed(*library.driver);
    (*library.driver)->cuLibraryUnload(library.library);
  }
}

Result<LoadedKernel> KernelRegistry::load(const std::shared_ptr<const Driver>& driver, int ordinal,
                                          const std::shared_ptr<const KernelBuild>& build) {
  const RelaxedCapture relaxed(*driver);
  const std::scoped_lock lock(mutex_);
  auto context = context_of(driver, ordinal);
  if (!context) return tl::unexpected<Error>(context.error());
  auto library = library_of(driver, build);
  if (!library) return tl::unexpected<Error>(library.error());
  auto& ready_on = (*library)->ready_on;
  if (const auto found = ready_on.find(ordinal); found != ready_on.end()) return found->second;
  auto ready = make_ready(**library, ordinal, *context);
  if (ready) ready_on.emplace(ordinal, *ready);
  return ready;
}

Result<KernelRegistry::Library*> KernelRegistry::library_of(
    const std::shared_ptr<const Driver>& driver, const std::shared_ptr<const KernelBuild>& build) {
  const auto key = std::pair(driver.get(), build.get());
  if (const auto found = libraries_.find(key); found != libraries_.end()) return &found->second;
  Library fresh{driver, build, nullptr, nullptr, {}, {}};
  const Driver& d = *driver;
  if (Status loaded = d.check(d->cuLibraryLoadData(&fresh.library, build->cubin.data(), nullptr,
                                                   nullptr, 0, nullptr, nullptr, 0),
                              "cuLibraryLoadData");
      !loaded)
    return tl::unexpected<Error>(loaded.error());
  const auto find = [&](CUkernel& kernel, const std::string& name) {
    return d.check(d->cuLibraryGetKernel(&kernel, fresh.library, name.c_str()),
                   "cuLibraryGetKernel");
  };
  Status found = find(fresh.kernel, build->emitted.name);
  for (const EntryPoint& companion : build->emitted.companions) {
    if (found) found = find(fresh.companions.emplace_back(), companion.name);
  }
  if (!found) {
    d->cuLibraryUnload(fresh.library);
    return tl::unexpected<Error>(found.error());
  }
  return &libraries_.emplace(key, std::move(fresh)).first->second;
}

Result<CUcontext> KernelRegistry::context_of(const std::shared_ptr<const Driver>& driver,
                                             int ordinal) {
  const auto key = std::pair(driver.get(), ordinal);
  if (const auto found = contexts_.find(key); found != contexts_.end()) return found->second.get();
  auto retained = PrimaryContext::retain(driver, ordinal);
  if (!retained) return tl::unexpected<Error>(retained.error());
  return contexts_.emplace(key, std::move(*retained)).first->second.get();
}

Result<LoadedKernel> KernelRegistry::make_ready(const Library& library, int ordinal,
                                                CUcontext primary) {
  const Driver& d = *library.driver;
  if (Status set = d.check(
          d->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                  library.build->emitted.smem_bytes, library.kernel, ordinal),
          "cuKernelSetAttribute");
      !set)
    return tl::unexpected<Error>(set.error());
  auto scope = ContextGuard::enter(d, primary);
  if (!scope) return tl::unexpected<Error>(scope.error());
  // This call loads the kernel into the context.
  const auto put = [&](CUkernel kernel, KernelHandle& handle) {
    handle.anywhere = kernel;
    return d.check(d->cuKernelGetFunction(&handle.in_primary, kernel), "cuKernelGetFunction");
  };
  LoadedKernel ready;
  ready.primary = primary;
  Status got = put(library.kernel, ready.kernel);
  for (CUkernel kernel : library.companions) {
    if (got) got = put(kernel, ready.companions.emplace_back());
  }
  if (!got) return tl::unexpected<Error>(got.error());
  return ready;
}

}  // namespace octile
