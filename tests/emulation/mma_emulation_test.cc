// The emulation of ldmatrix and mma.sync alone, with the addresses of the GEMM's consumer: what a
// lane's registers hold by the PTX ISA, when their values come, and how sums are cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "runtime/reference/cast.h"
#include "tests/emulation/cluster.h"
#include "tests/emulation/emulation_test.h"
#include "tests/emulation/gemm_kernels.h"

namespace octile {
namespace {

using emulation::kSharedBase;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr u32 kA = kSharedBase, kB = kSharedBase + 16 * 128;  // 16 rows of 128 bytes each
constexpr int kSmem = 2 * 16 * 128;
constexpr int kK = 128;

// Element (row, k) of an operand, a code of a small integer.
float value_of(u32 operand, int row, int k) {
  return static_cast<float>((row * 7 + k * (operand == kA ? 5 : 3) + row * k) % 9 - 4);
}

// Writes both operands in the 128-byte swizzle.
void fill(DType type_a, DType type_b) {
  for (const u32 operand : {kA, kB}) {
    for (int row = 0; row < 16; ++row) {
      for (int k = 0; k < kK; ++k) {
        const u32 unit = static_cast<u32>(k / 16 ^ row % 8);
        const auto code =
            reference::to_fp8(value_of(operand, row, k), operand == kA ? type_a : type_b);
        store_shared(operand + static_cast<u32>(row) * 128 + unit * 16 + static_cast<u32>(k % 16),
                     code);
      }
    }
  }
}

u32 lane() { return threadIdx.x % 32; }
u32 address_of_a() { return kA + lane() % 16 * 128 + (lane() / 16 ^ lane() % 8) * 16; }
u32 address_of_b() {
  return kB + (lane() % 8 + lane() / 16 * 8) * 128 + (lane() / 8 % 2 ^ lane() % 8) * 16;
}

std::vector<std::string> run(std::uint64_t seed, const std::function<void()>& body) {
  emulation::ClusterLaunch launch;
  launch.threads = 32;
  launch.smem_bytes = kSmem;
  launch.seed = seed;
  return emulation::run_clusters(launch, body);
}

class MmaEmulation : public emulation::EmulationTest {
 protected:
  // D[16][16] of all K, as one warp computes it.
  using D = std::array<std::array<float, 16>, 16>;
  static void put(D& d, int half, const float (&sums)[4]) {
    for (u32 i = 0; i < 4; ++i) {
      const u32 column = 8 * static_cast<u32>(half) + lane() % 4 * 2 + i % 2;
      d[lane() / 4 + i / 2 * 8][column] = sums[i];
    }
  }

  template <mma::Element kTypeA, mma::Element kTypeB>
  static void expect_product() {
    const auto name = [](mma::Element e) { return mma::type_of(e); };
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      D d{};
      EXPECT_THAT(run(seed,
                      [&] {
                        if (lane() == 0) fill(name(kTypeA), name(kTypeB));
                        __syncwarp();
                        float sums[2][4] = {};
                        for (u32 s = 0; s < 4; ++s) {
                          u32 a[4], b[4];
                          mma::load_x4(a, address_of_a() ^ 32 * s);
                          mma::load_x4(b, address_of_b() ^ 32 * s);
                          mma::multiply<kTypeA, kTypeB>(sums[0], a, b[0], b[1]);
                          mma::multiply<kTypeA, kTypeB>(sums[1], a, b[2], b[3]);
                        }
                        put(d, 0, sums[0]);
                        put(d, 1, sums[1]);
                      }),
                  IsEmpty());
      for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < 16; ++column) {
          float sum = 0;
          for (int k = 0; k < kK; ++k) sum += value_of(kA, row, k) * value_of(kB, column, k);
          EXPECT_EQ(d[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)], sum)
              << row << " " << column;
        }
      }
    }
  }
};

TEST_F(MmaEmulation, TheProductOfTwoTilesIsTheHosts) {
  expect_product<mma::kE4M3, mma::kE4M3>();
  expect_product<mma::kE4M3, mma::kE5M2>();
  expect_product<mma::kE5M2, mma::kE4M3>();
  expect_product<mma::kE5M2, mma::kE5M2>();
}

// PTX ISA, "ldmatrix": register j of lane i is 4 bytes of row i / 4 of tile j, of which lanes 8 * j
// to 8 * j + 7 gave the addresses.
TEST_F(MmaEmulation, ALaneHasFourBytesOfARowOfEachTile) {
  EXPECT_THAT(
      run(0,
          [&] {
            for (u32 i = lane(); i < kSmem; i += 32) {
              store_shared(kSharedBase + i, static_cast<u8>(i / 4 % 251));
            }
            __syncwarp();
            u32 registers[4];
            mma::load_x4(registers, kSharedBase + 16 * lane());
            __syncwarp();
            for (u32 j = 0; j < 4; ++j) {
              EXPECT_EQ(emulation::loaded_value(registers[j]), 0x01010101U * (32 * j + lane()))
                  << lane();
            }
          }),
      IsEmpty());
}

// PTX ISA, "Block Scaling for mma.sync", scale_vec::1X: the first two lanes of a quad give the
// scales of A's rows lane / 4 and lane / 4 + 8, and the first that of B's column lane / 4, in the
// byte that is chosen. Other lanes and bytes are not read.
TEST_F(MmaEmulation, ScalesComeFromLanesOfTheirRowAndColumn) {
  const auto code_of_row = [](u32 row) { return 120 + row * 3 % 13; };
  const auto code_of_column = [](u32 column) { return 125 + column * 5 % 7; };
  D d{};
  EXPECT_THAT(
      run(0,
          [&] {
            if (lane() == 0) fill(DType::kE4M3, DType::kE4M3);
            __syncwarp();
            u32 a[4], b[4];
            mma::load_x4(a, address_of_a());
            mma::load_x4(b, address_of_b());
            const u32 of_row = lane() % 4 < 2 ? code_of_row(lane() / 4 + lane() % 2 * 8) : 9;
            const u32 of_column = lane() % 4 == 0 ? code_of_column(lane() / 4) : 9;
            float sums[4] = {};
            mma::multiply_scaled<mma::kE4M3, mma::kE4M3, 2>(
                sums, a, b[0], b[1], of_row << 16 | 0x77007777U, of_column << 16 | 0x66006666U);
            put(d, 0, sums);
          }),
      IsEmpty());
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      float sum = 0;
      for (int k = 0; k < 32; ++k) sum += value_of(kA, row, k) * value_of(kB, column, k);
      const auto exponent = static_cast<int>(code_of_row(static_cast<u32>(row)) +
                                             code_of_column(static_cast<u32>(column))) -
                            2 * 127;
      EXPECT_EQ(d[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)],
                std::ldexp(sum, exponent));
    }
  }
}

// 255 is NaN, of a row or a column and of nothing else.
TEST_F(MmaEmulation, AScaleOfCode255IsNan) {
  for (const bool of_a : {true, false}) {
    D d{};
    run(0, [&] {
      if (lane() == 0) fill(DType::kE4M3, DType::kE4M3);
      __syncwarp();
      u32 a[4], b[4];
      mma::load_x4(a, address_of_a());
      mma::load_x4(b, address_of_b());
      float sums[4] = {};
      const u32 scale = lane() == 12 ? 255 : 127;  // row and column 3
      mma::multiply_scaled<mma::kE4M3, mma::kE4M3, 0>(sums, a, b[0], b[1], of_a ? scale : 127,
                                                      of_a ? 127 : scale);
      put(d, 0, sums);
    });
    for (std::size_t row = 0; row < 16; ++row) {
      for (std::size_t column = 0; column < 8; ++column)
        EXPECT_EQ(std::isnan(d[row][column]), (of_a ? row : column) == 3) << row << " " << column;
    }
  }
}

// The first half of K is in a[0], a[1] and b0, the second in a[2], a[3] and b1.
TEST_F(MmaEmulation, HalvesOfKMeetTheirOwn) {
  D d{};
  run(0, [&] {
    if (lane() == 0) fill(DType::kE4M3, DType::kE4M3);
    __syncwarp();
    u32 a[4], b[4];
    float sums[4] = {1, 2, 3, 4};
    mma::load_x4(a, address_of_a());
    mma::load_x4(b, address_of_b());
    mma::multiply<mma::kE4M3, mma::kE4M3>(sums, a, b[1], b[0]);
    put(d, 0, sums);
  });
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      auto sum = static_cast<float>(1 + column % 2 + row / 8 * 2);
      for (int k = 0; k < 32; ++k) sum += value_of(kA, row, k) * value_of(kB, column, k ^ 16);
      EXPECT_EQ(d[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)], sum);
    }
  }
}

TEST_F(MmaEmulation, RowsInOneBankAreAFault) {
  const auto faults = run(0, [&] {
    u32 a[4];
    mma::load_x4(a, kA + lane() % 16 * 128 + lane() / 16 * 16);
    emulation::release();
    emulation::loaded_value(a[0]);
  });
  ASSERT_FALSE(faults.empty());
  EXPECT_THAT(faults[0], HasSubstr("rows of ldmatrix meet in a bank"));
}

TEST_F(MmaEmulation, AFragmentThatWasNotLoadedIsAFault) {
  const auto faults = run(0, [&] {
    const u32 a[4] = {1, 2, 3, 4};
    float sums[4] = {};
    mma::multiply<mma::kE4M3, mma::kE4M3>(sums, a, 5, 6);
  });
  ASSERT_FALSE(faults.empty());
  EXPECT_THAT(faults[0], HasSubstr("a fragment that ldmatrix has not loaded"));
}

// A stage that is written again before its fragments were multiplied changes the sums of some
// schedules.
TEST_F(MmaEmulation, ValuesMayComeAsLateAsTheyAreUsed) {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    float sum = 0;
    EXPECT_THAT(run(seed,
                    [&] {
                      if (lane() == 0) fill(DType::kE4M3, DType::kE4M3);
                      __syncwarp();
                      u32 a[4], b[4];
                      mma::load_x4(a, address_of_a());
                      mma::load_x4(b, address_of_b());
                      __syncwarp();
                      for (u32 i = lane(); i < kSmem; i += 32) store_shared(kA + i, u8{0});
                      __syncwarp();
                      float sums[4] = {};
                      mma::multiply<mma::kE4M3, mma::kE4M3>(sums, a, b[0], b[1]);
                      if (lane() == 5) sum = sums[0];
                    }),
                IsEmpty());
    wrong += sum == 0.0F ? 1 : 0;
  }
  EXPECT_GT(wrong, 2);
  EXPECT_LT(wrong, 10);
}

// 448 * 448 and 1: what 13 bits behind the point keep of it, and what 25 do.
TEST_F(MmaEmulation, SumsAreCutAsTheCardCutsThem) {
  const auto sum_of = [&](const tests::SumModel& model) {
    emulation::mma_sums = model;
    float sum = 0;
    run(0, [&] {
      for (u32 i = lane(); i < kSmem; i += 32) {
        store_shared(kA + i, reference::to_fp8(1.0F, DType::kE4M3));
      }
      __syncwarp();
      if (lane() == 0) {
        store_shared(kA, reference::to_fp8(448.0F, DType::kE4M3));
        store_shared(kB, reference::to_fp8(448.0F, DType::kE4M3));
      }
      __syncwarp();
      u32 a[4], b[4];
      float sums[4] = {};
      mma::load_x4(a, address_of_a());
      mma::load_x4(b, address_of_b());
      mma::multiply<mma::kE4M3, mma::kE4M3>(sums, a, b[0], b[1]);
      if (lane() == 0) sum = sums[0];
    });
    emulation::mma_sums = tests::kExactSums;
    return sum;
  };
  constexpr float kLarge = 448.0F * 448.0F;
  EXPECT_EQ(sum_of(tests::kExactSums), kLarge + 31);
  EXPECT_EQ(sum_of(tests::kBlackwellSums), kLarge + 31);
  EXPECT_EQ(sum_of(tests::kHalfSums), kLarge + 31);
  // The exponents of 448 are 8, so 16 of a product's: 2^(16 - 13) is the least that remains, which
  // 31 ones, each alone, are not. The 16 behind the first 16 meet a sum of exponent 17.
  EXPECT_EQ(sum_of(tests::kWgmmaSums), kLarge);
  EXPECT_EQ(sum_of(tests::kAdaSums), kLarge);
}

}  // namespace
}  // namespace octile
