// The parts of a launch that a device decides.
#include <gtest/gtest.h>

#include "generator/core/device_spec.h"
#include "runtime/families/families.h"

namespace octile {
namespace {

// Only kernels of a device that has the instruction wait themselves for those before them. A
// programmatic launch of any other would break the stream's order.
TEST(Resolve, LaunchesAreProgrammaticIfTheDeviceIs) {
  GemmProblem gemm;
  gemm.n = gemm.k = 256;
  QuantizeProblem quantize;
  quantize.cols = 256;
  for (const DeviceSpec& device : known_devices()) {
    EXPECT_EQ(resolve(gemm, GemmConfig(), device, LoadedKernel()).kernel.waits_itself,
              device.has_pdl)
        << device.name;
    const ResolvedQuantize resolved =
        resolve(quantize, default_config(quantize, 16, device), device, LoadedKernel());
    EXPECT_EQ(resolved.kernel.waits_itself, device.has_pdl) << device.name;
    for (const KernelHandle& companion : resolved.companions) {
      EXPECT_EQ(companion.waits_itself, device.has_pdl) << device.name;
    }
  }
  EXPECT_FALSE(find_device("l40s")->has_pdl);
  EXPECT_FALSE(KernelHandle().waits_itself);
}

}  // namespace
}  // namespace octile
