// Known-answer tests: on a GPU that the GPU suite's report is not of, what quantisers write is
// compared with the host executor before the first of its kernels is handed out.
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "generator/core/error.h"
#include "runtime/engine/target.h"

namespace octile {

struct Library;

class KnownAnswers {
 public:
  // Tests the device of a live target once, and returns that test's result from then on. A device
  // of a proven compute capability is not tested (DeviceSpec::is_proven). If the tests' kernels
  // cannot be had because nothing may be compiled, warns and passes. Holds a lock while the device
  // works. Legal while streams capture. Errors: kDeviceError naming the first byte that differs,
  // and those of loading a kernel.
  Status check(Library& library, const Target& target);

 private:
  std::mutex mutex_;
  std::map<std::pair<const Driver*, int>, Status> results_;  // by ordinal
};

// Runs the tests now. Quantises small integers, every bf16 value from half of the smallest E4M3
// number to the largest one, infinities, NaN and -0, with scales of 1x128 blocks and of a tensor.
Status test_known_answers(Library& library, const Target& target);

}  // namespace octile
