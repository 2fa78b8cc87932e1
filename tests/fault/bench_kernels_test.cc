// The kernels that `octile bench` compiles before it times anything, on the fake driver.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/api/boundary.h"
#include "runtime/compiler/nvrtc.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"
#include "tools/bench/compile_first.h"
#include "tools/bench/session.h"
#include "tools/bench/yardsticks.h"
#include "tools/compile/needed_kernels.h"

namespace octile::test {
namespace {

class BenchKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
    ::setenv("OCTILE_CACHE_DIR", cache.path().c_str(), 1);
  }
  void TearDown() override { ::unsetenv("OCTILE_CACHE_DIR"); }

  const TempFolder cache;
  const FakeDevice device;
};

// A sweep has a stream beside each of a hundred measurements, and few mixes of reads and writes.
TEST_F(BenchKernels, AStreamOfAMixIsCompiledOnce) {
  Library library(LibraryOptions{});
  const std::unique_ptr<GpuSession> gpu = std::move(*GpuSession::open(library, "cuda:0"));
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

TEST_F(BenchKernels, AllOfTheWorkAreThereBeforeTheFirstPlan) {
  const auto session = tools::BenchSession::open("bench", {}, false);
  ASSERT_TRUE(session) << session.error().message;
  const tools::BenchContext context = session->context();
  const Problem problem =
      parse_problem("quantize rows=? cols=4096 x=bf16 q=e4m3:tensor out=row").value();
  const std::vector<tools::Work> works{{"", problem, {{64, 64}, {4096, 4096}}}};
  Engine& engine = context.library.get()->library.engine;
  const auto kernels = tools::needed_kernels(works, context.gpu.spec(), engine);
  ASSERT_TRUE(kernels);
  ASSERT_GT(kernels->size(), 1U);
  tools::compile_first(context, works);
  for (const auto& [digest, kernel] : *kernels) {
    const auto built = engine.build(problem, kernel.config, context.gpu.spec());
    ASSERT_TRUE(built) << built.error().message;
    EXPECT_NE(built->state, CacheState::kMiss) << kernel.identity.entry_name;
  }
}

}  // namespace
}  // namespace octile::test
