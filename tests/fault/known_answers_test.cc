// The known-answer test of GPUs that the GPU suite has not run on, with the fake driver: plans that
// are prepared where the device computes what the host does, and where it does not.
#include <gtest/gtest.h>

#include "runtime/compiler/nvrtc.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"

namespace octile::test {
namespace {

class KnownAnswers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
  }
  TempFolder cache;
};

CUresult do_nothing(const fake_cuda_launch*, void*) { return CUDA_SUCCESS; }

// The test runs once, its kernels and the plan's launch in order, and Hopper has none.
TEST_F(KnownAnswers, AreComputedOnceBeforeTheFirstKernel) {
  const FakeDevice device("l40s,h200");
  const LibraryHandle library(cache.path());
  const PlanHandle hopper = make_plan(library, "cuda:1", kQuantizeText);
  ASSERT_EQ(octile_plan_prepare(hopper.get(), 1, 1, 0), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(device.fake.launch_count(), 0U);
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(device.fake.launch_count(), 4U);  // three problems, one of them of two kernels
  for (std::size_t i = 0; i < 4; ++i) {
    fake_cuda_launch launch{};
    ASSERT_TRUE(device.fake.get_launch(i, &launch));
    EXPECT_EQ(launch.programmatic, 0) << launch.kernel;
    EXPECT_EQ(launch.cluster[0], 1U) << launch.kernel;
  }
  ASSERT_EQ(octile_plan_prepare(plan.get(), 4096, 4096, 0), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(device.fake.launch_count(), 4U);
  EXPECT_EQ(device.fake.live_allocations(), 0U);
}

TEST_F(KnownAnswers, RefuseADeviceThatComputesOtherBits) {
  const FakeDevice device("l40s");
  device.fake.set_executor(do_nothing, nullptr);
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  for (int i = 0; i < 2; ++i) {
    expect_refused(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_DEVICE_ERROR,
                   {"NVIDIA L40S (compute capability 8.9) does not pass the known-answer test of "
                    "'quantize rows=? cols=256 x=bf16 q=e4m3:1x128 out=row': a byte of the codes "
                    "is 0xa5, and the host executor's is 0x"});
  }
  EXPECT_EQ(device.fake.launch_count(), 1U);
}

}  // namespace
}  // namespace octile::test
