// Measurements of this machine's devices: `devices.json` of the writable root, which `octile
// doctor --measure` writes. See FORMAT.md section 9.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "cache/file_ops.h"
#include "cache/memo_file.h"

namespace octile::cache {

// The speeds that a cost model needs, of one kind of device.
struct MeasuredDevice {
  std::string name;  // canonical: "h100", "nvidia-gh200-480gb"
  int sm_count = 0;
  double clock_ghz = 0;  // that explains the time of a large GEMM
  double dram_tbps = 0;  // rate of a stream that mostly reads
  double launch_us = 0;  // time of an empty kernel as a node of a graph
  std::string driver;    // "13.0"
  std::string date;      // "2026-11-25T22:10:00Z"
  friend bool operator==(const MeasuredDevice&, const MeasuredDevice&) = default;
};

std::string to_json_text(const std::vector<MeasuredDevice>& devices);
// Returns the devices. The error names the field that is missing or out of range.
tl::expected<std::vector<MeasuredDevice>, std::string> parse_measured_devices(
    std::string_view text);

// May be used by several threads and processes at once.
class MeasuredDevices {
 public:
  // file_ops null: the system's.
  explicit MeasuredDevices(const std::string& root, std::shared_ptr<FileOps> file_ops = nullptr);

  const std::string& path() const { return path_; }

  // Returns the devices; none if there is no file. Errors: those of MemoFile::read(), and code 0
  // for a text that parse_measured_devices() refuses.
  IoResult<std::vector<MeasuredDevice>> read() const;

  // Adds the device in place of one with the same name and SM count. A damaged file is replaced.
  // One that cannot be read stays, and is the error. If two processes do this at once, one may win
  // for both.
  IoResult<void> put(const MeasuredDevice& device) const;

 private:
  std::string path_;
  MemoFile file_;
};

}  // namespace octile::cache
