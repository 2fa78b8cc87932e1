// Machine code of copies by cp.async: Ada's instructions and none of TMA's. That these
// kernels do not spill is in gemm_devices_nvrtc_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "generator/families.h"
#include "generator/gemm/emit.h"
#include "runtime/compiler/nvrtc.h"
#include "runtime/engine/engine.h"
#include "tests/support/machine_code.h"

namespace octile {
namespace {

// As nvdisasm 13.0 prints them.
constexpr std::uint32_t kQmma = 0x27a, kLdgsts = 0xfae, kUtmaldg = 0x5b4;

class GemmCpAsyncNvrtc : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = Nvrtc::open();
    if (!opened) GTEST_SKIP() << "NVRTC cannot be opened";
    nvrtc_ = *opened;
  }
  // Compiles the default kernel of few tokens and keeps its opcodes.
  void compile(const DeviceSpec& device) {
    const auto problem = std::get<GemmProblem>(*parse_problem(
        "gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128"));
    const auto kernel =
        emit(problem, default_config(problem, 16, device), device, embedded_templates());
    ASSERT_TRUE(kernel.has_value()) << kernel.error().message;
    const auto output = nvrtc_->compile("gemm", kernel->source, kernel->options);
    ASSERT_TRUE(output.has_value()) << output.error().message;
    opcodes_ = tests::opcodes_of(output->cubin, kernel->name);
  }
  bool has(std::uint32_t opcode) const {
    return std::ranges::find(opcodes_, opcode) != opcodes_.end();
  }

  std::shared_ptr<const Nvrtc> nvrtc_;
  std::vector<std::uint32_t> opcodes_;
};

TEST_F(GemmCpAsyncNvrtc, AdaMultipliesAndCopiesByItsOwnInstructions) {
  compile(*find_device("l40s"));
  EXPECT_TRUE(has(kQmma) && has(kLdgsts));
  EXPECT_FALSE(has(kUtmaldg) || tests::has_programmatic_launch(opcodes_));
}

// The text for Ada is one for Hopper too, where ptxas makes its products of fp16: the GPU suite
// runs it there. A kernel of Hopper's own has what the test above looks for in vain.
TEST_F(GemmCpAsyncNvrtc, HopperTakesAdasTextAndHasOtherInstructionsOfItsOwn) {
  const DeviceSpec& hopper = *find_device("h200");
  DeviceSpec ada = *find_device("l40s");
  ada.sm_major = hopper.sm_major;
  ada.sm_minor = hopper.sm_minor;
  compile(ada);
  EXPECT_TRUE(has(kLdgsts));
  EXPECT_FALSE(has(kQmma) || has(kUtmaldg) || tests::has_programmatic_launch(opcodes_));
  compile(hopper);
  EXPECT_TRUE(has(kUtmaldg) && tests::has_programmatic_launch(opcodes_));
  EXPECT_FALSE(has(kLdgsts));
}

}  // namespace
}  // namespace octile
