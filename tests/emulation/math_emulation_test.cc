// The functions of templates/lib/{math,normal}.cuh, run on the host, give the same bits as the
// generator's.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "generator/core/elementary.h"
#include "tests/emulation/quantize_kernels.h"

namespace octile {
namespace {

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

TEST(MathEmulation, DeviceAndHostComputeTheSameBits) {
  std::int64_t different = 0;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    const bool equal = same(octile_exp(x), elementary::exp(x)) &&
                       same(octile_tanh(x), elementary::tanh(x)) &&
                       same(octile_sigmoid(x), elementary::sigmoid(x)) &&
                       same(octile_normcdf(x), elementary::normcdf(x)) &&
                       same(octile_normpdf(x), elementary::normpdf(x));
    different += equal ? 0 : 1;
  }
  EXPECT_EQ(different, 0);
}

// A refined reciprocal is correctly rounded even if the instruction gives a neighbour of it. The
// exceptions are a few values next to a tie; a GPU test compares them with the device's own table.
TEST(MathEmulation, ReciprocalsAreCorrectlyRounded) {
  std::int64_t wrong = 0, wrong_from_neighbours = 0;
  for (std::uint32_t i = 0; i < (1U << 23); ++i) {
    const float d = std::bit_cast<float>(0x3f800000U + i);
    const float exact = 1.0F / d;
    wrong += math::reciprocal(d, exact) == exact ? 0 : 1;
    for (const float seed : {std::nextafter(exact, 0.0F), std::nextafter(exact, 2.0F)}) {
      wrong_from_neighbours += math::reciprocal(d, seed) == exact ? 0 : 1;
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(wrong_from_neighbours, 40);
}

}  // namespace
}  // namespace octile
