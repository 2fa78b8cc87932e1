// Groups of rows and flat ranges through the C API: sizes, flat ranges on the host, errors of their
// callers, and the arguments of launches.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "runtime/compiler/nvrtc.h"
#include "runtime/driver/buffer.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"
#include "tests/support/quantize_shard_case.h"

namespace octile::test {
namespace {

using tests::Fill;
using tests::QuantizeCase;

const std::string kStart = "quantize rows=? cols=140 x=bf16 ";

class Groups : public ::testing::Test {
 protected:
  void refuses(const std::string& text, QuantizeArguments args,
               const std::vector<std::string>& parts) {
    const PlanHandle plan = make_plan(library, "host", kStart + text);
    std::memset(memory.at(), 0x5a, kBytes);
    expect_refused(run_quantize(plan.get(), args), OCTILE_INVALID_ARGUMENT, parts);
    for (std::size_t i = 0; i < kBytes; ++i)
      ASSERT_EQ(memory.at<unsigned char>()[i], 0x5a) << "an output was touched";
  }
  // Returns arguments that are right for 20 rows, without those of groups and shards.
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

TEST_F(Groups, ShardsOnTheHostMakeTheWhole) {
  const std::string text = "q=e4m3:1x128 out=row";
  const auto problem = std::get<QuantizeProblem>(parse_problem(kStart + text).value());
  QuantizeCase whole = tests::make_case(problem, {33, 140}, Fill::kMixed);
  std::vector<char> q = whole.row.q, scale = whole.row.scale;
  std::vector<float> maxima(static_cast<std::size_t>(tests::maxima_of(problem, 33)), 0.0F);
  for (const char* step : {" shard=amax", " shard=cast"}) {
    const PlanHandle plan = make_plan(library, "host", kStart + text + step);
    for (const tests::Shard& shard : tests::random_split(33 * 140, 5, 1)) {
      QuantizeArguments a;
      a.rows = 33;
      a.x = whole.x.data() + shard.start * 2;
      a.q = q.data() + QuantizeCase::kGuard + shard.start;
      a.scale = scale.data() + QuantizeCase::kGuard;
      a.shard.start = shard.start;
      a.shard.length = shard.length;
      a.shard.amax = maxima.data();
      ASSERT_EQ(run_quantize(plan.get(), a), OCTILE_OK) << octile_last_error();
    }
  }
  ASSERT_TRUE(whole.run_reference());
  EXPECT_TRUE(q == whole.row.q);
  EXPECT_TRUE(scale == whole.row.scale);
}

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

TEST_F(Groups, FlatRangesAreChecked) {
  const std::string cast = "q=e4m3:1x128 out=row shard=cast";
  const auto shard = [&] {
    QuantizeArguments a = args();
    a.shard.start = 100;
    a.shard.length = 200;
    a.shard.amax = memory.at<float>(6144);
    return a;
  };
  QuantizeArguments a = shard();
  a.shard.length = -1;
  refuses(cast, a, {"shard.length is -1", "0 to 2700"});
  a.shard.length = 2701;
  refuses(cast, a, {"shard.length is 2701", "0 to 2700", "ends"});
  a = shard();
  a.shard.start = -5;
  refuses(cast, a, {"shard.start is -5", "0 to rows * cols = 2800"});
  a.shard.start = 2801;
  refuses(cast, a, {"shard.start is 2801"});
  a = shard();
  a.shard.amax = nullptr;
  refuses(cast, a, {"shard.amax is null"});
  a = shard();
  a.ldx = 144;
  refuses(cast, a, {"ldx is 144", "0 or cols = 140", "flat"});
  a = shard();
  a.ldq = 144;
  refuses(cast, a, {"ldq is 144", "0 or cols = 140", "flat"});
  a = shard();
  a.q = nullptr;
  refuses(cast, a, {"q is null"});
  a = shard();
  a.scale = nullptr;
  refuses(cast, a, {"scale is null"});
  a = shard();
  a.monitor.amax = memory.at<float>(7000);
  refuses("q=e4m3:tensor out=row shard=cast", a, {"monitor.amax is given", "shard.amax"});
  refuses("q=e4m3:1x128 out=row", shard(), {"shard.amax is given", "whole tensors"});
  a = shard();
  a.shard.amax = nullptr;
  refuses("q=e4m3:1x128 out=row", a, {"shard.length is given", "whole tensors"});

  a = {};  // there is nothing to do, and pointers are ignored
  a.rows = 20;
  a.shard.start = 2800;
  const PlanHandle plan = make_plan(library, "host", kStart + cast);
  EXPECT_EQ(run_quantize(plan.get(), a), OCTILE_OK) << octile_last_error();
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
  void run(const std::string& text, QuantizeArguments a) {
    const PlanHandle plan = make_plan(library, "cuda:0", kStart + text);
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

TEST_F(GroupLaunches, FlatRangesAsRowsAndColumns) {
  QuantizeArguments a = args();
  a.shard.amax = memory.at<float>(6144);
  a.shard.start = 3 * 140 + 7;
  a.shard.length = 2 * 140;
  for (const char* step : {"amax", "cast"}) {
    run(std::string("q=e4m3:1x128 out=row shard=") + step, a);
    ASSERT_EQ(launches.size(), 1U);
    EXPECT_EQ(launches[0].args.shard_row, 3);
    EXPECT_EQ(launches[0].args.shard_col, 7);
    EXPECT_EQ(launches[0].args.shard_last_row, 5);
    EXPECT_EQ(launches[0].args.shard_end_col, 7);
  }
  a.shard.length = 2 * 140 - 7;  // up to the end of a row
  run("q=e4m3:1x128 out=row shard=cast", a);
  EXPECT_EQ(launches[0].args.shard_last_row, 4);
  EXPECT_EQ(launches[0].args.shard_end_col, 140);
  a.shard.length = 0;
  run("q=e4m3:1x128 out=row shard=cast", a);
  EXPECT_TRUE(launches.empty());
}

}  // namespace
}  // namespace octile::test
