#include "runtime/measure/telemetry.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <utility>

#include "cache/shared_library.h"

namespace octile {
namespace {

// From <nvml.h>; equal in NVML API 11 to 13.
constexpr int kSuccess = 0;
constexpr int kSmClock = 1;
constexpr int kMemoryClock = 2;

Result<std::string> pci_address(const Driver& driver, int ordinal) {
  int domain = 0;
  int bus = 0;
  int device = 0;
  CUresult result =
      driver->cuDeviceGetAttribute(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, ordinal);
  if (result == CUDA_SUCCESS)
    result = driver->cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, ordinal);
  if (result == CUDA_SUCCESS)
    result = driver->cuDeviceGetAttribute(&device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, ordinal);
  if (Status ok = driver.check(result, "cuDeviceGetAttribute"); !ok)
    return tl::unexpected<Error>(ok.error());
  return fmt::format("{:08x}:{:02x}:{:02x}.0", domain, bus, device);
}

}  // namespace

bool is_throttling(std::uint64_t clock_event_reasons) {
  constexpr std::uint64_t kThrottling = 0x8 | 0x20 | 0x40 | 0x80;
  return (clock_event_reasons & kThrottling) != 0;
}

struct Telemetry::Nvml {
  void* library = nullptr;
  void* device = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_pci)(const char*, void**) = nullptr;
  int (*clock)(void*, int, unsigned*) = nullptr;
  int (*power_milliwatts)(void*, unsigned*) = nullptr;
  int (*reasons)(void*, unsigned long long*) = nullptr;

  template <typename Function>
  bool resolve(const char* name, Function*& slot) {
    slot = reinterpret_cast<Function*>(::dlsym(library, name));
    return slot != nullptr;
  }

  // Returns the first function that is missing, or null if there is none.
  const char* resolve_all() {
    if (!resolve("nvmlInit_v2", init)) return "nvmlInit_v2";
    if (!resolve("nvmlShutdown", shutdown)) return "nvmlShutdown";
    if (!resolve("nvmlDeviceGetHandleByPciBusId_v2", by_pci))
      return "nvmlDeviceGetHandleByPciBusId_v2";
    if (!resolve("nvmlDeviceGetClockInfo", clock)) return "nvmlDeviceGetClockInfo";
    if (!resolve("nvmlDeviceGetPowerUsage", power_milliwatts)) return "nvmlDeviceGetPowerUsage";
    // Renamed in 12.2; drivers keep the old name too.
    if (!resolve("nvmlDeviceGetCurrentClocksEventReasons", reasons) &&
        !resolve("nvmlDeviceGetCurrentClocksThrottleReasons", reasons))
      return "nvmlDeviceGetCurrentClocksEventReasons";
    return nullptr;
  }

  double clock_mhz(int which) const {
    unsigned mhz = 0;
    return clock(device, which, &mhz) == kSuccess ? mhz : 0;
  }
};

Telemetry::Telemetry() = default;
Telemetry::Telemetry(Telemetry&&) noexcept = default;

Telemetry::~Telemetry() {
  if (nvml_ != nullptr) nvml_->shutdown();
}

Telemetry Telemetry::open(const Driver& driver, int ordinal, const std::string& path) {
  Telemetry telemetry;
  const auto address = pci_address(driver, ordinal);
  if (!address) {
    telemetry.missing_ = address.error().message;
    return telemetry;
  }
  auto nvml = std::make_unique<Nvml>();
  const auto library = cache::open_library(path);  // never unloaded
  if (!library) {
    telemetry.missing_ = fmt::format("NVML \"{}\" cannot be opened: {}", path, library.error());
    return telemetry;
  }
  nvml->library = *library;
  if (const char* missing = nvml->resolve_all(); missing != nullptr) {
    telemetry.missing_ = fmt::format("NVML \"{}\" has no {}", path, missing);
    return telemetry;
  }
  if (const int code = nvml->init(); code != kSuccess) {
    telemetry.missing_ = fmt::format("nvmlInit_v2 answers {}", code);
    return telemetry;
  }
  if (const int code = nvml->by_pci(address->c_str(), &nvml->device); code != kSuccess) {
    nvml->shutdown();
    telemetry.missing_ =
        fmt::format("nvmlDeviceGetHandleByPciBusId_v2({}) answers {}", *address, code);
    return telemetry;
  }
  telemetry.nvml_ = std::move(nvml);
  return telemetry;
}

DeviceTelemetry Telemetry::read() const {
  DeviceTelemetry state;
  if (nvml_ == nullptr) return state;
  state.sm_clock_mhz = nvml_->clock_mhz(kSmClock);
  state.memory_clock_mhz = nvml_->clock_mhz(kMemoryClock);
  unsigned milliwatts = 0;
  if (nvml_->power_milliwatts(nvml_->device, &milliwatts) == kSuccess)
    state.power_watts = milliwatts * 1e-3;
  unsigned long long reasons = 0;
  if (nvml_->reasons(nvml_->device, &reasons) == kSuccess) state.throttled = is_throttling(reasons);
  return state;
}

}  // namespace octile
