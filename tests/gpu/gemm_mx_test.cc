// GEMMs with MX scales, through plans: every pass, exponents far apart, and scales of NaN. The
// covering set of configurations is in gemm_outputs_test.cc.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "generator/gemm/passes.h"
#include "runtime/prove/gemm/tolerance.h"
#include "tests/gpu/gemm_case.h"

namespace octile::tests {
namespace {

class GemmMx : public GpuTest {};

// Returns the recipe's problem, with one copy of the weight for both directions if `square`.
GemmProblem mx_problem(Pass pass, bool square) {
  GemmProblem p = gemm_problem(*find_recipe("mxfp8"), pass, kDynamic, 576, 1024);
  if (square) p.b.granularity = Granularity::k32x32;
  return p;
}

TEST_F(GemmMx, EveryPassOfAnyTokenCount) {
  std::uint64_t seed = 26000;
  std::size_t cases = 0;
  for (const Pass pass : {Pass::kFprop, Pass::kDgrad, Pass::kWgrad}) {
    for (const bool square : {false, true}) {
      if (square && pass == Pass::kWgrad) continue;
      const GemmProblem problem = mx_problem(pass, square);
      for (const std::int64_t tokens : {0, 1, 77, 127, 129, 640, 4097}) {
        const GemmShape shape{m_at(problem, tokens), problem.n, k_at(problem, tokens)};
        GemmCase c(gpu(), problem, shape, ++seed, {.a = 16, .b = 32, .a_scale = 4, .b_scale = 8});
        c.run_plan(gpu().stream());
        c.judge(reference::tolerance_c(problem.promote, c.shape().k));
        ++cases;
        if (HasFailure()) FAIL() << to_text(problem) << " at " << tokens;
      }
    }
  }
  count_cases(cases, 0);
}

// Scales far from 1 whose products are not, in stages that are not usual
// (templates/gemm/scale/mx.cuh), and scales far apart.
TEST_F(GemmMx, ExponentsFarFromZero) {
  std::uint64_t seed = 26200;
  for (const bool square : {false, true}) {
    for (const CodeMode mode : {CodeMode::kQuantised, CodeMode::kUniform, CodeMode::kOneHuge}) {
      GemmProblem problem = mx_problem(Pass::kFprop, square);
      problem.d.dtype = DType::kFP32;
      const auto expect_right = [&](int a, int b) {
        GemmCase c(gpu(), problem, {300, 520, 1153}, ++seed, {}, mode, 30);
        if (a != b) {
          ASSERT_TRUE(c.a_scale().fill(static_cast<std::uint8_t>(a), gpu().stream()));
          ASSERT_TRUE(c.b_scale().fill(static_cast<std::uint8_t>(b), gpu().stream()));
        }
        c.run_plan(gpu().stream());
        // If random scales are up to 2^60 apart, a block of 32 may have nearly all of a sum, and
        // the error of its truncation with it (docs/numerics.md, Tolerance).
        const double c_of_blocks = reference::tolerance_c(problem.promote, c.shape().k);
        c.judge(a == b ? 2 * c_of_blocks : c_of_blocks);
      };
      for (const auto& [a, b] : {std::pair(0, 0), {207, 47}, {47, 207}, {0, 254}}) {
        expect_right(a, b);
        if (HasFailure()) FAIL() << to_text(problem) << " codes " << a << " and " << b;
      }
    }
  }
}

// A scale of NaN reaches its row, or its columns, and nothing else. In the padding behind the end
// of K it reaches nothing.
TEST_F(GemmMx, ScalesOfNan) {
  for (const bool square : {false, true}) {
    const GemmProblem problem = mx_problem(Pass::kFprop, square);
    GemmCase c(gpu(), problem, {133, 136, 293}, 26400, {.a_scale = 4, .b_scale = 4});
    const GemmArguments args = c.args();
    const std::uint8_t nan = 255;
    const auto write = [&](DeviceBuffer& scales, std::int64_t at) {
      EXPECT_TRUE(scales.upload(&nan, 1, gpu().stream(), static_cast<std::size_t>(at)));
    };
    write(c.a_scale(), 77 * args.a_scale_ld + 9);  // its row's last
    write(c.b_scale(), 3 * args.b_scale_ld + 4);
    for (std::int64_t row = 0; row < 133; ++row) write(c.a_scale(), row * args.a_scale_ld + 10);
    write(c.b_scale(), 2 * args.b_scale_ld + 11);
    gpu().synchronize();
    c.run_plan(gpu().stream());
    c.judge(reference::tolerance_c(problem.promote, c.shape().k));
    if (HasFailure()) FAIL() << to_text(problem);
  }
}

}  // namespace
}  // namespace octile::tests
