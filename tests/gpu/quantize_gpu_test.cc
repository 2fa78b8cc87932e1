// Every supported quantise cell on a GPU, through the C API, bit for bit against the host
// reference: shapes with tails, every class of input, strided and misaligned tensors, guard zones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "octile/octile.h"
#include "runtime/reference/scale_update.h"
#include "tests/gpu/quantize_gpu.h"

namespace octile {
namespace {

class QuantizeGpu : public QuantizeGpuFixture {
 protected:
  static void SetUpTestSuite() {
    std::vector<QuantizeProblem> cells;
    for (const std::int64_t cols : {1, 300, 7168, 65536}) {
      const auto more = tests::quantize_cells(cols);
      cells.insert(cells.end(), more.begin(), more.end());
    }
    compile_all(cells);
  }
};

constexpr Placement kShapes[] = {{1, 1}, {1, 16}, {65, 96}, {993, 512}, {1024, 1}, {303, 300}};

TEST_F(QuantizeGpu, EveryCellEqualsTheReference) {
  for (const Placement& shape : kShapes) {
    for_each_cell(shape.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, shape, Fill::kNormal);
      compare(plan.get(), problem, shape, Fill::kMixed);
    });
  }
}

TEST_F(QuantizeGpu, EveryInputEqualsTheReference) {
  for (const Placement& shape : kShapes) {
    for_each_covering_cell(shape.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      for (const auto& [fill, name] : tests::kFills) compare(plan.get(), problem, shape, fill);
    });
  }
}

TEST_F(QuantizeGpu, LargeShapesEqualTheReference) {
  for (const Placement& shape : {Placement{256, 65536}, Placement{1024, 7168}}) {
    for_each_covering_cell(shape.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, shape, Fill::kMixed);
    });
  }
}

TEST_F(QuantizeGpu, StridedAndMisalignedTensorsEqualTheReference) {
  for (const Placement& at : tests::kPlacements) {
    for_each_cell(at.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, at, Fill::kNormal);
      compare(plan.get(), problem, at, Fill::kMixed);
    });
  }
}

TEST_F(QuantizeGpu, EmptyTensorsTouchNothing) {
  for (const Placement& at : {Placement{0, 128}, Placement{128, 0}}) {
    for_each_cell(at.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, at, Fill::kNormal);
    });
  }
}

TEST_F(QuantizeGpu, AnAmaxEpsilonIsHonoured) {
  for_each_covering_cell(264, [&](QuantizeProblem problem) {
    if (problem.operation != QuantizeOperation::kQuantize) return;  // they find no scales
    problem.amax_epsilon = 2.5F;  // above some blocks' amax, below others'
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    compare(plan.get(), problem, {130, 264}, Fill::kNormal);
    compare(plan.get(), problem, {130, 264}, Fill::kZeros);
  });
}

// More than 2^31 elements: one panel of 1024 rows repeated, so that each panel of the output is
// known from one panel's reference.
TEST_F(QuantizeGpu, MoreThanTwoToThe31Elements) {
  constexpr std::int64_t kPanelRows = 1024, kPanels = 293, kCols = 7168;
  constexpr std::int64_t kRows = kPanelRows * kPanels;
  static_assert(kRows * kCols > (std::int64_t{1} << 31));
  for (const Granularity granularity :
       {Granularity::k1x128, Granularity::k128x128, Granularity::kPerRow}) {
    QuantizeProblem problem;
    problem.q.granularity = granularity;
    QuantizeCase panel = tests::make_case(problem, {kPanelRows, kCols}, Fill::kMixed);
    problem.cols = kCols;
    SCOPED_TRACE(to_text(Problem(problem)));
    auto x = DeviceBuffer::allocate(driver_, static_cast<std::size_t>(kRows * kCols * 2));
    auto q = DeviceBuffer::allocate(driver_, static_cast<std::size_t>(kRows * kCols));
    auto scale = DeviceBuffer::allocate(driver_, static_cast<std::size_t>(kRows * kCols / 128 * 4));
    if (!x || !q || !scale) GTEST_SKIP() << "the device has not the 6.5 GB this test takes";
    for (std::size_t p = 0; p < kPanels; ++p) {
      ASSERT_TRUE(x->upload(panel.x.data(), panel.x.size(), nullptr, p * panel.x.size()));
    }
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    octile_quantize_args args{};
    args.struct_size = sizeof(args);
    args.rows = kRows;
    args.x = x->pointer();
    args.q = q->pointer();
    args.scale = scale->pointer();
    run(plan.get(), args);
    if (HasFatalFailure()) return;
    const Status status = panel.run_reference();
    ASSERT_TRUE(status.has_value()) << status.error().message;
    expect_panels(*q, panel.row, kPanelRows * kCols, {0, 146, kPanels - 1});
  }
}

// The transposed copy of more than 2^31 elements: 16384 columns, each a row of 131088 codes.
TEST_F(QuantizeGpu, MoreThanTwoToThe31ElementsTransposed) {
  constexpr std::int64_t kPanelCols = 128, kPanels = 128, kRows = 131088;
  constexpr std::int64_t kCols = kPanelCols * kPanels;
  static_assert(kRows * kCols > (std::int64_t{1} << 31));
  QuantizeProblem problem;
  problem.output = QuantizeOutput::kTransposed;
  QuantizeCase panel = tests::make_case(problem, {kRows, kPanelCols}, Fill::kNormal);
  problem.cols = kCols;
  auto x = DeviceBuffer::allocate(driver_, static_cast<std::size_t>(kRows * kCols * 2));
  auto q = DeviceBuffer::allocate(driver_, static_cast<std::size_t>(kRows * kCols));
  auto scale = DeviceBuffer::allocate(driver_, static_cast<std::size_t>(kRows * kCols / 32));
  if (!x || !q || !scale) GTEST_SKIP() << "the device has not the 6.5 GB this test takes";
  std::vector<char> wide(static_cast<std::size_t>(kRows * kCols * 2));
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t p = 0; p < kPanels; ++p) {
      std::copy_n(panel.x.data() + r * kPanelCols * 2, kPanelCols * 2,
                  wide.data() + (r * kCols + p * kPanelCols) * 2);
    }
  }
  ASSERT_TRUE(x->upload(wide.data(), wide.size(), nullptr));
  const Plan plan = make_plan(problem);
  ASSERT_NE(plan, nullptr);
  octile_quantize_args args{};
  args.struct_size = sizeof(args);
  args.rows = kRows;
  args.x = x->pointer();
  args.q_transposed = q->pointer();
  args.scale_transposed = scale->pointer();
  run(plan.get(), args);
  if (HasFatalFailure()) return;
  const Status status = panel.run_reference();
  ASSERT_TRUE(status.has_value()) << status.error().message;
  expect_panels(*q, panel.transposed, kRows * kPanelCols, {0, 63, kPanels - 1});
}

// Every kernel, first passes included, leaves everything alone where the flag is set.
TEST_F(QuantizeGpu, ASetSkipFlagLeavesEverythingAlone) {
  const DeviceBuffer set = upload_value(std::uint32_t{1});
  for_each_covering_cell(300, [&](const QuantizeProblem& problem) {
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    const QuantizeCase before = tests::make_case(problem, {130, 300}, Fill::kNormal);
    QuantizeCase after = before;
    OnDevice d = place(plan.get(), before);
    d.args.skip = static_cast<const std::uint32_t*>(set.pointer());
    run(plan.get(), d.args);
    if (HasFatalFailure()) return;
    if (after.row.wanted) {
      download(d.q, after.row.q);
      download(d.scale, after.row.scale);
    }
    if (after.transposed.wanted) {
      download(d.q_transposed, after.transposed.q);
      download(d.scale_transposed, after.transposed.scale);
    }
    EXPECT_TRUE(tests::same_outputs(after, before)) << to_text(Problem(problem));
  });
}

// Many tensors in one launch, several steps, every choice of amax, against the host.
TEST_F(QuantizeGpu, ScaleUpdatesEqualTheReference) {
  constexpr std::size_t kTensors = 1000, kLength = 16;
  for (const DType fp8 : {DType::kE4M3, DType::kE5M2}) {
    for (const ScaleFormat format : {ScaleFormat::kF32, ScaleFormat::kF32Pow2}) {
      QuantizeProblem problem;
      problem.cols = 128;
      problem.q = {fp8, Granularity::kPerTensor, format};
      problem.policy = ScalePolicy::kDelayed;
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 1, OCTILE_PREPARE_DEFAULT), OCTILE_OK)
          << octile_last_error();
      for (const octile_amax_choice choice :
           {OCTILE_AMAX_LARGEST, OCTILE_AMAX_LATEST, OCTILE_AMAX_AVERAGE}) {
        std::vector<char> history =
            tests::make_input(DType::kFP32, kTensors * kLength, Fill::kMixed, 11);
        for (std::size_t i = 3; i < history.size(); i += 4) history[i] &= 0x7f;  // magnitudes
        std::vector<char> encode(kTensors * 4);
        std::fill_n(reinterpret_cast<float*>(encode.data()), kTensors, 1.0F);
        const DeviceBuffer on_history = upload(history), on_encode = upload(encode);
        octile_scale_update_args args{};
        args.struct_size = sizeof args;
        args.history = static_cast<float*>(on_history.pointer());
        args.encode = static_cast<float*>(on_encode.pointer());
        args.tensors = kTensors;
        args.length = kLength;
        args.choice = choice;
        args.margin = 1;
        args.average_share = 0.3F;
        for (int step = 0; step < 3; ++step) {
          ASSERT_EQ(octile_scale_update_run(plan.get(), &args, nullptr), OCTILE_OK)
              << octile_last_error();
          reference::update_scales(
              problem,
              {reinterpret_cast<float*>(history.data()), reinterpret_cast<float*>(encode.data()),
               kTensors, kLength, static_cast<reference::AmaxChoice>(choice), 1, 0.3F});
        }
        std::vector<char> got_history(history.size()), got_encode(encode.size());
        download(on_history, got_history);
        download(on_encode, got_encode);
        EXPECT_TRUE(got_history == history) << choice;
        EXPECT_TRUE(got_encode == encode) << choice;
        ++comparisons_;
      }
    }
  }
}

// The same workspace rules run after run: nothing is read before it is written.
TEST_F(QuantizeGpu, TheFirstPassIsOrderedBeforeTheCast) {
  for (const Granularity granularity : {Granularity::kPerTensor, Granularity::kPerRow}) {
    QuantizeProblem problem;
    problem.q.granularity = granularity;
    problem.output = QuantizeOutput::kBoth;
    problem.cols = 4096;
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    for (int i = 0; i < 8; ++i) compare(plan.get(), problem, {2048, 4096}, Fill::kOutlier);
  }
}

}  // namespace
}  // namespace octile
