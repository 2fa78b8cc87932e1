// Groups of rows, and maxima, through the C API: sizes, host runs against the reference, and
// errors of callers, each with its sentence.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "runtime/compiler/nvrtc.h"
#include "runtime/driver/buffer.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"
#include "tests/support/quantize_group_case.h"

namespace octile::test {
namespace {

using tests::Fill;
using tests::GroupCase;
using tests::GroupSizes;
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

TEST_F(Groups, RunsOnTheHostEqualTheReference) {
  for (const char* text :
       {"q=e4m3:1x128 out=both group=contiguous", "q=e4m3:tensor out=both group=contiguous",
        "q=e4m3:tensor out=row policy=delayed group=contiguous", "q=e5m2:1x32 out=row group=masked",
        "q=e4m3:row out=row group=masked",
        "q=e4m3:1x32 out=col group=contiguous scales=swizzled"}) {
    SCOPED_TRACE(text);
    const auto problem = std::get<QuantizeProblem>(parse_problem(kStart + text).value());
    GroupCase expected =
        tests::make_group_case(problem, 140, {"some", {3, 0, 130, 5}}, Fill::kMixed);
    GroupCase actual = expected;
    QuantizeArguments a;
    actual.fill(a);
    const PlanHandle plan = make_plan(library, "host", kStart + text);
    ASSERT_EQ(run_quantize(plan.get(), a), OCTILE_OK) << octile_last_error();
    ASSERT_TRUE(expected.run_reference());
    EXPECT_TRUE(tests::same_outputs(actual, expected));
  }
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

  const octile_quantized_layout before = layout;
  const auto refuses_query = [&](octile_plan* plan, std::int64_t rows, std::int64_t groups,
                                 int transposed, const std::vector<std::string>& parts) {
    expect_refused(octile_plan_quantized_layout(plan, rows, groups, transposed, &layout),
                   OCTILE_INVALID_ARGUMENT, parts);
    EXPECT_EQ(std::memcmp(&layout, &before, sizeof layout), 0);
  };
  refuses_query(packed.get(), -1, 7, 0, {"rows is -1"});
  refuses_query(packed.get(), 10, -7, 0, {"groups is -7", "0 to 65536"});
  refuses_query(packed.get(), 10, 65537, 0, {"groups is 65537", "0 to 65536"});
  refuses_query(nullptr, 10, 1, 0, {"plan is null"});
  expect_refused(octile_plan_quantized_layout(packed.get(), 10, 1, 0, nullptr),
                 OCTILE_INVALID_ARGUMENT, {"layout is null"});
  const PlanHandle row = make_plan(library, "host", kStart + "q=e4m3:1x128 out=row");
  refuses_query(row.get(), 10, 0, 1, {"transposed is 1", "allowed: 0"});
  refuses_query(row.get(), 10, 2, 0, {"groups is 2", "no groups"});
  const PlanHandle col = make_plan(library, "host", kStart + "q=e4m3:1x128 out=col");
  refuses_query(col.get(), 10, 0, 0, {"transposed is 0", "allowed: 1"});
  const PlanHandle gemm = make_plan(library, "host", kGemmText);
  refuses_query(gemm.get(), 10, 0, 0, {"plan is 'gemm", "octile_plan_quantized_layout"});
}

TEST_F(Groups, GroupsAreChecked) {
  const std::string packed = "q=e4m3:1x128 out=row group=contiguous";
  QuantizeArguments a = args();
  a.groups.group_count = 2;
  refuses(packed, a, {"groups.offsets is null"});
  a.groups.offsets = reinterpret_cast<const std::int32_t*>(memory.at<char>(5000) + 2);
  refuses(packed, a, {"groups.offsets is 0x", "a multiple of 4 bytes"});
  a.groups.offsets = offsets.data();
  a.groups.group_count = -1;
  refuses(packed, a, {"groups.group_count is -1", "0 to 65536"});
  a.groups.group_count = 70000;
  refuses(packed, a, {"groups.group_count is 70000", "0 to 65536"});
  a.groups.group_count = 2;
  a.groups.counts = counts.data();
  refuses(packed, a, {"groups.counts is given", "no masked groups"});
  a.groups.counts = nullptr;
  offsets = {0, 5, 21};
  a.groups.offsets = offsets.data();
  refuses(packed, a, {"offsets[2] is 21", "rows = 20"});  // on the host they can be read

  a = args();
  a.groups.group_count = 2;
  refuses("q=e4m3:1x128 out=row group=masked", a, {"groups.counts is null"});
  a.groups.offsets = offsets.data();
  refuses("q=e4m3:1x128 out=row group=masked", a,
          {"groups.offsets is given", "no contiguous groups"});
  refuses("q=e4m3:1x128 out=row", a, {"groups.offsets is given", "no contiguous groups"});
  a.groups.offsets = nullptr;
  refuses("q=e4m3:1x128 out=row", a, {"groups.group_count is 2", "no groups"});
}

TEST_F(Groups, NoGroupIsNothingToDo) {
  QuantizeArguments a;
  a.rows = 20;
  const PlanHandle plan =
      make_plan(library, "host", kStart + "q=e4m3:1x128 out=row group=contiguous");
  EXPECT_EQ(run_quantize(plan.get(), a), OCTILE_OK) << octile_last_error();
}

TEST_F(Groups, CountersAndSwizzledScalesAreChecked) {
  QuantizeArguments a = args();
  a.monitor.nonfinite = reinterpret_cast<std::uint64_t*>(memory.at<char>(7000) + 4);
  refuses("q=e4m3:1x128 out=row", a, {"monitor.nonfinite is 0x", "a multiple of 8 bytes"});
  a = args();
  a.scale_ld = 12;
  refuses("q=e4m3:1x32 out=row scales=swizzled", a, {"scale_ld is 12", "meaning 8", "tiles"});
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
