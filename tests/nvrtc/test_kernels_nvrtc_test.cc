// The kernels of known-answer tests compile for every device that is tested before it is trusted,
// and none spills.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "runtime/compiler/nvrtc.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/test_kernels.h"

namespace octile {
namespace {

class TestKernels : public ::testing::TestWithParam<const char*> {};

TEST_P(TestKernels, CompileWithoutSpills) {
  const auto nvrtc = Nvrtc::open();
  if (!nvrtc) GTEST_SKIP() << "NVRTC cannot be opened";
  const DeviceSpec& device = *find_device(GetParam());
  const auto kernels = test_kernels(device);
  EXPECT_FALSE(kernels.empty());
  double milliseconds = 0;
  for (const TestKernel& test : kernels) {
    SCOPED_TRACE(
        fmt::format("{}: {} / {}", device.name, to_text(test.problem), to_text(test.config)));
    const auto kernel = emit(test.problem, test.config, device, embedded_templates());
    ASSERT_TRUE(kernel) << kernel.error().message;
    const auto output = (*nvrtc)->compile(kernel->name, kernel->source, kernel->options);
    ASSERT_TRUE(output) << output.error().message;
    EXPECT_TRUE(output->warnings.empty()) << output->log;
    const KernelResources* r = output->find(kernel->name);
    ASSERT_NE(r, nullptr);
    EXPECT_EQ(r->spill_store_bytes + r->spill_load_bytes + r->stack_bytes, 0);
    milliseconds += output->compile_ms;
  }
  fmt::print("{}: {} kernels, {:.0f} ms\n", device.arch(), kernels.size(), milliseconds);
}

TEST(TestKernelsOfHopper, AreNone) { EXPECT_TRUE(test_kernels(*find_device("h200")).empty()); }

INSTANTIATE_TEST_SUITE_P(Devices, TestKernels, ::testing::Values("l40s", "rtx5090", "b200", "b300"),
                         [](const auto& device) { return std::string(device.param); });

}  // namespace
}  // namespace octile
