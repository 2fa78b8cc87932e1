// Decides which kernels of a device are trusted. A GPU that is not in the GPU suite's report is
// tested in octile-prover before the first of its kernels is handed out.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

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
    // A part that could not be tested is tested again later.
    bool is_final = true;
    std::vector<std::string> warnings = {};  // the log has each once
  };

  // Tests the device of a live target the first time, unless this machine's proofs have it, and
  // warns of each part that is left out. Calls for a device that is being tested wait for the end.
  // A device of a proven compute capability is trusted (DeviceSpec::is_proven). Without a test,
  // quantisers and the unit mma are trusted, and one warning says why there was none. The reason
  // may pass, such as another process's use of the card's memory. So a call that comes a minute
  // later tries again, and the next ones after pauses that double, up to an hour; whoever calls
  // meanwhile gets the earlier outcome at once. Legal while streams capture: this process makes no
  // call of the driver that a capture forbids.
  std::shared_ptr<const Trusted> of(Library& library, const Target& target);

  // The pause before a device is tried again that could not be tested.
  void set_first_pause(std::chrono::milliseconds pause) { first_pause_ = pause; }

 private:
  using Clock = std::chrono::steady_clock;

  // One device. Whoever holds the first mutex tests it; the second guards the outcome.
  struct Entry {
    std::mutex testing;
    std::mutex mutex;
    std::shared_ptr<const Trusted> trusted;
    Clock::time_point again = Clock::time_point::max();  // when it is tested again
    Clock::duration pause = {};                          // the last one
  };
  // Returns the outcome. `is_due`: whether it is tested again now.
  static std::shared_ptr<const Trusted> known(Entry& entry, bool& is_due);
  Entry& entry_of(const Target& target);

  std::atomic<std::chrono::milliseconds> first_pause_{std::chrono::minutes(1)};
  std::mutex mutex_;  // guards the map, whose entries stay where they are
  std::map<std::pair<const Driver*, int>, Entry> devices_;  // by ordinal
};

}  // namespace octile
