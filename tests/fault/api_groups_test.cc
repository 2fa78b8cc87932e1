// Groups of rows, and maxima, through the C API: sizes, and the arguments of launches.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "runtime/compiler/nvrtc.h"
#include "runtime/driver/buffer.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"

namespace octile::test {
namespace {

const std::string kStart = "quantize rows=? cols=140 x=bf16 ";

class Groups : public ::testing::Test {
 protected:
  // Returns arguments that are right for 20 rows, without those of groups.
  QuantizeArguments args() {
    QuantizeArguments a;
    a.rows = 20;
    a.x = x.at();
    a.q = memory.at();
    a.scale = memory.at(4096);
    return a;
  }

  static constexpr std::size_t kBytes = 8192;
  LibraryHandle library{""};
  Bytes memory{kBytes}, x{20 * 140 * 2};
  std::vector<std::int32_t> offsets{0, 5, 20}, counts{5, 0};
};

TEST_F(Groups, LayoutsOfAPlan) {
  octile_quantized_layout layout = {};
  layout.struct_size = sizeof layout;
  const PlanHandle packed =
      make_plan(library, "host", kStart + "q=e4m3:1x128 out=both group=contiguous");
  ASSERT_EQ(octile_plan_quantized_layout(packed.get(), 1000, 7, 1, &layout), OCTILE_OK);
  EXPECT_EQ(layout.data_rows, 140);
  EXPECT_EQ(layout.data_ld, 128 * (7 + 993 / 128));
  EXPECT_EQ(layout.scale_bytes, (7 + 993 / 128) * 140 * 4);
  ASSERT_EQ(octile_plan_quantized_layout(packed.get(), 1000, 7, 0, &layout), OCTILE_OK);
  EXPECT_EQ(layout.data_bytes, 1000 * 144);
}

// ---- arguments of a launch

struct Launched {
  std::string kernel;
  QuantizeKernelArgs args;
};

CUresult keep(const fake_cuda_launch* launch, void* launches) {
  static_cast<std::vector<Launched>*>(launches)->push_back(
      {launch->kernel, parameter<QuantizeKernelArgs>(*launch, 0)});
  return CUDA_SUCCESS;
}

class GroupLaunches : public Groups {
 protected:
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
    device.fake.set_executor(keep, &launches);
  }
  void run(const std::string& text, QuantizeArguments a, const std::string& start = kStart) {
    const PlanHandle plan = make_plan(library, "cuda:0", start + text);
    ASSERT_EQ(octile_plan_prepare(plan.get(), a.rows, a.rows, OCTILE_PREPARE_DEFAULT), OCTILE_OK)
        << octile_last_error();
    std::size_t bytes = 0;
    ASSERT_EQ(octile_plan_workspace_size(plan.get(), a.rows, &bytes), OCTILE_OK);
    const auto inside = device.enter();  // memory to be cleared must belong to the device
    const auto workspace = DeviceBuffer::allocate(device.driver, bytes);
    ASSERT_TRUE(workspace.has_value());
    a.workspace = workspace->pointer();
    a.workspace_bytes = bytes;
    launches.clear();
    ASSERT_EQ(run_quantize(plan.get(), a), OCTILE_OK) << octile_last_error();
  }

  FakeDevice device;
  std::vector<Launched> launches;
};

TEST_F(GroupLaunches, ContiguousGroupsWithAScaleEach) {
  QuantizeArguments a = args();
  a.q_transposed = memory.at(2048);
  a.scale_transposed = memory.at(4104);
  a.groups.offsets = offsets.data();
  a.groups.group_count = 2;
  run("q=e4m3:tensor out=both group=contiguous", a);
  ASSERT_EQ(launches.size(), 2U);
  EXPECT_EQ(launches[0].kernel, "octile_amax_bf16_groups");
  EXPECT_TRUE(
      launches[1].kernel.starts_with("octile_quantize_bf16_e4m3_tensor_f32_contiguous_both"));
  for (const Launched& l : launches) {
    EXPECT_EQ(l.args.groups_at, offsets.data());
    EXPECT_EQ(l.args.groups, 2);
    EXPECT_EQ(l.args.scale_group_bytes, 4);
    EXPECT_EQ(l.args.ldq_transposed, 256);
  }
}

TEST_F(GroupLaunches, MaskedGroupsHaveTheirScalesApart) {
  QuantizeArguments a = args();
  a.groups.counts = counts.data();
  a.groups.group_count = 2;
  a.scale_ld = 24;
  run("q=e4m3:1x128 out=row group=masked", a);
  ASSERT_EQ(launches.size(), 1U);
  EXPECT_EQ(launches[0].args.groups_at, counts.data());
  EXPECT_EQ(launches[0].args.scale_group_bytes, 2 * 24 * 4);  // two blocks of 128 columns
  run("q=e4m3:1x128:ue8m0x4 out=row group=masked", a);
  EXPECT_EQ(launches[0].args.scale_group_bytes, 24 * 4);
  a.scale_ld = 0;
  run("q=e4m3:1x32 out=row group=masked scales=swizzled", a);
  EXPECT_EQ(launches[0].args.scale_group_bytes, 2 * 512);
  run("q=e4m3:tensor:bf16 out=row group=masked", a);
  EXPECT_EQ(launches[0].args.scale_group_bytes, 2);
}

// The kernel of OCTILE_AMAX takes the whole tensor for its range.
TEST_F(GroupLaunches, AMaximumIsOfTheWholeTensor) {
  QuantizeArguments a;
  a.rows = 20;
  a.x = x.at();
  a.monitor.amax = memory.at<float>(6144);
  run("q=e4m3:tensor", a, "amax rows=? cols=140 x=bf16 ");
  ASSERT_EQ(launches.size(), 1U);
  EXPECT_EQ(launches[0].args.range_row, 0);
  EXPECT_EQ(launches[0].args.range_col, 0);
  EXPECT_EQ(launches[0].args.range_last_row, 19);
  EXPECT_EQ(launches[0].args.range_end_col, 140);
  EXPECT_EQ(launches[0].args.ldx, 140);
  EXPECT_EQ(launches[0].args.range_amax, memory.at<std::uint32_t>(6144));
}

}  // namespace
}  // namespace octile::test
