// What this machine has of what Octile uses, what is missing, and what that costs.
#pragma once

#include <string>
#include <vector>

#include "cache/tuning_set.h"
#include "generator/core/device_spec.h"
#include "tools/common/handles.h"

namespace octile::tools {

struct FoundDevice {
  int ordinal = 0;
  DeviceSpec spec;
  bool usable = false;  // has the FP8 WGMMA that kernels are made of
};

struct Missing {
  std::string what;  // "driver", "device", "compiler", "cache"
  std::string why;
  std::string cost;
};

struct Surroundings {
  std::string driver_path, driver_version;  // empty: none
  std::vector<FoundDevice> devices;
  std::string nvrtc_path, nvrtc_version;  // empty: none
  std::string cache_root;                 // writable root; empty: none
  bool cache_writable = false;
  std::vector<std::string> read_only_roots;
  std::vector<cache::TuningSet::Source> tuning;  // where records come from; empty: turned off
  std::vector<Missing> missing;

  const FoundDevice* first_usable() const;  // null: none
};

// Opens driver and compiler. The library is asked for its cache roots and tuning records.
Surroundings look_around(const LibraryHandle& library);

Json to_json(const Surroundings& surroundings);
// One line each of what is missing; empty where nothing is.
std::string missing_text(const Surroundings& surroundings);

}  // namespace octile::tools
