// Emulated kernels of batches: D bit for bit as the host reference has it, and nothing else
// written.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "generator/families.h"
#include "tests/emulation/emulation_test.h"
#include "tests/emulation/gemm_case.h"
#include "tests/support/coverage.h"

namespace octile {
namespace {

using emulation::EmittedGemmVariant;
using emulation::EmulatedGemm;

class BatchEmulation : public emulation::EmulationTest {
 protected:
  // Runs a call of each kernel with tiles of bm x bn, by one schedule or, if all cases run, by four
  // times as many as `schedules`.
  template <typename MakeCall>
  void expect_right(const MakeCall& make_call, int schedules = 2, bool summed = false) {
    schedules = tests::runs_all_cases() ? 4 * schedules : 1;
    int compared = 0;
    for (const EmittedGemmVariant& v : emulation::emitted_gemm_variants()) {
      if (!is_batched(v.problem) || v.problem.sums_batch != summed) continue;
      EmulatedGemm call = make_call(v.config.block_m, v.config.block_n);
      for (int i = 0; i < schedules; ++i) {
        call.seed = ++seed_;
        EXPECT_EQ(emulation::run_gemm(v, call), "") << to_text(v.problem) << "\n"
                                                    << to_text(v.config) << "\n"
                                                    << to_text(call);
      }
      ++compared;
    }
    EXPECT_GT(compared, summed ? 5 : 10);
  }

 private:
  std::uint64_t seed_ = 0;
};

// m, n and K that fill no tile and no block, packed: the next matrix begins right behind.
TEST_F(BatchEmulation, TailsEndWithTheirMatrix) {
  expect_right([](std::int64_t bm, std::int64_t bn) {
    return EmulatedGemm{.m = bm + 3, .n = bn + 8, .k = 2 * 128 + 44, .clusters = 2, .batch = 3};
  });
  expect_right([](std::int64_t bm, std::int64_t bn) {
    return EmulatedGemm{.m = bm - 3, .n = bn - 8, .k = 77, .clusters = 3, .batch = 5};
  });
}

// The layout [tokens][heads][dim]: the next row of a matrix lies behind those of all others.
TEST_F(BatchEmulation, MatricesSideBySide) {
  expect_right([](std::int64_t bm, std::int64_t bn) {
    return EmulatedGemm{
        .m = 2 * bm + 5, .n = bn + 16, .k = 144, .clusters = 2, .batch = 3, .side_by_side = true};
  });
}

TEST_F(BatchEmulation, OneGemm) {
  expect_right([](std::int64_t bm, std::int64_t bn) {
    return EmulatedGemm{.m = 2 * bm + 1, .n = 2 * bn + 8, .k = 5 * 128, .batch = 1};
  });
}

// A thread block has tiles of many matrices.
TEST_F(BatchEmulation, ManyGemms) {
  expect_right(
      [](std::int64_t, std::int64_t) {
        return EmulatedGemm{.m = 5, .n = 16, .k = 136, .clusters = 2, .batch = 129};
      },
      1);
  expect_right(
      [](std::int64_t bm, std::int64_t bn) {
        return EmulatedGemm{.m = 2 * bm + 9,
                            .n = 3 * bn - 8,
                            .k = 3 * 128,
                            .clusters = 2,
                            .batch = 4,
                            .side_by_side = true};
      },
      1);
}

TEST_F(BatchEmulation, SharedWeights) {
  expect_right([](std::int64_t bm, std::int64_t bn) {
    return EmulatedGemm{
        .m = bm + 1, .n = bn + 8, .k = 300, .clusters = 2, .batch = 3, .shared_b = true};
  });
}

// K-blocks of one D walk through panels: side by side, which is one matrix, and one behind the
// other, whole and with a last K-block that is filled up.
TEST_F(BatchEmulation, PanelsOfASum) {
  for (const std::int64_t k : {std::int64_t{256}, std::int64_t{176}}) {
    for (const bool side_by_side : {false, true}) {
      expect_right(
          [&](std::int64_t bm, std::int64_t bn) {
            return EmulatedGemm{.m = bm + 4,
                                .n = bn + 8,
                                .k = k,
                                .clusters = 2,
                                .batch = 3,
                                .side_by_side = side_by_side};
          },
          1, true);
    }
  }
}

}  // namespace
}  // namespace octile
