// The loss of quantising, against sums in fp64 over the codes and scales of the host quantiser.
#include "runtime/reference/quantize/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "generator/core/layout.h"
#include "generator/core/recipe.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/quantize/inspect.h"
#include "runtime/reference/scale_index.h"
#include "runtime/reference/synthetic.h"
#include "tests/support/quantize_call.h"

namespace octile::reference {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A matrix in memory, [rows][cols] fp32.
class FloatMatrix : public MatrixSource {
 public:
  FloatMatrix(std::int64_t rows, std::int64_t cols) : rows_(rows), cols_(cols) {
    for (std::int64_t i = 0; i < rows * cols; ++i)
      x.push_back(static_cast<float>(random_normal(7, static_cast<std::uint64_t>(i))) * 0.02F);
  }

  DType dtype() const override { return DType::kFP32; }
  std::int64_t rows() const override { return rows_; }
  std::int64_t cols() const override { return cols_; }
  std::size_t scratch_bytes(std::int64_t /*elements*/) const override { return 0; }
  Result<Panel> read(const PanelPlace& place, std::span<std::byte> /*scratch*/) const override {
    return Panel{x.data() + place.row * cols_ + place.col, cols_};
  }

  float& at(std::int64_t row, std::int64_t col) {
    return x.at(static_cast<std::size_t>(row * cols_ + col));
  }

  std::vector<float> x;

 private:
  std::int64_t rows_, cols_;
};

// The loss by its definition: block after block, element after element.
struct Plain {
  long double signal = 0, noise = 0, bulk_signal = 0, bulk_noise = 0;
  long double rest_signal = 0, rest_noise = 0;
  double worst = kInfinity;
  std::int64_t nonzero = 0, flushed = 0, saturated = 0, blocks = 0, set_by_one = 0;
};

double ratio_db(long double signal, long double noise) {
  return snr_db(static_cast<double>(signal), static_cast<double>(noise));
}

Plain plain_loss(FloatMatrix& matrix, const TensorType& type) {
  const std::int64_t rows = matrix.rows(), cols = matrix.cols();
  const auto layout = quantized_layout(type, rows, cols, cols).value();
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * cols));
  std::vector<std::byte> scales(static_cast<std::size_t>(layout.scales.bytes()));
  QuantizeProblem problem;
  problem.cols = cols;
  problem.x = {DType::kFP32};
  problem.q = type;
  QuantizeArguments args = tests::rowwise_args(rows, matrix.x.data(), codes.data(), scales.data());
  args.ldq = cols;
  EXPECT_TRUE(tests::run_reference(problem, args).has_value());
  const ScaleIndex index = packed_scale_index(type, rows, cols);
  const std::int64_t high = std::min(index.block_rows, rows);
  const std::int64_t wide = std::min(index.block_cols, cols);
  Plain all;
  for (std::int64_t row = 0; row < rows; row += high) {
    for (std::int64_t col = 0; col < cols; col += wide) {
      const double scale = load_scale(scales.data(), type.scale, index(row, col));
      double amax = 0;
      long double signal = 0, noise = 0, rest_signal = 0, rest_noise = 0;
      std::int64_t nonzero = 0, above = 0;
      const auto each = [&](const auto& use) {
        for (std::int64_t r = row; r < std::min(rows, row + high); ++r) {
          for (std::int64_t c = col; c < std::min(cols, col + wide); ++c) {
            const double x = matrix.at(r, c);
            if (std::isfinite(x) && x != 0) use(x, codes[static_cast<std::size_t>(r * cols + c)]);
          }
        }
      };
      each([&](double x, std::uint8_t) { amax = std::max(amax, std::fabs(x)); });
      each([&](double x, std::uint8_t code) {
        const double error = x - static_cast<double>(from_fp8(code, type.dtype)) * scale;
        const bool is_above = 2 * std::fabs(x) > amax;
        ++nonzero;
        all.flushed += (code & 0x7F) == 0 ? 1 : 0;
        all.saturated += std::fabs(x) > (type.dtype == DType::kE4M3 ? 464 : 61440) * scale ? 1 : 0;
        signal += x * x;
        noise += error * error;
        above += is_above ? 1 : 0;
        if (!is_above) rest_signal += x * x, rest_noise += error * error;
      });
      if (nonzero == 0) continue;
      const bool is_set = above == 1 && nonzero > 1;
      all.signal += signal;
      all.noise += noise;
      all.nonzero += nonzero;
      ++all.blocks;
      all.set_by_one += is_set ? 1 : 0;
      if (!is_set) all.bulk_signal += signal, all.bulk_noise += noise;
      all.rest_signal += is_set ? rest_signal : signal;
      all.rest_noise += is_set ? rest_noise : noise;
      all.worst =
          std::min(all.worst, is_set ? ratio_db(rest_signal, rest_noise) : ratio_db(signal, noise));
    }
  }
  return all;
}

void expect_close(double got, long double expected) {
  const auto wanted = static_cast<double>(expected);
  EXPECT_NEAR(got, wanted, 1e-12 * std::fabs(wanted));
}

void expect_plain(const Loss& got, const Plain& expected) {
  expect_close(got.signal, expected.signal);
  expect_close(got.noise, expected.noise);
  expect_close(got.rest_signal, expected.rest_signal);
  expect_close(got.rest_noise, expected.rest_noise);
  expect_close(got.bulk_signal, expected.bulk_signal);
  expect_close(got.bulk_noise, expected.bulk_noise);
  EXPECT_EQ(got.nonzero, expected.nonzero);
  EXPECT_EQ(got.flushed, expected.flushed);
  EXPECT_EQ(got.saturated, expected.saturated);
  EXPECT_EQ(got.blocks, expected.blocks);
  EXPECT_EQ(got.set_by_one, expected.set_by_one);
  ASSERT_FALSE(got.worst().empty());
  expect_close(got.worst().front().snr_db, expected.worst);
}

std::vector<TensorType> types_of_recipes() {
  std::vector<TensorType> types;
  for (const Recipe& recipe : recipes()) {
    for (const TensorType& type : {recipe.weight, recipe.activation, recipe.gradient}) {
      if (std::ranges::find(types, type) == types.end()) types.push_back(type);
    }
  }
  return types;
}

// Outliers, zeros, values that are flushed, and values that are not finite.
void spoil(FloatMatrix& matrix) {
  matrix.at(3, 5) = 900.0F;
  matrix.at(130, 200) = -3e5F;
  matrix.at(131, 0) = kNan;
  matrix.at(131, 1) = kInfinity;
  matrix.at(131, 2) = -kInfinity;
  matrix.at(139, 7) = 0.0F;
  for (std::int64_t col = 128; col < 256; ++col) matrix.at(9, col) = 0.0F;
}

TEST(Loss, IsTheSumOverBlocksForEveryTypeOfARecipe) {
  FloatMatrix matrix(150, 300);
  spoil(matrix);
  const std::vector<TensorType> types = types_of_recipes();
  const Inspection got = inspect(matrix, types).value();
  EXPECT_EQ(got.values.elements, 150 * 300);
  EXPECT_EQ(got.values.nans, 1);
  EXPECT_EQ(got.values.infinities, 2);
  EXPECT_EQ(got.values.zeros, 129);
  EXPECT_EQ(got.values.amax, 3e5F);
  for (std::size_t i = 0; i < types.size(); ++i) {
    SCOPED_TRACE(to_text(types[i]));
    expect_plain(got.losses[i], plain_loss(matrix, types[i]));
    EXPECT_EQ(got.losses[i].nonzero, got.values.nonzero());
  }
}

TEST(Loss, PanelsOfLongRowsAndOfSeveralThreadsGiveTheSameSums) {
  const std::vector<TensorType> types{
      {DType::kE4M3, Granularity::kPerRow, ScaleFormat::kF32},
      {DType::kE5M2, Granularity::kPerTensor, ScaleFormat::kF32Pow2},
      {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32}};
  FloatMatrix matrix(140, 32768 + 200);  // rows longer than a panel, in four panels
  spoil(matrix);
  const Inspection one = inspect(matrix, types, {.threads = 1}).value();
  const Inspection three = inspect(matrix, types, {.threads = 3}).value();
  for (std::size_t i = 0; i < types.size(); ++i) {
    SCOPED_TRACE(to_text(types[i]));
    expect_plain(one.losses[i], plain_loss(matrix, types[i]));
    EXPECT_EQ(one.losses[i].noise, three.losses[i].noise);
    EXPECT_EQ(one.losses[i].worst().back().snr_db, three.losses[i].worst().back().snr_db);
  }
  EXPECT_EQ(one.losses[0].blocks, 140);
  EXPECT_EQ(one.losses[1].blocks, 1);
}

TEST(Loss, TheWorstBlocksAreWhereTheDamageIs) {
  FloatMatrix matrix(256, 512);
  matrix.at(200, 300) = 1e5F;  // sets the scale of one block, and flushes the rest of it
  const TensorType type{DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32Pow2};
  const Inspection got = inspect(matrix, {{type}}).value();
  const Loss& loss = got.losses[0];
  ASSERT_EQ(loss.worst().size(), Loss::kMostWorst);
  const BlockLoss& worst = loss.worst().front();
  EXPECT_EQ(worst.row, 128);
  EXPECT_EQ(worst.col, 256);
  EXPECT_EQ(worst.rows, 128);
  EXPECT_EQ(worst.cols, 128);
  EXPECT_TRUE(worst.is_set_by_one);
  EXPECT_GT(worst.flushed_share, 0.99);
  EXPECT_LT(worst.snr_db, 1);
  EXPECT_EQ(worst.amax, 1e5F);
  EXPECT_EQ(loss.set_by_one, 1);
  EXPECT_GT(loss.bulk_snr(), 30);
  EXPECT_GT(loss.snr(), 30);
  EXPECT_LT(loss.rest_snr(), 10);  // an eighth of the matrix is flushed
  EXPECT_LE(loss.worst()[0].snr_db, loss.worst()[1].snr_db);
}

TEST(Loss, ASampleMeasuresAShareOfThePanels) {
  FloatMatrix matrix(4096, 1024);  // eight panels
  const TensorType type{DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32Pow2};
  const Inspection all = inspect(matrix, {{type}}).value();
  const Inspection some = inspect(matrix, {{type}}, {.sample = 0.25}).value();
  const Inspection least = inspect(matrix, {{type}}, {.sample = 1e-9}).value();
  EXPECT_EQ(some.values.elements * 4, all.values.elements);
  EXPECT_EQ(least.values.elements * 8, all.values.elements);
  EXPECT_NEAR(some.losses[0].snr(), all.losses[0].snr(), 0.1);
}

TEST(Loss, AMatrixWithoutAnErrorHasAnInfiniteSnr) {
  FloatMatrix matrix(2, 128);
  for (float& x : matrix.x) x = 0.5F;
  const TensorType type{DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32Pow2};
  const Inspection got = inspect(matrix, {{type}}).value();
  EXPECT_EQ(got.losses[0].snr(), kInfinity);
  EXPECT_EQ(got.losses[0].noise, 0);
}

TEST(Loss, ZerosAloneHaveNoSnr) {
  FloatMatrix matrix(2, 128);
  for (float& x : matrix.x) x = 0.0F;
  const TensorType type{DType::kE4M3, Granularity::kPerTensor, ScaleFormat::kF32};
  const Inspection got = inspect(matrix, {{type}}).value();
  EXPECT_TRUE(std::isnan(got.losses[0].snr()));
  EXPECT_EQ(got.losses[0].blocks, 0);
  EXPECT_EQ(got.values.zeros, 256);
  EXPECT_TRUE(got.losses[0].worst().empty());
}

// Panels that end within the file, or that cannot be read.
class Broken : public FloatMatrix {
 public:
  Broken() : FloatMatrix(2048, 1024) {}
  Result<Panel> read(const PanelPlace& place, std::span<std::byte> scratch) const override {
    if (place.row < 1024) return FloatMatrix::read(place, scratch);
    return fail(ErrorCode::kInvalidArgument, "row " + std::to_string(place.row));
  }
};

TEST(Loss, SaysWhyAPanelCannotBeRead) {
  const TensorType type{DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32Pow2};
  const auto got = inspect(Broken(), {{type}}, {.threads = 1});
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().message, "row 1024");
}

TEST(Loss, RefusesAnEmptyMatrix) {
  const auto got = inspect(FloatMatrix(0, 5), {});
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().message, "the matrix is 0 x 5; allowed: at least one row and one column");
}

}  // namespace
}  // namespace octile::reference
