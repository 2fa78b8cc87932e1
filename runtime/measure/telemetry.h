// Clocks, power and throttling of a GPU, from NVML: opened at run time, and where it is missing
// nothing is known and nothing else is lost.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/driver/driver.h"

namespace octile {

// 0 where it cannot be read.
struct DeviceTelemetry {
  double sm_clock_mhz = 0;
  double memory_clock_mhz = 0;
  double power_watts = 0;
  bool throttled = false;  // by heat or by the board's protection; not by the power cap
};

// What NVML calls clock event reasons: HwSlowdown (0x8), SwThermalSlowdown (0x20),
// HwThermalSlowdown (0x40) or HwPowerBrakeSlowdown (0x80) is among them. SwPowerCap (0x4) is no
// throttling.
bool is_throttling(std::uint64_t clock_event_reasons);

class Telemetry {
 public:
  // Never fails: `missing` says why there is none. Devices are matched by PCI address, because NVML
  // does not know CUDA_VISIBLE_DEVICES.
  static Telemetry open(const Driver& driver, int ordinal,
                        const std::string& path = "libnvidia-ml.so.1");
  ~Telemetry();
  Telemetry(Telemetry&&) noexcept;
  Telemetry& operator=(Telemetry&&) = delete;

  DeviceTelemetry read() const;
  const std::string& missing() const { return missing_; }  // empty: it is there

 private:
  struct Nvml;
  Telemetry();
  std::unique_ptr<Nvml> nvml_;
  std::string missing_;
};

}  // namespace octile
