// Runs the text of emitted GEMM kernels on the host, thread by thread and cluster by cluster
// (cluster.h), and compares D bit for bit with the reference.
#include <gtest/gtest.h>

#include "tests/emulation/emulation_test.h"
#include "tests/emulation/gemm_case.h"

namespace octile {
namespace {

using emulation::EmittedGemmVariant;
using emulation::GemmCall;

class GemmEmulation : public emulation::EmulationTest {};

TEST_F(GemmEmulation, EveryShapeEqualsTheReference) {
  std::uint64_t seed = 0;
  for (const EmittedGemmVariant& v : emulation::emitted_gemm_variants()) {
    const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
    for (GemmCall call :
         {GemmCall{1, 8, 16}, GemmCall{bm - 3, bn + 8, 128},
          GemmCall{2 * bm + 5, 2 * bn - 8, 5 * 128 + 16}, GemmCall{3, 3 * bn + 24, 7 * 128},
          GemmCall{3 * bm + 2, 296, 1024 + 48}}) {
      call.seed = ++seed;
      EXPECT_EQ(emulation::run_gemm(v, call), "") << to_text(v.config) << "\n" << to_text(call);
    }
  }
}

}  // namespace
}  // namespace octile
