// Inverses of quantising on a GPU beyond what the cells of quantize_gpu_test.cc hold: more than
// 2^31 elements, and a round trip that needs no reference.
#include "tests/gpu/quantize_gpu.h"

namespace octile {
namespace {

class QuantizeInverseGpu : public QuantizeGpuFixture {};

// One panel of 1024 rows and its 8 rows of square blocks' scales, repeated.
TEST_F(QuantizeInverseGpu, DequantisesMoreThanTwoToThe31Elements) {
  constexpr std::int64_t kPanelRows = 1024, kPanels = 293, kCols = 7168;
  static_assert(kPanelRows * kPanels * kCols > (std::int64_t{1} << 31));
  QuantizeProblem problem;
  problem.operation = QuantizeOperation::kDequantize;
  problem.x = {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32};
  problem.q = {DType::kBF16};
  QuantizeCase panel = tests::make_case(problem, {kPanelRows, kCols}, Fill::kMixed);
  problem.cols = kCols;
  const Packed on{repeated(panel.x, kPanels),
                  repeated(panel.x_scale, kPanels),
                  allocate(kPanelRows * kPanels * kCols * 2),
                  {}};
  if (!on.x.pointer() || !on.x_scale.pointer() || !on.q.pointer()) {
    GTEST_SKIP() << "the device has not the 6.5 GB this test takes";
  }
  compare_panels(problem, kPanelRows * kPanels, on, panel, {0, 146, kPanels - 1});
}

// 16384 columns, each a row of 131088 codes: one panel of 128 columns, repeated along the rows.
TEST_F(QuantizeInverseGpu, TransposesMoreThanTwoToThe31Elements) {
  constexpr std::int64_t kPanelCols = 128, kPanels = 128, kRows = 131088;
  constexpr std::int64_t kCols = kPanelCols * kPanels;
  static_assert(kRows * kCols > (std::int64_t{1} << 31));
  QuantizeProblem problem;
  problem.operation = QuantizeOperation::kTranspose;
  problem.x = problem.q = {DType::kE4M3, Granularity::kPerTensor, ScaleFormat::kF32};
  problem.output = QuantizeOutput::kTransposed;
  QuantizeCase panel = tests::make_case(problem, {kRows, kPanelCols}, Fill::kBits);
  problem.cols = kCols;
  const Packed on{side_by_side(panel.x, kRows, kPanels), upload(panel.x_scale),
                  allocate(kRows * kCols), upload(panel.x_scale)};
  if (!on.x.pointer() || !on.q.pointer()) {
    GTEST_SKIP() << "the device has not the 4.3 GB this test takes";
  }
  compare_panels(problem, kRows, on, panel, {0, 63, kPanels - 1});
}

// A tensor that is transposed twice is as it was, codes of NaN and of -0 included.
TEST_F(QuantizeInverseGpu, TransposingTwiceChangesNothing) {
  constexpr std::int64_t kRows = 1024, kCols = 2048;
  QuantizeProblem problem;
  problem.operation = QuantizeOperation::kTranspose;
  problem.x = problem.q = {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32};
  problem.output = QuantizeOutput::kTransposed;
  const QuantizeCase c = tests::make_case(problem, {kRows, kCols}, Fill::kBits);
  const std::vector<char> codes(c.x.size(), QuantizeCase::kPoison);
  const std::vector<char> scales(c.x_scale.size(), QuantizeCase::kPoison);
  Packed there{upload(c.x), upload(c.x_scale), upload(codes), upload(scales)};
  problem.cols = kCols;
  run_packed(problem, kRows, there);
  const Packed back{std::move(there.q), std::move(there.scale), upload(codes), upload(scales)};
  problem.cols = kRows;
  run_packed(problem, kCols, back);
  std::vector<char> codes_back(codes.size()), scales_back(scales.size());
  download(back.q, codes_back);
  download(back.scale, scales_back);
  EXPECT_EQ(tests::first_difference(codes_back, c.x), "");
  EXPECT_EQ(tests::first_difference(scales_back, c.x_scale), "");
}

// Every launch is programmatic and keeps the stream's order by itself: two tensors in turn go
// through the same codes and scales, each into its own values, with nothing between the launches.
TEST_F(QuantizeInverseGpu, AChainOfLaunchesKeepsTheirOrder) {
  constexpr std::int64_t kRows = 3000, kCols = 2048;
  QuantizeProblem there;
  there.x = {DType::kBF16};
  there.q = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  there.cols = kCols;
  QuantizeProblem back;
  back.operation = QuantizeOperation::kDequantize;
  back.x = there.q;
  back.q = {DType::kBF16};
  back.cols = kCols;
  const Plan quantise = make_plan(there), dequantise = make_plan(back);
  ASSERT_TRUE(quantise != nullptr && dequantise != nullptr);
  const DeviceBuffer q = allocate(kRows * kCols), scale = allocate(kRows * (kCols / 128) * 4);
  std::array<DeviceBuffer, 2> x, y;
  std::array<std::vector<char>, 2> expected;
  const auto turn = [&](std::size_t i) {
    QuantizeArguments args;
    args.rows = kRows;
    args.x = x[i].pointer();
    args.q = q.pointer();
    args.scale = scale.pointer();
    if (tests::run_quantize(quantise.get(), args) != OCTILE_OK) return false;
    args.x = q.pointer();
    args.source_scales.x_scale = scale.pointer();
    args.q = y[i].pointer();
    args.scale = nullptr;
    return tests::run_quantize(dequantise.get(), args) == OCTILE_OK;
  };
  for (octile_plan* plan : {quantise.get(), dequantise.get()}) {
    ASSERT_EQ(octile_plan_prepare(plan, kRows, kRows, OCTILE_PREPARE_DEFAULT), OCTILE_OK)
        << octile_last_error();
  }
  for (const std::size_t i : {0U, 1U}) {
    QuantizeCase c = tests::make_case(there, {kRows, kCols}, i == 0 ? Fill::kMixed : Fill::kBits);
    x[i] = upload(c.x);
    y[i] = allocate(kRows * kCols * 2);
    expected[i].resize(static_cast<std::size_t>(kRows * kCols * 2));
    ASSERT_TRUE(turn(i)) << octile_last_error();
    download(y[i], expected[i]);
  }
  EXPECT_NE(expected[0], expected[1]);
  for (int repeat = 0; repeat < 20; ++repeat) {
    for (const std::size_t i : {0U, 1U}) ASSERT_TRUE(y[i].fill(0xff, nullptr));
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(turn(0) && turn(1)) << octile_last_error();
    for (const std::size_t i : {0U, 1U}) {
      std::vector<char> actual(expected[i].size());
      download(y[i], actual);
      ASSERT_EQ(tests::first_difference(actual, expected[i]), "") << "repeat " << repeat;
    }
  }
}

}  // namespace
}  // namespace octile
