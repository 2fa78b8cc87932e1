// Known-answer tests of matrix units: on a GPU that the GPU suite's report is not of, what a GEMM
// of each unit computes is compared with the host executor before the first GEMM is chosen. They
// also read off how many bits the unit keeps of a sum.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "generator/core/error.h"
#include "runtime/engine/target.h"

namespace octile {

struct Library;

struct UnitAnswer {
  MatrixUnit unit = MatrixUnit::kWgmma;
  Status status;  // else what is wrong with the unit
  // The bits behind the binary point that it keeps of a sum: 13, 14 (to 19) or 25 (20 or more), as
  // far as the probes tell them apart. Nothing if it was not read off.
  std::optional<int> sum_bits;
};

// Runs the tests now, of the device's units that have kernels, the default unit's first: a GEMM of
// 64x64x256 of small integers, with zeros of both signs, subnormal codes, a NaN and odd scales. A
// unit whose instruction multiplies scales computes it with MX scales too, of which all that meet
// in an instruction differ, and one of each operand is NaN. A
// unit that keeps fewer bits of a sum than its description says is wrong too.
std::vector<UnitAnswer> test_units(Library& library, const Target& target);

class UnitAnswers {
 public:
  // Returns the description of a live target's device without the units that do not pass, by which
  // configurations are chosen. The first call for a device tests it, and warns of each unit that is
  // left out. A device of a proven compute capability is not tested (DeviceSpec::is_proven). A unit
  // whose kernel cannot be had because nothing may be compiled is warned of and kept. Legal while
  // streams capture. Errors: kDeviceError if no unit passes.
  Result<DeviceSpec> trusted(Library& library, const Target& target);

 private:
  std::mutex mutex_;
  std::map<std::pair<const Driver*, int>, Result<DeviceSpec>> devices_;  // by ordinal
};

}  // namespace octile
