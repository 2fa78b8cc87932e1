// Launches that are written down instead of done.
#include "runtime/proof/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

#include "tests/support/fake_driver_control.h"

namespace octile {
namespace {

RecordedLaunch head_of(const std::string& text) {
  RecordedLaunch launch;
  std::memcpy(&launch, text.data(), sizeof launch);
  return launch;
}

TEST(LaunchRecorder, KeepsLaunchesAndClearingsInOrder) {
  const test::FakeDriver fake("rtx5090");
  KernelBuild build;
  build.emitted.parameter_bytes = {24};
  build.emitted.companions = {{"companion", {8}}};
  LaunchRecorder recorder(*fake.open(), build);
  const LoadedKernel kernels = recorder.kernels();
  ASSERT_EQ(kernels.companions.size(), 1U);
  const LaunchSite site = recorder.site();

  std::array<char, 24> large{};
  std::array<char, 8> small{};
  large.fill('l');
  small.fill('s');
  std::array<void*, 1> parameters{large.data()};
  CUlaunchConfig config = launch_config(site, 12, 256);
  config.sharedMemBytes = 4096;
  KernelHandle waits = kernels.kernel;
  waits.waits_itself = true;
  ASSERT_TRUE(launch(site, waits, config, parameters.data(), 2));
  ASSERT_EQ(site.driver->cuMemsetD2D8Async(640, 128, 0, 96, 7, site.stream), CUDA_SUCCESS);
  parameters = {small.data()};
  ASSERT_TRUE(launch(site, kernels.companions[0], launch_config(site, 1, 32), parameters.data()));

  ASSERT_EQ(recorder.launches().size(), 3U);
  const std::string& first = recorder.launches()[0];
  EXPECT_EQ(head_of(first).kernel, 0);
  EXPECT_EQ(head_of(first).blocks, 12U);
  EXPECT_EQ(head_of(first).threads, 256U);
  EXPECT_EQ(head_of(first).cluster, 2U);
  EXPECT_EQ(head_of(first).smem_bytes, 4096U);
  EXPECT_EQ(head_of(first).waits_itself, 1U);
  EXPECT_EQ(first.substr(sizeof(RecordedLaunch)), std::string(24, 'l'));
  const RecordedLaunch cleared = head_of(recorder.launches()[1]);
  EXPECT_EQ(cleared.kernel, kClears);
  EXPECT_EQ(cleared.address, 640U);
  EXPECT_EQ(cleared.pitch_bytes, 128U);
  EXPECT_EQ(cleared.width_bytes, 96U);
  EXPECT_EQ(cleared.rows, 7U);
  const std::string& last = recorder.launches()[2];
  EXPECT_EQ(head_of(last).kernel, 1);
  EXPECT_EQ(head_of(last).cluster, 1U);
  EXPECT_EQ(head_of(last).waits_itself, 0U);
  EXPECT_EQ(last.substr(sizeof(RecordedLaunch)), std::string(8, 's'));
  EXPECT_EQ(fake.launch_count(), 0U);
}

}  // namespace
}  // namespace octile
