#include "runtime/driver/device.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <initializer_list>

#include "generator/core/ascii.h"

namespace octile {
namespace {

struct Attribute {
  CUdevice_attribute which;
  int* value;
};

bool has_capability_of(const DeviceSpec& known, const DeviceSpec& device) {
  return known.sm_major == device.sm_major && known.sm_minor == device.sm_minor;
}

// Returns the known device of the driver's name, else the one of the same compute capability with
// the nearest SM count, or null if there is none. A part of an H100 has as many SMs as an H20,
// whose tensor cores have a quarter of the speed.
const DeviceSpec* nearest_known(const DeviceSpec& device) {
  const DeviceSpec* const named = find_named(device.name);
  if (named != nullptr && has_capability_of(*named, device)) return named;
  const DeviceSpec* nearest = nullptr;
  for (const DeviceSpec& known : known_devices()) {
    if (!has_capability_of(known, device)) continue;
    if (nearest == nullptr ||
        std::abs(known.sm_count - device.sm_count) < std::abs(nearest->sm_count - device.sm_count))
      nearest = &known;
  }
  return nearest;
}

// Returns the known device with the same SM count whose name stands in the driver's, or null.
// "NVIDIA H100 80GB HBM3" with 132 SMs is h100; the PCIe card with 114 SMs is not.
const DeviceSpec* match_known(const DeviceSpec& device) {
  const DeviceSpec* const named = find_named(device.name);
  const bool same = named != nullptr && named->sm_count == device.sm_count;
  return same && has_capability_of(*named, device) ? named : nullptr;
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

Status query(const Driver& driver, CUdevice device, std::initializer_list<Attribute> attributes) {
  for (const Attribute& a : attributes) {
    if (Status got = driver.check(driver->cuDeviceGetAttribute(a.value, a.which, device),
                                  "cuDeviceGetAttribute");
        !got)
      return got;
  }
  return {};
}

Result<double> query_gb(const Driver& driver, CUdevice device) {
  constexpr double kGb = std::size_t{1} << 30;
  std::size_t bytes = 0;
  const Status got = driver.check(driver->cuDeviceTotalMem_v2(&bytes, device), "cuDeviceTotalMem");
  if (!got) return tl::unexpected(got.error());
  return static_cast<double>(bytes) / kGb;
}

Result<std::string> query_name(const Driver& driver, CUdevice device) {
  std::array<char, 256> name{};
  const Status got =
      driver.check(driver->cuDeviceGetName(name.data(), static_cast<int>(name.size()), device),
                   "cuDeviceGetName");
  if (!got) return tl::unexpected(got.error());
  return std::string(name.data());
}

// The driver's figures of a device's speeds.
struct Clocks {
  int core_khz = 0;
  int memory_khz = 0;
  int bus_bits = 0;
  double boost_ghz() const { return core_khz * 1e-6; }
  double bus_tbps() const { return 2.0 * memory_khz * 1e3 * bus_bits / 8 * 1e-12; }
};

// Sets the name, if the device is a known one, and its speeds.
void set_speeds(const Clocks& clocks, DeviceSpec& spec) {
  if (const DeviceSpec* known = match_known(spec)) {
    spec.name = known->name;
    copy_speeds(*known, &spec);
    spec.is_measured = known->is_measured;
  } else if (const DeviceSpec* near = nearest_known(spec)) {
    scale_speeds(*near, clocks.boost_ghz(), clocks.bus_tbps(), &spec);
  } else {
    spec.clock_ghz = clocks.boost_ghz();
    spec.dram_tbps = clocks.bus_tbps();
  }
}

}  // namespace

std::string normalize_device_name(std::string_view full_name) {
  constexpr std::string_view kMaker = "NVIDIA ";
  if (full_name.starts_with(kMaker)) full_name.remove_prefix(kMaker.size());
  std::string name;
  for (const char c : full_name) {
    if (is_letter_or_digit(c))
      name += to_lower(c);
    else if (!name.empty() && name.back() != '-')
      name += '-';
  }
  if (name.ends_with('-')) name.pop_back();
  return name;
}

Result<std::string> device_uuid(const Driver& driver, int ordinal) {
  CUuuid uuid{};
  const Status ok = driver.check(driver->cuDeviceGetUuid_v2(&uuid, ordinal), "cuDeviceGetUuid");
  if (!ok) return tl::unexpected<Error>(ok.error());
  std::string text;
  for (const char byte : uuid.bytes) text += fmt::format("{:02x}", static_cast<std::uint8_t>(byte));
  return text;
}

Result<DeviceSpec> query_device(const Driver& driver, int ordinal) {
  if (ordinal < 0 || ordinal >= driver.device_count())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("device {} does not exist: the driver has {}, numbered from 0", ordinal,
                            driver.device_count()));
  CUdevice device = 0;
  if (Status got = driver.check(driver->cuDeviceGet(&device, ordinal), "cuDeviceGet"); !got)
    return tl::unexpected(got.error());
  const auto full_name = query_name(driver, device);
  if (!full_name) return tl::unexpected(full_name.error());

  int capability_major = 0;
  int capability_minor = 0;
  if (Status got = query(driver, device,
                         {{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &capability_major},
                          {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &capability_minor}});
      !got)
    return tl::unexpected(got.error());
  DeviceSpec spec = with_capability({}, capability_major, capability_minor);
  int l2_bytes = 0;
  Clocks clocks;
  if (Status got = query(
          driver, device,
          {{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &spec.sm_count},
           {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &spec.max_smem_per_block_bytes},
           {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, &spec.registers_per_sm},
           {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &l2_bytes},
           {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, &clocks.core_khz},
           {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, &clocks.memory_khz},
           {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, &clocks.bus_bits}});
      !got)
    return tl::unexpected(got.error());
  const auto dram_gb = query_gb(driver, device);
  if (!dram_gb) return tl::unexpected(dram_gb.error());
  spec.dram_gb = *dram_gb;
  spec.l2_bytes = l2_bytes;
  spec.full_name = *full_name;
  spec.name = normalize_device_name(spec.full_name);
  set_speeds(clocks, spec);
  return spec;
}

}  // namespace octile
