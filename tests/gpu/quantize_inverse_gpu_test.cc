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

// What is transposed twice is what it was, codes of NaN and of -0 included.
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

}  // namespace
}  // namespace octile
