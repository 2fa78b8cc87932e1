#include "runtime/driver/device.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>

namespace octile {
namespace {

struct Attribute {
  CUdevice_attribute which;
  int* value;
};

// Returns true if the known device's name is a word of the driver's name.
bool is_named(const DeviceSpec& known, const DeviceSpec& device) {
  return ("-" + device.name + "-").find("-" + known.name + "-") != std::string::npos;
}

// Returns the known device of the driver's name, else the one with the nearest SM count. A part of
// an H100 has as many SMs as an H20, whose tensor cores have a quarter of the speed.
const DeviceSpec* nearest_known(const DeviceSpec& device) {
  const DeviceSpec* nearest = nullptr;
  for (const DeviceSpec& known : known_devices()) {
    if (is_named(known, device)) return &known;
    if (nearest == nullptr ||
        std::abs(known.sm_count - device.sm_count) < std::abs(nearest->sm_count - device.sm_count))
      nearest = &known;
  }
  return nearest;
}

// Returns the known device with the same SM count whose name is a word of the driver's name, or
// null. "NVIDIA H100 80GB HBM3" with 132 SMs is h100; the PCIe card with 114 SMs is not.
const DeviceSpec* match_known(const DeviceSpec& device) {
  for (const DeviceSpec& known : known_devices()) {
    if (is_named(known, device) && known.sm_count == device.sm_count &&
        known.sm_major == device.sm_major && known.sm_minor == device.sm_minor)
      return &known;
  }
  return nullptr;
}

void copy_speeds(const DeviceSpec& from, DeviceSpec* to) {
  to->clock_ghz = from.clock_ghz;
  to->fp8_tflops = from.fp8_tflops;
  to->dram_tbps = from.dram_tbps;
  to->l2_tbps = from.l2_tbps;
  to->launch_us = from.launch_us;
  to->cluster_factor = from.cluster_factor;
}

// Scales the speeds of `from` to this device. Tensor and L2 speeds are proportional to SM count
// times clock. DRAM speed is proportional to bus width times memory clock, which the driver reports
// for both edges of the clock.
void scale_speeds(const DeviceSpec& from, double boost_ghz, double bus_tbps, DeviceSpec* to) {
  copy_speeds(from, to);
  if (boost_ghz > 0) to->clock_ghz = std::min(boost_ghz, from.clock_ghz);
  const double cores = from.sm_count * from.clock_ghz;
  const double ratio = cores > 0 ? to->sm_count * to->clock_ghz / cores : 1;
  to->fp8_tflops *= ratio;
  to->l2_tbps *= ratio;
  if (bus_tbps > 0) to->dram_tbps = bus_tbps;
}

}  // namespace

std::string normalize_device_name(std::string_view full_name) {
  constexpr std::string_view kMaker = "NVIDIA ";
  if (full_name.starts_with(kMaker)) full_name.remove_prefix(kMaker.size());
  std::string name;
  for (const char c : full_name) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) != 0)
      name += static_cast<char>(std::tolower(u));
    else if (!name.empty() && name.back() != '-')
      name += '-';
  }
  if (name.ends_with('-')) name.pop_back();
  return name;
}

Result<DeviceSpec> query_device(const Driver& driver, int ordinal) {
  if (ordinal < 0 || ordinal >= driver.device_count())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("device {} does not exist: the driver has {}, numbered from 0", ordinal,
                            driver.device_count()));
  CUdevice device = 0;
  if (Status got = driver.check(driver->cuDeviceGet(&device, ordinal), "cuDeviceGet"); !got)
    return tl::unexpected(got.error());
  std::array<char, 256> full_name{};
  if (Status got = driver.check(
          driver->cuDeviceGetName(full_name.data(), static_cast<int>(full_name.size()), device),
          "cuDeviceGetName");
      !got)
    return tl::unexpected(got.error());

  DeviceSpec spec;
  int l2_bytes = 0;
  int clock_khz = 0;
  int memory_clock_khz = 0;
  int bus_bits = 0;
  for (const Attribute& a : {
           Attribute{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &spec.sm_major},
           Attribute{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &spec.sm_minor},
           Attribute{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &spec.sm_count},
           Attribute{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                     &spec.max_smem_per_block_bytes},
           Attribute{CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, &spec.registers_per_sm},
           Attribute{CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &l2_bytes},
           Attribute{CU_DEVICE_ATTRIBUTE_CLOCK_RATE, &clock_khz},
           Attribute{CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, &memory_clock_khz},
           Attribute{CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, &bus_bits},
       }) {
    if (Status got = driver.check(driver->cuDeviceGetAttribute(a.value, a.which, device),
                                  "cuDeviceGetAttribute");
        !got)
      return tl::unexpected(got.error());
  }
  spec.l2_bytes = l2_bytes;
  spec.full_name = full_name.data();
  spec.name = normalize_device_name(spec.full_name);

  if (const DeviceSpec* known = match_known(spec)) {
    spec.name = known->name;
    copy_speeds(*known, &spec);
    spec.is_measured = known->is_measured;
  } else if (const DeviceSpec* near = nearest_known(spec)) {
    const double bus_tbps = 2.0 * memory_clock_khz * 1e3 * bus_bits / 8 * 1e-12;
    scale_speeds(*near, clock_khz * 1e-6, bus_tbps, &spec);
  }
  return spec;
}

}  // namespace octile
