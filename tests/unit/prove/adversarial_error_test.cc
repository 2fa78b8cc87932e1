// Operands on which the error of a promotion interval is measured.
#include "runtime/prove/gemm/adversarial_error.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "runtime/families/families.h"
#include "runtime/prove/gemm/check.h"
#include "runtime/reference/cast.h"

namespace octile::tuner {
namespace {

const DeviceSpec& h200() { return *find_device("h200"); }

TEST(AdversarialOperands, AreOfOneSignOrLoseWhatFollowsALargeProduct) {
  for (std::uint64_t bits = 0; bits < 8; ++bits) {
    for (const DType dtype : {DType::kE4M3, DType::kE5M2}) {
      const auto exact = [&](Adversary adversary, bool starts_sum) {
        const float value = adversarial_value(adversary, starts_sum, bits);
        EXPECT_EQ(reference::from_fp8(reference::to_fp8(value, dtype), dtype), value) << bits;
        return value;
      };
      EXPECT_GT(exact(Adversary::kOneSign, true), 0);
      EXPECT_GT(exact(Adversary::kOneSign, false), 0);
      const float large = exact(Adversary::kLargeThenSmall, true);
      const float small = exact(Adversary::kLargeThenSmall, false);
      EXPECT_GT(small, 1);
      EXPECT_LE(small * small, large * large * 0x1p-14F);
    }
  }
}

TEST(AdversarialOperands, AreFewRowsOfTheWholeSum) {
  GemmProblem problem;
  problem.n = 7168;
  problem.k = 2048;
  const GemmAtTokens forward = small_gemm({problem, 4096}, h200());
  EXPECT_LE(forward.problem.n, 256);
  EXPECT_LE(forward.tokens, 256);
  EXPECT_EQ(forward.problem.k, 2048);
  const auto gradient =
      parse_problem("gemm m=7168 n=2048 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128");
  ASSERT_TRUE(gradient);
  const GemmAtTokens small = small_gemm({*problem_as<GemmProblem>(*gradient), 4096}, h200());
  EXPECT_LE(small.problem.m, 256);
  EXPECT_LE(small.problem.n, 256);
  EXPECT_EQ(small.tokens, 4096);
}

// The window of the largest |D - R| / S is not that of the largest error.
TEST(AdversarialOperands, TheErrorIsTheLargestOfAllWindowsBesideTheRoundingOfD) {
  GemmProblem problem;
  problem.d.dtype = DType::kBF16;
  GemmCheck check;
  const auto add = [&](float d, double r, double s) {
    const std::uint16_t bits = reference::float_to_bf16(d);
    check_sample(problem, {{0, 1, 0, 1}, {r}, {s}, 128}, &bits, 1, check);
  };
  add(1.0F, 1.0 + 0x1p-8 + 0x1p-12, 1.0);
  EXPECT_DOUBLE_EQ(check.error, 0x1p-12);
  add(8.0F, 8.0 + 0x1p-6, 8.0);
  EXPECT_DOUBLE_EQ(check.error, 0x1p-12);
  add(1.0F, 1.0 + 0x1p-8 + 0x1p-10, 2.0);
  EXPECT_DOUBLE_EQ(check.error, 0x1p-11);
}

}  // namespace
}  // namespace octile::tuner
