// The kernels that the known-answer tests of a device run.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/families.h"

namespace octile {

struct TestKernel {
  Problem problem;
  KernelConfig config;
  std::int64_t tokens = 0;
};

// Returns those of quantisers and of all matrix units; none of a device that is trusted without a
// test (DeviceSpec::is_proven). A cache that has them serves a machine that compiles nothing.
std::vector<TestKernel> test_kernels(const DeviceSpec& device);

}  // namespace octile
