// Inverses of quantising on a GPU beyond what the cells of quantize_gpu_test.cc hold: more than
// 2^31 elements, and a round trip that needs no reference.
#include "tests/gpu/quantize_gpu.h"

namespace octile {
namespace {

class QuantizeInverseGpu : public QuantizeGpuFixture {
 protected:
  // `bytes` of a device buffer filled with copies of `panel`.
  DeviceBuffer repeated(const std::vector<char>& panel, std::size_t copies) {
    auto buffer = DeviceBuffer::allocate(driver_, panel.size() * copies);
    if (!buffer) return {};
    for (std::size_t p = 0; p < copies; ++p) {
      EXPECT_TRUE(buffer->upload(panel.data(), panel.size(), nullptr, p * panel.size()));
    }
    return std::move(*buffer);
  }
};

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
  const DeviceBuffer x = repeated(panel.x, kPanels), x_scale = repeated(panel.x_scale, kPanels);
  auto q =
      DeviceBuffer::allocate(driver_, static_cast<std::size_t>(kPanelRows * kPanels * kCols * 2));
  if (x.pointer() == nullptr || !q) GTEST_SKIP() << "the device has not the 6.5 GB this test takes";
  const Plan plan = make_plan(problem);
  ASSERT_NE(plan, nullptr);
  octile_quantize_args args{};
  args.struct_size = sizeof(args);
  args.rows = kPanelRows * kPanels;
  args.x = x.pointer();
  args.x_scale = x_scale.pointer();
  args.q = q->pointer();
  run(plan.get(), args);
  if (HasFatalFailure()) return;
  const Status status = panel.run_reference();
  ASSERT_TRUE(status.has_value()) << status.error().message;
  expect_panels(*q, panel.row, kPanelRows * kCols * 2, {0, 146, kPanels - 1});
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
  std::vector<char> wide(static_cast<std::size_t>(kRows * kCols));
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t p = 0; p < kPanels; ++p) {
      std::copy_n(panel.x.data() + r * kPanelCols, kPanelCols,
                  wide.data() + r * kCols + p * kPanelCols);
    }
  }
  auto x = DeviceBuffer::allocate(driver_, wide.size());
  auto q = DeviceBuffer::allocate(driver_, wide.size());
  if (!x || !q) GTEST_SKIP() << "the device has not the 4.3 GB this test takes";
  ASSERT_TRUE(x->upload(wide.data(), wide.size(), nullptr));
  const DeviceBuffer x_scale = upload(panel.x_scale), scale = upload(panel.x_scale);
  const Plan plan = make_plan(problem);
  ASSERT_NE(plan, nullptr);
  octile_quantize_args args{};
  args.struct_size = sizeof(args);
  args.rows = kRows;
  args.x = x->pointer();
  args.x_scale = x_scale.pointer();
  args.q_transposed = q->pointer();
  args.scale_transposed = scale.pointer();
  run(plan.get(), args);
  if (HasFatalFailure()) return;
  const Status status = panel.run_reference();
  ASSERT_TRUE(status.has_value()) << status.error().message;
  expect_panels(*q, panel.transposed, kRows * kPanelCols, {0, 63, kPanels - 1});
}

// What is transposed twice is what it was, codes of NaN and of -0 included.
TEST_F(QuantizeInverseGpu, TransposingTwiceChangesNothing) {
  constexpr std::int64_t kRows = 1024, kCols = 2048;
  QuantizeProblem problem;
  problem.operation = QuantizeOperation::kTranspose;
  problem.x = problem.q = {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32};
  problem.output = QuantizeOutput::kTransposed;
  const QuantizeCase c = tests::make_case(problem, {kRows, kCols}, Fill::kBits);
  const DeviceBuffer x = upload(c.x), x_scale = upload(c.x_scale);
  const DeviceBuffer turned = upload(c.x), turned_scale = upload(c.x_scale);
  const DeviceBuffer back = upload(std::vector<char>(c.x.size(), QuantizeCase::kPoison));
  const DeviceBuffer back_scale =
      upload(std::vector<char>(c.x_scale.size(), QuantizeCase::kPoison));
  const auto transpose = [&](std::int64_t rows, std::int64_t cols, const DeviceBuffer& from,
                             const DeviceBuffer& from_scale, const DeviceBuffer& to,
                             const DeviceBuffer& to_scale) {
    problem.cols = cols;
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    octile_quantize_args args{};
    args.struct_size = sizeof(args);
    args.rows = rows;
    args.x = from.pointer();
    args.x_scale = from_scale.pointer();
    args.q_transposed = to.pointer();
    args.scale_transposed = to_scale.pointer();
    run(plan.get(), args);
  };
  transpose(kRows, kCols, x, x_scale, turned, turned_scale);
  transpose(kCols, kRows, turned, turned_scale, back, back_scale);
  std::vector<char> codes(c.x.size()), scales(c.x_scale.size());
  download(back, codes);
  download(back_scale, scales);
  EXPECT_TRUE(codes == c.x);
  EXPECT_TRUE(scales == c.x_scale);
}

}  // namespace
}  // namespace octile
