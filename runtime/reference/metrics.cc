#include "runtime/reference/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace octile::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kBlock = 128;

struct BlockShape {
  std::int64_t rows, cols;
};

std::optional<BlockShape> block_shape(Granularity g, std::int64_t rows, std::int64_t cols) {
  switch (g) {
    case Granularity::kPerTensor:
      return BlockShape{rows, cols};
    case Granularity::kPerRow:
      return BlockShape{1, cols};
    case Granularity::k1x128:
      return BlockShape{1, kBlock};
    case Granularity::k128x128:
      return BlockShape{kBlock, kBlock};
    default:
      return std::nullopt;
  }
}

// Calls body(index) for the elements of the block at (row0, col0) of a [rows][cols] array.
template <typename Body>
void for_each_in_block(std::int64_t row0, std::int64_t col0, const BlockShape& block,
                       std::int64_t rows, std::int64_t cols, const Body& body) {
  for (std::int64_t r = row0; r < std::min(rows, row0 + block.rows); ++r) {
    for (std::int64_t c = col0; c < std::min(cols, col0 + block.cols); ++c) {
      body(static_cast<std::size_t>(r * cols + c));
    }
  }
}

}  // namespace

QuantizationLoss quantization_loss(std::span<const float> x, std::span<const float> restored,
                                   std::span<const std::uint8_t> counted) {
  double signal = 0;
  double noise = 0;
  std::int64_t nonzero = 0;
  std::int64_t flushed = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!counted.empty() && counted[i] == 0) continue;
    const double value = x[i];
    const double error = value - static_cast<double>(restored[i]);
    signal += value * value;
    noise += error * error;
    nonzero += x[i] != 0.0F ? 1 : 0;
    flushed += x[i] != 0.0F && restored[i] == 0.0F ? 1 : 0;
  }
  QuantizationLoss loss;
  loss.snr_db = noise == 0.0 ? kInfinity : 10.0 * std::log10(signal / noise);
  loss.flushed_share =
      nonzero == 0 ? 0.0 : static_cast<double>(flushed) / static_cast<double>(nonzero);
  return loss;
}

double calc_diff(std::span<const float> x, std::span<const float> y) {
  double products = 0;
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double a = x[i];
    const double b = y[i];
    products += a * b;
    squares += a * a + b * b;
  }
  return squares == 0.0 ? 0.0 : 1.0 - 2.0 * products / squares;
}

double relative_error(std::span<const float> x, std::span<const float> y) {
  double noise = 0;
  double signal = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = static_cast<double>(x[i]) - static_cast<double>(y[i]);
    noise += error * error;
    signal += static_cast<double>(y[i]) * static_cast<double>(y[i]);
  }
  return noise == 0.0 ? 0.0 : std::sqrt(noise / signal);
}

Result<std::vector<float>> integer_model(std::span<const float> x, std::int64_t rows,
                                         std::int64_t cols, Granularity granularity) {
  const auto block = block_shape(granularity, rows, cols);
  if (!block) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the integer model of granularity {}; tensor, row, 1x128 and 128x128 "
                            "are allowed",
                            name_of(granularity)));
  }
  const float largest = max_finite(DType::kE4M3);
  std::vector<float> out(x.size());
  for (std::int64_t row = 0; row < rows; row += block->rows) {
    for (std::int64_t col = 0; col < cols; col += block->cols) {
      float amax = 0;
      for_each_in_block(row, col, *block, rows, cols,
                        [&](std::size_t i) { amax = std::max(amax, std::fabs(x[i])); });
      const float scale = amax == 0.0F ? 1.0F : amax / largest;
      for_each_in_block(row, col, *block, rows, cols, [&](std::size_t i) {
        out[i] = std::clamp(std::nearbyint(x[i] / scale), -largest, largest) * scale;
      });
    }
  }
  return out;
}

}  // namespace octile::reference
