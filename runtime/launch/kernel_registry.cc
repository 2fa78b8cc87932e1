#include "runtime/launch/kernel_registry.h"

#include "runtime/launch/device_scope.h"

namespace octile {
namespace {

// Returns true for a driver's refusals of a cubin: damaged, of another architecture, of a newer
// toolchain, without the kernel, or with other limits. Anything else is said of the device, its
// memory or an earlier launch.
bool is_of_kernel(CUresult result) {
  switch (result) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_INVALID_SOURCE:
    case CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND:
    case CUDA_ERROR_SHARED_OBJECT_INIT_FAILED:
    case CUDA_ERROR_NOT_FOUND:
    case CUDA_ERROR_NOT_SUPPORTED:
      return true;
    default:
      return false;
  }
}

using Loading = tl::expected<void, LoadError>;

Loading check(const Driver& driver, CUresult result, const char* call) {
  const Status status = driver.check(result, call);
  if (status) return {};
  return tl::unexpected(LoadError{status.error(), is_of_kernel(result), result});
}

}  // namespace

KernelRegistry::~KernelRegistry() {
  // A driver that is shutting down refuses, but then nothing is left to unload.
  for (auto& [key, library] : libraries_) {
    const RelaxedCapture relaxed(*library.driver);
    (*library.driver)->cuLibraryUnload(library.library);
  }
}

tl::expected<LoadedKernel, LoadError> KernelRegistry::load(
    const std::shared_ptr<const Driver>& driver, int ordinal,
    const std::shared_ptr<const KernelBuild>& build) {
  const RelaxedCapture relaxed(*driver);
  const std::scoped_lock lock(mutex_);
  auto context = context_of(driver, ordinal);
  if (!context) return tl::unexpected(LoadError{context.error()});
  auto library = library_of(driver, build);
  if (!library) return tl::unexpected(library.error());
  auto& ready_on = (*library)->ready_on;
  if (const auto found = ready_on.find(ordinal); found != ready_on.end()) return found->second;
  auto ready = make_ready(**library, ordinal, *context);
  if (ready) {
    ready_on.emplace(ordinal, *ready);
  } else if (ready.error().of_kernel && ready_on.empty()) {
    (*driver)->cuLibraryUnload((*library)->library);
    libraries_.erase({driver.get(), build.get()});
  }
  return ready;
}

tl::expected<KernelRegistry::Library*, LoadError> KernelRegistry::library_of(
    const std::shared_ptr<const Driver>& driver, const std::shared_ptr<const KernelBuild>& build) {
  const auto key = std::pair(driver.get(), build.get());
  if (const auto found = libraries_.find(key); found != libraries_.end()) return &found->second;
  Library fresh{driver, build, nullptr, nullptr, {}, {}};
  const Driver& d = *driver;
  if (const Loading loaded = check(d,
                                   d->cuLibraryLoadData(&fresh.library, build->cubin.data(),
                                                        nullptr, nullptr, 0, nullptr, nullptr, 0),
                                   "cuLibraryLoadData");
      !loaded)
    return tl::unexpected(loaded.error());
  const auto find = [&](CUkernel& kernel, const std::string& name) {
    return check(d, d->cuLibraryGetKernel(&kernel, fresh.library, name.c_str()),
                 "cuLibraryGetKernel");
  };
  Loading found = find(fresh.kernel, build->emitted.name);
  for (const EntryPoint& companion : build->emitted.companions) {
    if (found) found = find(fresh.companions.emplace_back(), companion.name);
  }
  if (!found) {
    d->cuLibraryUnload(fresh.library);
    return tl::unexpected(found.error());
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

tl::expected<LoadedKernel, LoadError> KernelRegistry::make_ready(const Library& library,
                                                                 int ordinal, CUcontext primary) {
  const Driver& d = *library.driver;
  if (const Loading set =
          check(d,
                d->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                        library.build->emitted.smem_bytes, library.kernel, ordinal),
                "cuKernelSetAttribute");
      !set)
    return tl::unexpected(set.error());
  auto scope = ContextGuard::enter(d, primary);
  if (!scope) return tl::unexpected(LoadError{scope.error()});
  // This call loads the kernel into the context.
  const auto put = [&](CUkernel kernel, KernelHandle& handle) {
    handle.anywhere = kernel;
    return check(d, d->cuKernelGetFunction(&handle.in_primary, kernel), "cuKernelGetFunction");
  };
  LoadedKernel ready;
  ready.primary = primary;
  Loading got = put(library.kernel, ready.kernel);
  for (CUkernel kernel : library.companions) {
    if (got) got = put(kernel, ready.companions.emplace_back());
  }
  if (!got) return tl::unexpected(got.error());
  return ready;
}

}  // namespace octile
