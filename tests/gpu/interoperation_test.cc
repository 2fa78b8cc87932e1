// Passes our quantised operands unconverted to cuBLASLt's block-scaled matmul, which must give our
// D.
#include <gtest/gtest.h>

#include "generator/gemm/passes.h"
#include "tests/gpu/session.h"
#include "tools/bench/cublaslt.h"

namespace octile::tests {
namespace {

TEST(Interoperation, CublasLtTakesOurOperandsAsTheyAre) {
  if (GpuSession::get() == nullptr) GTEST_SKIP() << GpuSession::why();
  const auto cublaslt = tools::CublasLt::open();
  if (!cublaslt) GTEST_SKIP() << cublaslt.error().message;
  const auto library = tools::LibraryHandle::create();
  ASSERT_TRUE(library) << library.error().message;
  const auto gpu = octile::GpuSession::open("cuda:0");
  ASSERT_TRUE(gpu) << gpu.error().message;
  struct Shape {
    std::int64_t m, n, k;
  };
  // k / 128 = 9, 57 and 56, 16: with and without the scales' padding; a k tail is not theirs to
  // take.
  for (const Shape s : {Shape{64, 576, 1152}, Shape{128, 2112, 7296}, Shape{64, 4096, 7168},
                        Shape{512, 768, 2048}}) {
    GemmProblem problem;
    problem.n = s.n;
    problem.k = s.k;
    const auto result = tools::check_interoperation(*library, **gpu, *cublaslt, problem, s.m);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_TRUE(result->ours.ok) << s.m << "x" << s.n << "x" << s.k << ": "
                                 << result->ours.worst.to_text();
    EXPECT_TRUE(result->theirs.ok)
        << s.m << "x" << s.n << "x" << s.k << ": " << result->theirs.worst.to_text();
  }
}

// The scales of both operands have a row for every 128 tokens, and D is added to.
TEST(Interoperation, CublasLtTakesTheOperandsOfAWeightGradient) {
  if (GpuSession::get() == nullptr) GTEST_SKIP() << GpuSession::why();
  const auto cublaslt = tools::CublasLt::open();
  if (!cublaslt) GTEST_SKIP() << cublaslt.error().message;
  const auto library = tools::LibraryHandle::create();
  ASSERT_TRUE(library) << library.error().message;
  const auto gpu = octile::GpuSession::open("cuda:0");
  ASSERT_TRUE(gpu) << gpu.error().message;
  for (const char* recipe : {"blockwise", "blockwise_hybrid"}) {
    for (const std::int64_t tokens : {64, 1152, 2048}) {
      const GemmProblem problem =
          gemm_problem(*find_recipe(recipe), Pass::kWgrad, kDynamic, 576, 768);
      const auto result = tools::check_interoperation(*library, **gpu, *cublaslt, problem, tokens);
      ASSERT_TRUE(result) << result.error().message;
      EXPECT_TRUE(result->ours.ok)
          << recipe << " at " << tokens << ": " << result->ours.worst.to_text();
      EXPECT_TRUE(result->theirs.ok)
          << recipe << " at " << tokens << ": " << result->theirs.worst.to_text();
    }
  }
}

}  // namespace
}  // namespace octile::tests
