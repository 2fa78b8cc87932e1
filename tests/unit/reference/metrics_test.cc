#include "runtime/reference/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "runtime/prove/gemm/tolerance.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/quantize/reference_dequantize.h"
#include "runtime/reference/synthetic.h"
#include "tests/support/quantize_call.h"

namespace octile::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(QuantizationLoss, MeasuresSignalNoiseAndFlushedValues) {
  const std::vector<float> x{3, 4, 0, 1};
  const std::vector<float> restored{3, 4, 0, 0};
  const QuantizationLoss loss = quantization_loss(x, restored);
  EXPECT_NEAR(loss.snr_db, 10 * std::log10(26.0), 1e-12);
  EXPECT_NEAR(loss.flushed_share, 1.0 / 3, 1e-12);  // zero itself is not flushed
  EXPECT_EQ(quantization_loss(x, x).snr_db, kInf);
  const std::vector<std::uint8_t> counted{1, 1, 1, 0};
  EXPECT_EQ(quantization_loss(x, restored, counted).snr_db, kInf);
  EXPECT_EQ(quantization_loss(x, restored, counted).flushed_share, 0.0);
}

TEST(CalcDiff, IsZeroForEqualsAndFollowsItsFormula) {
  const std::vector<float> x{1, 2}, y{2, 1};
  EXPECT_EQ(calc_diff(x, x), 0.0);
  EXPECT_NEAR(calc_diff(x, y), 1 - 2 * 4.0 / 10, 1e-12);
  EXPECT_NEAR(relative_error(x, y), std::sqrt(2.0 / 5), 1e-12);
}

TEST(IntegerModel, RoundsToIntegersOfTheBlocksScale) {
  const std::vector<float> x{448, 1.4F, -2.6F, 0.4F, 0, 0, 0, 0};
  const auto rows = integer_model(x, 2, 4, Granularity::kPerRow);
  ASSERT_TRUE(rows);
  EXPECT_EQ(*rows, (std::vector<float>{448, 1, -3, 0, 0, 0, 0, 0}));
  EXPECT_FALSE(integer_model(x, 2, 4, Granularity::k1x32));
}

TEST(UlpOf, FollowsTheBinadeDownToSubnormals) {
  EXPECT_EQ(ulp_of(DType::kBF16, 1.0), 0x1p-7);
  EXPECT_EQ(ulp_of(DType::kBF16, -1.99), 0x1p-7);
  EXPECT_EQ(ulp_of(DType::kFP16, 2.0), 0x1p-9);
  EXPECT_EQ(ulp_of(DType::kFP16, 0.0), 0x1p-24);
  EXPECT_EQ(ulp_of(DType::kFP32, 1e-45), 0x1p-149);
}

ToleranceReport check_one(double d, double r, double s, double c, DType dtype = DType::kFP32) {
  const auto value = static_cast<float>(d);
  const std::uint16_t half = dtype == DType::kBF16 ? float_to_bf16(value) : float_to_fp16(value);
  const void* data = dtype == DType::kFP32 ? static_cast<const void*>(&value) : &half;
  const std::vector<double> rs{r}, ss{s};
  return check_tolerance(data, dtype, 1, {0, 1, 0, 1}, rs, ss, c);
}

TEST(Tolerance, AllowsHalfAnUlpPlusTheShareOfS) {
  EXPECT_TRUE(check_one(1.0, 1.0 + 0x1p-8, 0, 0, DType::kBF16).ok);
  EXPECT_FALSE(check_one(1.0, 1.0 + 0x1.02p-8, 0, 0, DType::kBF16).ok);
  EXPECT_TRUE(check_one(1.0, 1.0 + 0x1.02p-8, 1, 1, DType::kBF16).ok);
  EXPECT_TRUE(check_one(1.0 + 0x1p-13, 1.0, 1, 1).ok);
  EXPECT_FALSE(check_one(1.0 + 0x1.1p-13, 1.0, 1, 1).ok);
  EXPECT_TRUE(check_one(0, 0, 0, 0).ok);
  EXPECT_FALSE(check_one(1e-30, 0, 0, 1).ok);
}

TEST(Tolerance, GrowsWithTheIntervalAndShrinksWithTheBitsOfSums) {
  EXPECT_EQ(tolerance_c(32, 7168), 4);
  EXPECT_EQ(tolerance_c(64, 7168), 8);
  EXPECT_EQ(tolerance_c(128, 7168), 12);
  EXPECT_EQ(tolerance_c(512, 7168), 48);
  EXPECT_EQ(tolerance_c(kPromoteNone, 7168), 672);
  EXPECT_EQ(tolerance_c(128, 7168, {13, 32}), tolerance_c(128, 7168));
  EXPECT_EQ(tolerance_c(128, 7168, {13, 16}), 2 * tolerance_c(128, 7168));
  EXPECT_EQ(tolerance_c(kPromoteNone, 7168, {25, 16}), 672 * 0x1p-12 + 0x1p-10 + 224 * 0x1p-10);
  EXPECT_EQ(tolerance_c(128, 7168, {25, 16}), 12 * 0x1p-12 + 56 * 0x1p-10 + 4 * 0x1p-10);
}

TEST(Tolerance, TreatsNonFiniteValuesByTheirClass) {
  EXPECT_FALSE(check_one(kNan, 1.0, 1, 1).ok);
  EXPECT_EQ(check_one(kNan, 1.0, 1, 1).worst_c, kInf);
  EXPECT_TRUE(check_one(kNan, kNan, 1, 1).ok);
  EXPECT_FALSE(check_one(1.0, kNan, 1, 1).ok);
  EXPECT_TRUE(check_one(-kInf, -kInf, kInf, 1).ok);
  EXPECT_FALSE(check_one(kInf, -kInf, kInf, 1).ok);
  // 65519 rounds to 65504 and 65521 to infinity: either side of the border is within half an ulp.
  EXPECT_TRUE(check_one(kInf, 65521, 0, 0, DType::kFP16).ok);
  EXPECT_TRUE(check_one(kInf, 65519, 70000, 0.1, DType::kFP16).ok);
  EXPECT_FALSE(check_one(kInf, 60000, 60000, 0.1, DType::kFP16).ok);
}

TEST(Tolerance, ReportsTheWorstElementOfItsWindow) {
  std::vector<float> d(6 * 10, 1.0F);
  d[4 * 10 + 7] = 1.5F;  // row 4, column 7
  d[0] = 99;             // outside the window
  const Fp64Window window{2, 4, 3, 6};
  const std::vector<double> r(24, 1.0), s(24, 2.0);
  const ToleranceReport report = check_tolerance(d.data(), DType::kFP32, 10, window, r, s, 1);
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(report.row, 4);
  EXPECT_EQ(report.col, 7);
  EXPECT_EQ(report.worst_error_over_s, 0.25);
  EXPECT_NEAR(report.worst_c, 0.25 * 0x1p13, 1e-3);
  EXPECT_NE(report.to_text().find("(4, 7)"), std::string::npos);
}

TEST(Synthetic, IsAFunctionOfSeedAndIndex) {
  EXPECT_EQ(synthetic_weight(20, 30, 5, 0.02, 1), synthetic_weight(20, 30, 5, 0.02, 3));
  EXPECT_NE(synthetic_weight(20, 30, 5), synthetic_weight(20, 30, 6));
  double sum = 0, squares = 0;
  constexpr int kDraws = 100000;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const double x = random_normal(9, i);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1, 0.02);
}

TEST(Synthetic, ActivationsHaveTheirOutliers) {
  ActivationSpec spec;
  spec.rows = 400;
  spec.cols = 5120;
  const std::vector<std::uint16_t> x = synthetic_activations(spec);
  const std::vector<std::uint8_t> bulk = bulk_of(spec);
  const auto energy = [&](std::int64_t col) {
    double sum = 0;
    for (std::int64_t row = 0; row < spec.rows; ++row) {
      const double v = bf16_to_float(x[static_cast<std::size_t>(row * spec.cols + col)]);
      sum += v * v;
    }
    return std::sqrt(sum / static_cast<double>(spec.rows));
  };
  EXPECT_NEAR(energy(spec.channel_30), 30, 4);
  EXPECT_NEAR(energy(spec.channel_50), 50, 6);
  EXPECT_NEAR(energy(17), 1, 0.2);
  const auto cell = static_cast<std::size_t>(spec.outlier_row * spec.cols + spec.outlier_col);
  EXPECT_EQ(bf16_to_float(x[cell]), 220.0F);
  EXPECT_EQ(bulk[cell], 0);
  std::int64_t left_out = 0;
  for (const std::uint8_t b : bulk) left_out += b == 0 ? 1 : 0;
  EXPECT_EQ(left_out, 2 * spec.rows + 1);
}

// The tables of docs/fp8-notes.md, "The error of quantisation".
class DocumentedLoss {
 public:
  explicit DocumentedLoss(float outlier) {
    spec_.outlier = outlier;
    bits_ = synthetic_activations(spec_);
    for (const std::uint16_t b : bits_) x_.push_back(bf16_to_float(b));
    bulk_ = bulk_of(spec_);
  }
  QuantizationLoss e4m3(Granularity g, bool bulk_only) const {
    QuantizeProblem p;
    p.cols = spec_.cols;
    p.q = {DType::kE4M3, g, ScaleFormat::kF32};
    std::vector<std::uint8_t> q(bits_.size());
    std::vector<float> scale(bits_.size() / 64), restored(bits_.size());
    EXPECT_TRUE(tests::run_reference(
        p, tests::rowwise_args(spec_.rows, bits_.data(), q.data(), scale.data())));
    EXPECT_TRUE(dequantize(p.q, spec_.rows, spec_.cols, q.data(), scale.data(), restored.data()));
    return loss(restored, bulk_only);
  }
  QuantizationLoss integers(Granularity g) const {
    return loss(*integer_model(x_, spec_.rows, spec_.cols, g), false);
  }

 private:
  QuantizationLoss loss(const std::vector<float>& restored, bool bulk_only) const {
    return quantization_loss(x_, restored, bulk_only ? bulk_ : std::vector<std::uint8_t>{});
  }
  ActivationSpec spec_;
  std::vector<std::uint16_t> bits_;
  std::vector<float> x_;
  std::vector<std::uint8_t> bulk_;
};

constexpr double kPrintedDb = 0.06;  // the tables print tenths

TEST(QuantizationLoss, AModerateOutlierCostsE4m3LittleAndTheIntegerModelMuch) {
  const DocumentedLoss loss(220.0F);
  EXPECT_NEAR(loss.e4m3(Granularity::kPerTensor, false).snr_db, 31.5, kPrintedDb);
  EXPECT_NEAR(loss.e4m3(Granularity::k128x128, false).snr_db, 31.7, kPrintedDb);
  EXPECT_NEAR(loss.e4m3(Granularity::k1x128, false).snr_db, 33.5, kPrintedDb);
  EXPECT_NEAR(loss.integers(Granularity::kPerTensor).snr_db, 18.7, kPrintedDb);
  EXPECT_NEAR(loss.integers(Granularity::k128x128).snr_db, 37.5, kPrintedDb);
  EXPECT_NEAR(loss.integers(Granularity::k1x128).snr_db, 47.1, kPrintedDb);
}

TEST(QuantizationLoss, AnEnormousOutlierCollapsesTheBulkUnderOneScale) {
  const DocumentedLoss loss(2e5F);
  const QuantizationLoss tensor = loss.e4m3(Granularity::kPerTensor, true);
  EXPECT_NEAR(tensor.snr_db, 12.0, kPrintedDb);
  EXPECT_NEAR(tensor.flushed_share, 0.336, 0.001);
  EXPECT_NEAR(loss.e4m3(Granularity::k128x128, true).snr_db, 30.75, kPrintedDb);
  EXPECT_NEAR(loss.e4m3(Granularity::k1x128, true).snr_db, 31.8, kPrintedDb);
}

}  // namespace
}  // namespace octile::reference
