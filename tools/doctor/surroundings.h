// What Octile uses of this machine, what is missing, and what that costs.
#pragma once

#include <string>
#include <vector>

#include "cache/tuning_set.h"
#include "generator/core/device_spec.h"
#include "runtime/compiler/nvrtc.h"
#include "tools/common/handles.h"

namespace octile::tools {

struct FoundDevice {
  int ordinal = 0;
  DeviceSpec spec;
  bool usable = false;  // kernels exist for it
};

struct Missing {
  std::string what;  // "driver", "device", "compiler", "cache", "libarchive"
  std::string why;
  std::string cost;
};

struct Surroundings {
  std::string driver_path, driver_version;  // empty if missing
  std::vector<FoundDevice> devices;
  std::string nvrtc_path, nvrtc_version;  // empty if missing
  std::vector<NvrtcTrial> nvrtc_trials;   // where NVRTC was looked for, up to where it was found
  std::string compiler_program;           // that NVRTC runs in; empty: in the calling process
  std::string prover_program;             // that tests kernels; empty: why_no_prover
  std::string why_no_prover;
  std::string cache_root;  // writable root; empty if there is none
  bool cache_writable = false;
  std::vector<std::string> read_only_roots;
  std::vector<cache::TuningSet::Source> tuning;  // sources of tuning records; empty if turned off
  std::vector<std::string> bad_settings;         // a sentence for each variable that is not taken
  std::vector<std::string> advice;               // what works, and what would serve better
  std::vector<Missing> missing;

  const FoundDevice* first_usable() const;  // null if there is none
};

// Opens driver, compiler and libarchive, and asks the library for its cache roots and tuning
// records.
Surroundings look_around(const LibraryHandle& library);

Json to_json(const Surroundings& surroundings);
// Returns a line for each place where NVRTC was looked for, with the outcome.
std::string nvrtc_search_text(const Surroundings& surroundings);
// Returns what is missing and what that costs; empty if nothing is missing.
std::string missing_text(const Surroundings& surroundings);

}  // namespace octile::tools
