// mma.sync of an emulated cluster: ldmatrix and m16n8k32 of FP8, which the lanes of a warp call
// together.
//
// The values of ldmatrix come when the schedule says so, at the latest when they are multiplied.
// So a stage that is handed back before its fragments have been used gives a wrong result under
// some schedule. Until then a register holds a name of the load.
#pragma once

#include <array>
#include <cstdint>
#include <deque>

#include "generator/core/types.h"
#include "tests/support/fibers.h"
#include "tests/support/sum_model.h"

namespace octile::emulation {

// 8 rows of 16 bytes, which one register of all lanes holds: lane i has bytes 4 * (i % 4) to 4 * (i
// % 4) + 3 of row i / 4.
struct MatrixTile {
  std::array<std::uint8_t, 8 * 16> codes{};
  // Once it is multiplied: [row][k], and transposed.
  std::array<float, 8 * 16> values{}, transposed{};
};

// ldmatrix.x4 of one warp.
struct MatrixLoad {
  std::uint32_t number = 0;
  int lanes = 0;  // that have called it
  bool is_late = false, has_come = false, is_decoded = false;
  std::array<std::uint32_t, kWarp> address{};
  std::array<MatrixTile, 4> tiles{};  // one of each register
};

// The matrices that the lanes of a warp have loaded, and the multiplication at which they meet.
struct WarpMatrices {
  std::deque<MatrixLoad> loads;  // the last ones
  std::uint32_t issued[kWarp] = {};
  FiberBarrier meeting;
  std::array<float*, kWarp> d{};
  std::array<std::array<std::uint32_t, 6>, kWarp> operands{};  // a[0..3], b0, b1
  std::array<std::uint8_t, kWarp> scales_a{}, scales_b{};      // the byte that is chosen
};

// How the emulated cards sum. Exact sums are those that fp32 can hold.
extern tests::SumModel mma_sums;

// mma::load_x4. Checks that the rows of each 8x8 tile are in different banks.
void load_matrices(std::uint32_t (&registers)[4], std::uint32_t address);
// mma::multiply.
void multiply_fragments(DType of_a, DType of_b, float (&d)[4], const std::uint32_t (&a)[4],
                        std::uint32_t b0, std::uint32_t b1);
// mma::multiply_scaled: with byte `byte` of each lane's words of scales.
void multiply_scaled_fragments(DType of_a, DType of_b, float (&d)[4], const std::uint32_t (&a)[4],
                               std::uint32_t b0, std::uint32_t b1, std::uint32_t scales_a,
                               std::uint32_t scales_b, int byte);
// Returns what the calling lane's register of a load holds.
std::uint32_t loaded_value(std::uint32_t name);

}  // namespace octile::emulation
