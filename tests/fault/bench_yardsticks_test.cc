// The yardsticks of `octile bench` on the fake driver.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "runtime/compiler/nvrtc.h"
#include "tests/support/fake_device.h"
#include "tools/bench/yardsticks.h"

namespace octile::test {
namespace {

// A sweep has a stream beside each of a hundred measurements, and few mixes of reads and writes.
TEST(Yardsticks, AStreamOfAMixIsCompiledOnce) {
  if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
  const FakeDevice device;
  const std::unique_ptr<GpuSession> gpu = std::move(*GpuSession::open("cuda:0"));
  const auto before = device.fake.live_libraries();
  {
    LoadedTemplates templates(*gpu);
    for (int i = 0; i < 2; ++i) {
      for (const int divisor : {1, 2}) {
        const auto stream = tools::StreamKernel::create(templates, 4, 2, divisor);
        ASSERT_TRUE(stream) << stream.error().message;
      }
    }
    EXPECT_EQ(device.fake.live_libraries(), before + 2);
  }
  EXPECT_EQ(device.fake.live_libraries(), before);
}

}  // namespace
}  // namespace octile::test
