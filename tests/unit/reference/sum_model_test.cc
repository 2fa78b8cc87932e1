// The tolerance of each device and matrix unit, held against models of the units' sums.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/core/sum_bits.h"
#include "runtime/prove/gemm/tolerance.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/synthetic.h"
#include "tests/support/cell_table.h"
#include "tests/support/fp8_values.h"
#include "tests/support/sum_model.h"

namespace octile {
namespace {

using tests::SumModel;

SumModel model_of(const DeviceSpec& device, MatrixUnit unit) {
  if (unit == MatrixUnit::kWgmma) return tests::kWgmmaSums;
  if (device.sm_major == 8) return tests::kAdaSums;
  return device.sm_major == 12 || unit == MatrixUnit::kTcgen05 ? tests::kBlackwellSums
                                                               : tests::kHalfSums;
}

// Random operands. Uniform codes have products that span eleven decades, all of one sign, normal
// numbers products of both signs. Magnitudes of normal numbers have products of one sign and about
// one size, which long sums cut most: each loses what is below 2^-bits of the sum so far.
enum class Draw { kUniformCodes, kNormal, kMagnitudes };

std::vector<float> values(std::int64_t k, Draw draw, std::uint64_t seed) {
  std::vector<float> all(static_cast<std::size_t>(k));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto code = static_cast<std::uint8_t>(reference::random_bits(seed, i) % 126 + 1);
    const double normal = 100 * reference::random_normal(seed, i);
    const auto x = static_cast<float>(draw == Draw::kMagnitudes ? std::fabs(normal) : normal);
    all[i] = draw == Draw::kUniformCodes
                 ? tests::fp8_values(DType::kE4M3)[code]
                 : reference::from_fp8(reference::to_fp8(x, DType::kE4M3), DType::kE4M3);
  }
  return all;
}

// Returns the largest c that sums of the model need.
double needed_c(const SumModel& model, int promote, std::int64_t k, Draw draw) {
  const std::int64_t interval = promote == kPromoteNone ? k : promote;
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    const std::vector<float> a = values(k, draw, 2 * seed);
    const std::vector<float> b = values(k, draw, 2 * seed + 1);
    double r = 0, s = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      r += double{a[i]} * double{b[i]};
      s += std::fabs(double{a[i]} * double{b[i]});
    }
    float sum = 0;
    for (std::int64_t at = 0; at < k; at += interval) {
      const auto first = static_cast<std::size_t>(at);
      const auto count = static_cast<std::size_t>(std::min(interval, k - at));
      sum += tests::add_products(0, std::span(a).subspan(first, count),
                                 std::span(b).subspan(first, count), model);
    }
    worst = std::max(worst, std::fabs(double{sum} - r) / (0x1p-13 * s));
  }
  return worst;
}

// Returns the largest c over the draws of codes and normal numbers, which the GPU suite has too.
double needed_c(const SumModel& model, int promote, std::int64_t k) {
  return std::max(needed_c(model, promote, k, Draw::kUniformCodes),
                  needed_c(model, promote, k, Draw::kNormal));
}

constexpr std::pair<int, std::int64_t> kSums[] = {
    {32, 2048},  {64, 2048},           {128, 2048},          {256, 2048},
    {512, 2048}, {kPromoteNone, 2048}, {kPromoteNone, 7168},
};

TEST(SumModels, AreWithinTheToleranceOfTheirUnitAndNotFarBelow) {
  for (const char* name : {"h200", "l40s", "rtx5090", "b200"}) {
    const DeviceSpec& device = *find_device(name);
    for (const MatrixUnit unit : device.units) {
      const SumModel model = model_of(device, unit);
      for (const auto& [promote, k] : kSums) {
        const double needed = needed_c(model, promote, k);
        const double allowed = reference::tolerance_c(promote, k, sum_precision(device, unit));
        EXPECT_LE(needed, allowed) << name << " " << name_of(unit) << " " << promote << " " << k;
        EXPECT_GE(needed, allowed / 40)
            << name << " " << name_of(unit) << " " << promote << " " << k;
      }
    }
  }
}

// A model cuts as often as the unit that the tolerance is of.
TEST(SumModels, HaveTheStepsOfTheirUnit) {
  for (const DeviceSpec& device : known_devices()) {
    for (const MatrixUnit unit : device.units) {
      const SumModel model = model_of(device, unit);
      EXPECT_EQ(sum_precision(device, unit), (SumPrecision{model.bits, static_cast<int>(model.k)}))
          << device.name << " " << name_of(unit);
    }
  }
}

// The tolerance of every unit but WGMMA takes sums of one sign and size too, and a quarter of it is
// left. That of WGMMA, which the GPU suite holds to its own operands, takes them up to intervals of
// 256 (docs/numerics.md).
TEST(SumModels, OfOneSignAreWithinTheToleranceOfAllUnitsButWgmma) {
  for (const char* name : {"l40s", "rtx5090", "b200"}) {
    const DeviceSpec& device = *find_device(name);
    for (const MatrixUnit unit : device.units) {
      for (const auto& [promote, k] : kSums) {
        const double needed = needed_c(model_of(device, unit), promote, k, Draw::kMagnitudes);
        const double allowed = reference::tolerance_c(promote, k, sum_precision(device, unit));
        EXPECT_LE(needed, 0.8 * allowed)
            << name << " " << name_of(unit) << " " << promote << " " << k;
      }
    }
  }
  for (const auto& [promote, k] : kSums) {
    const double needed = needed_c(tests::kWgmmaSums, promote, k, Draw::kMagnitudes);
    const bool is_long = promote == 512 || promote == kPromoteNone;
    EXPECT_EQ(needed > reference::tolerance_c(promote, k), is_long) << promote << " " << k;
  }
}

// Scales in the instruction move the exponents of 32 or 128 products together. So sums of scales up
// to 2^12 apart keep the tolerance of sums without scales.
TEST(SumModels, WithScalesInTheInstructionAreWithinTheTolerance) {
  const DeviceSpec& device = *find_device("rtx5090");
  for (const std::int64_t k : {2048, 7168}) {
    const double allowed =
        reference::tolerance_c(kPromoteNone, k, sum_precision(device, MatrixUnit::kMmaScaled));
    double worst = 0;
    for (const std::int64_t block : {32, 128}) {
      for (std::uint64_t seed = 0; seed < 24; ++seed) {
        const Draw draw = seed % 2 == 0 ? Draw::kUniformCodes : Draw::kNormal;
        const std::vector<float> a = values(k, draw, 2 * seed);
        const std::vector<float> b = values(k, draw, 2 * seed + 1);
        double r = 0, s = 0;
        float sum = 0;
        for (std::int64_t at = 0; at < k; at += 32) {
          const auto block_of = static_cast<std::uint64_t>(at / block);
          const int exponent =
              static_cast<int>(reference::random_bits(seed + 7, block_of) % 13) - 6;
          for (std::int64_t i = at; i < at + 32; ++i) {
            const auto index = static_cast<std::size_t>(i);
            const double product = std::ldexp(double{a[index]} * double{b[index]}, exponent);
            r += product;
            s += std::fabs(product);
          }
          const auto first = static_cast<std::size_t>(at);
          sum =
              tests::add_products(sum, std::span(a).subspan(first, 32),
                                  std::span(b).subspan(first, 32), tests::kBlackwellSums, exponent);
        }
        worst = std::max(worst, std::fabs(double{sum} - r) / (0x1p-13 * s));
      }
    }
    EXPECT_LE(worst, allowed) << k;
    EXPECT_GE(worst, allowed / 40) << k;
  }
}

// The rows of tests/cells/sums.txt, which the notebooks' model is held to as well
// (tests/python/test_notebooks.py): the sum of products of random finite codes of both signs.
TEST(SumModels, HaveTheSumsOfTheTable) {
  const auto table = tests::read_cells("sums.txt");
  ASSERT_TRUE(table.has_value()) << table.error().message;
  const auto rows = tests::split_cells(*table);
  EXPECT_GE(rows.size(), 20U);
  for (const tests::CellRow& row : rows) {
    ASSERT_EQ(row.size(), 5U) << "sums.txt:" << row[0].line;
    const SumModel model{"a row", std::stoi(row[0].text), std::stoul(row[1].text)};
    const auto terms = std::stoul(row[2].text);
    const auto seed = std::stoul(row[3].text);
    std::vector<float> a(terms), b(terms);
    for (std::size_t i = 0; i < terms; ++i) {
      for (std::vector<float>* of : {&a, &b}) {
        const std::uint64_t index =
            reference::random_bits(2 * seed + (of == &b ? 1U : 0U), i) % 252;
        (*of)[i] = tests::fp8_values(DType::kE4M3)[index < 126 ? index + 1 : index + 3];
      }
    }
    EXPECT_EQ(fmt::format("{:a}", tests::add_products(0, a, b, model)), row[4].text)
        << "sums.txt:" << row[0].line;
  }
}

// Kernels of a unit with 25 bits are checked so closely that one with 13 fails.
TEST(SumModels, OfFewBitsAreOutsideTheToleranceOfMany) {
  const SumPrecision sums = sum_precision(*find_device("h200"), MatrixUnit::kMma);
  for (const int promote : {32, 128, 512}) {
    const double allowed = reference::tolerance_c(promote, 2048, sums);
    EXPECT_LT(allowed, promote == 32 ? 0.07 : 0.05);
    EXPECT_GT(needed_c(tests::kAdaSums, promote, 2048), 10 * allowed) << promote;
    EXPECT_LT(needed_c(tests::kHalfSums, promote, 2048), allowed) << promote;
  }
}

}  // namespace
}  // namespace octile
