#include "cache/measured_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cache/field_reader.h"
#include "cache/json.h"

namespace octile::cache {
namespace {

constexpr const char* kDevicesName = "devices.json";
constexpr int kVersion = 1;

struct SpeedField {
  const char* name;
  double MeasuredDevice::* member;
  double least, most;
};
constexpr SpeedField kSpeeds[] = {
    {"clock_ghz", &MeasuredDevice::clock_ghz, 0.1, 10},
    {"dram_tbps", &MeasuredDevice::dram_tbps, 0.01, 100},
    {"launch_us", &MeasuredDevice::launch_us, 0.01, 1000},
};
constexpr int kMostSms = 1024;

void read_device(FieldReader& reader, MeasuredDevice& device) {
  reader.read("name", device.name);
  reader.read("sm_count", device.sm_count);
  if (device.sm_count < 1 || device.sm_count > kMostSms) {
    reader.complain("sm_count", fmt::format("1 to {}", kMostSms));
  }
  for (const SpeedField& field : kSpeeds) {
    double& value = device.*field.member;
    reader.read(field.name, value);
    const bool is_allowed = value >= field.least && value <= field.most;  // no NaN is
    if (!is_allowed) reader.complain(field.name, fmt::format("{} to {}", field.least, field.most));
  }
  reader.read_optional("driver", device.driver);
  reader.read_optional("date", device.date);
}

}  // namespace

std::string to_json_text(const std::vector<MeasuredDevice>& devices) {
  std::string list;  // a line for each device
  for (const MeasuredDevice& d : devices) {
    Json device = Json::object();
    device.add("name", d.name).add("sm_count", d.sm_count);
    for (const SpeedField& field : kSpeeds) device.add(field.name, d.*field.member);
    list += list.empty() ? "\n" : ",\n";
    list += device.add("driver", d.driver).add("date", d.date).dump();
  }
  return fmt::format("{{\"version\":{},\"devices\":[{}]}}\n", kVersion, list);
}

tl::expected<std::vector<MeasuredDevice>, std::string> parse_measured_devices(
    std::string_view text) {
  const auto document = parse_object(text, "measured devices");
  if (!document) return tl::unexpected(document.error());
  FieldReader reader(*document, "measured devices");
  int version = 0;
  reader.read("version", version);
  if (version != kVersion) reader.complain("version", fmt::format_int(kVersion).str());
  const Json* list = reader.find("devices");
  if (list == nullptr || !list->is_array()) reader.complain("devices", "an array");
  if (!reader.error().empty()) return tl::unexpected(reader.error());
  std::vector<MeasuredDevice> devices;
  for (const Json& object : *list) {
    if (!object.is_object())
      return tl::unexpected(std::string("measured devices: a device is not a JSON object"));
    FieldReader fields(object, "measured device");
    read_device(fields, devices.emplace_back());
    if (!fields.error().empty()) return tl::unexpected(fields.error());
  }
  return devices;
}

MeasuredDevices::MeasuredDevices(const std::string& root, std::shared_ptr<FileOps> file_ops)
    : path_(root + "/" + kDevicesName), file_(root, kDevicesName, std::move(file_ops)) {}

IoResult<std::vector<MeasuredDevice>> MeasuredDevices::read() const {
  const auto text = file_.read();
  if (!text) {
    if (text.error().code == ENOENT) return std::vector<MeasuredDevice>();
    return tl::unexpected(text.error());
  }
  auto devices = parse_measured_devices(*text);
  if (!devices) return tl::unexpected(IoError{0, fmt::format("{}: {}", path_, devices.error())});
  return std::move(*devices);
}

IoResult<void> MeasuredDevices::put(const MeasuredDevice& device) const {
  auto known = read();
  // A file that cannot be read may hold other devices. One that is damaged is replaced.
  if (!known && known.error().code != 0) return tl::unexpected(std::move(known.error()));
  std::vector<MeasuredDevice> devices = known ? std::move(*known) : std::vector<MeasuredDevice>();
  std::erase_if(devices, [&](const MeasuredDevice& d) {
    return d.name == device.name && d.sm_count == device.sm_count;
  });
  devices.push_back(device);
  return file_.replace(to_json_text(devices));
}

}  // namespace octile::cache
