// Decides which kernels of a device are trusted. A GPU that is not in the GPU suite's report is
// tested in octile-prover before the first of its kernels is handed out.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "generator/core/error.h"
#include "runtime/engine/target.h"

namespace octile {

struct Library;

class TrustedDevices {
 public:
  // The part of a device that its tests leave.
  struct Trusted {
    Status any;              // else why no kernel is handed out for it
    Status multiplies;       // else why no GEMM is
    DeviceSpec device = {};  // no kernel is chosen by units that are not trusted
  };

  // Tests the device of a live target the first time, unless this machine's proofs have it, and
  // warns of each part that is left out. Calls for a device that is being tested wait for the end.
  // A device of a proven compute capability is trusted (DeviceSpec::is_proven). Without a test,
  // quantisers and the unit mma are trusted, and one warning says why there was none. Legal while
  // streams capture: this process makes no call of the driver that a capture forbids.
  const Trusted& of(Library& library, const Target& target);

 private:
  // One device. Whoever holds the mutex tests it.
  struct Entry {
    std::mutex mutex;
    std::optional<Trusted> trusted;
  };
  Entry& entry_of(const Target& target);

  std::mutex mutex_;  // guards the map, whose entries stay where they are
  std::map<std::pair<const Driver*, int>, Entry> devices_;  // by ordinal
};

}  // namespace octile
