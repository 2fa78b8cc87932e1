// Reads clocks, power and throttling of a GPU from NVML, which is opened at run time. If NVML is
// missing, only these values are unknown.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/driver/driver.h"

namespace octile {

// One reading. A value that cannot be read is 0.
struct DeviceTelemetry {
  double sm_clock_mhz = 0;
  double memory_clock_mhz = 0;
  double power_watts = 0;
  bool throttled = false;  // by heat or the board's protection; not by the power cap
};

// Returns true if NVML's clock event reasons include HwSlowdown (0x8), SwThermalSlowdown (0x20),
// HwThermalSlowdown (0x40) or HwPowerBrakeSlowdown (0x80). SwPowerCap (0x4) does not count as
// throttling.
bool is_throttling(std::uint64_t clock_event_reasons);

class Telemetry {
 public:
  // Never fails; `missing` says why there are no values. Devices are matched by PCI address,
  // because NVML does not know CUDA_VISIBLE_DEVICES.
  static Telemetry open(const Driver& driver, int ordinal,
                        const std::string& path = "libnvidia-ml.so.1");
  ~Telemetry();
  Telemetry(Telemetry&&) noexcept;
  Telemetry& operator=(Telemetry&&) = delete;

  DeviceTelemetry read() const;
  const std::string& missing() const { return missing_; }  // empty if NVML is available

 private:
  struct Nvml;
  Telemetry();
  std::unique_ptr<Nvml> nvml_;
  std::string missing_;
};

}  // namespace octile
