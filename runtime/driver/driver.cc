#include "runtime/driver/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <map>
#include <mutex>

#include "cache/file_ops.h"
#include "cache/shared_library.h"
#include "runtime/base/environment.h"
#include "runtime/base/fork.h"
#include "runtime/driver/driver_build.h"

namespace octile {
namespace {

constexpr const char* kDefaultPath = "libcuda.so.1";
constexpr int kMinimumVersion = 12000;  // the first with cuLibrary* and cuTensorMapEncodeTiled
constexpr const char* kCost =
    "nothing can run on a GPU; planning, emitting, compiling and the host executor still work";

std::string version_string(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Stores the address of `name` in *slot. Returns false if the library does not have it. dlsym gives
// an object pointer, which is converted to a function pointer; POSIX guarantees one representation
// for both.
template <typename Function>
bool resolve(void* library, const char* name, Function* slot) {
  void* address = dlsym(library, name);
  if (address == nullptr) return false;
  static_assert(sizeof(address) == sizeof(*slot));
  *slot = reinterpret_cast<Function>(address);
  return true;
}

std::string result_text(const DriverApi& api, CUresult result) {
  const char* name = nullptr;
  const char* description = nullptr;
  if (api.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr)
    return fmt::format("CUresult {} (unknown to this driver)", static_cast<int>(result));
  if (api.cuGetErrorString(result, &description) != CUDA_SUCCESS || description == nullptr)
    return name;
  return fmt::format("{} ({})", name, description);
}

}  // namespace

Result<std::shared_ptr<const Driver>> Driver::open() {
  return open(environment_path("OCTILE_LIBCUDA").value_or(kDefaultPath));
}

Result<std::shared_ptr<const Driver>> Driver::open(const std::string& path) {
  // Never destroyed: threads may still run when the process exits.
  static auto& opened = *new std::map<std::string, std::shared_ptr<const Driver>>;
  {
    const std::scoped_lock lock(process_mutex(ProcessWide::kDrivers));
    if (const auto found = opened.find(path); found != opened.end()) return found->second;
  }
  // Without the mutex, because starting a driver may take seconds. Threads that do it at once all
  // get the first one's.
  auto driver = load(path);
  if (!driver) return driver;
  const std::scoped_lock lock(process_mutex(ProcessWide::kDrivers));
  return opened.emplace(path, std::move(*driver)).first->second;
}

Result<std::shared_ptr<const Driver>> Driver::load(const std::string& path) {
  const auto opened = cache::open_library(path);
  if (!opened)
    return fail(ErrorCode::kNoDriver, fmt::format("the CUDA driver \"{}\" cannot be opened: {}; {}",
                                                  path, opened.error(), kCost));
  void* const library = *opened;
  // NOLINTNEXTLINE(misc-const-correctness): make_shared cannot reach the private constructor
  std::shared_ptr<Driver> driver(new Driver);
  driver->path_ = path;
  DriverApi& api = driver->api_;

  // The version is queried first, so that an old driver is reported as old and not as incomplete.
  if (resolve(library, "cuDriverGetVersion", &api.cuDriverGetVersion) &&
      api.cuDriverGetVersion(&driver->version_) == CUDA_SUCCESS &&
      driver->version_ < kMinimumVersion)
    return fail(
        ErrorCode::kNoDriver,
        fmt::format("the CUDA driver \"{}\" is of CUDA {}; {} or newer is needed; {}", path,
                    version_string(driver->version_), version_string(kMinimumVersion), kCost));
#define OCTILE_RESOLVE(name)               \
  if (!resolve(library, #name, &api.name)) \
    return fail(ErrorCode::kNoDriver,      \
                fmt::format("the CUDA driver \"{}\" does not export {}; {}", path, #name, kCost));
  OCTILE_DRIVER_FUNCTIONS(OCTILE_RESOLVE)
#undef OCTILE_RESOLVE

  if (const CUresult result = api.cuInit(0); result != CUDA_SUCCESS)
    return fail(ErrorCode::kNoDriver,
                fmt::format("the CUDA driver \"{}\" does not start: cuInit says {}; {}", path,
                            result_text(api, result), kCost));
  if (const CUresult result = api.cuDeviceGetCount(&driver->device_count_);
      result != CUDA_SUCCESS || driver->device_count_ < 1)
    return fail(ErrorCode::kNoDriver,
                fmt::format("the CUDA driver \"{}\" has no device: cuDeviceGetCount says {}, {} "
                            "devices; {}",
                            path, result_text(api, result), driver->device_count_, kCost));
  driver->build_ = driver_build(driver->version_text(), driver->file());
  return driver;
}

std::string Driver::version_text() const { return version_string(version_); }

std::string Driver::file() const {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(api_.cuInit), &info) == 0) return path_;
  return cache::resolve_links(info.dli_fname).value_or(path_);
}

Status Driver::failure(CUresult result, const char* call) const {
  const std::string sentence = fmt::format("{} failed: {}", call, result_text(api_, result));
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return fail(ErrorCode::kOutOfMemory, sentence);
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
      return fail(ErrorCode::kCapturing, sentence);
    default:
      return fail(ErrorCode::kDeviceError, sentence);
  }
}

}  // namespace octile
