// Passes our quantised operands unconverted to cuBLASLt's block-scaled matmul, which must give our
// D.
#include <gtest/gtest.h>

#include <string>

#include "generator/gemm/passes.h"
#include "tests/gpu/session.h"
#include "tools/peers/cublaslt.h"

namespace octile::tests {
namespace {

class Interoperation : public ::testing::Test {
 protected:
  void SetUp() override {
    if (GpuSession::get() == nullptr) GTEST_SKIP() << GpuSession::why();
    cublaslt_ = tools::CublasLt::open();
    if (!cublaslt_) GTEST_SKIP() << cublaslt_.error().message;
    library_ = tools::LibraryHandle::create();
    ASSERT_TRUE(library_) << library_.error().message;
    gpu_ = octile::GpuSession::open(GpuSession::get()->internals(), "cuda:0");
    ASSERT_TRUE(gpu_) << gpu_.error().message;
  }

  void expect_both_right(const GemmProblem& problem, std::int64_t tokens) {
    SCOPED_TRACE(to_text(problem) + " at " + std::to_string(tokens));
    const auto result = tools::check_interoperation(*library_, **gpu_, *cublaslt_, problem, tokens);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_TRUE(result->octile.ok) << result->octile.worst.to_text();
    EXPECT_TRUE(result->cublaslt.ok) << result->cublaslt.worst.to_text();
  }

 private:
  static Error not_opened() { return {ErrorCode::kInternal, "not opened yet"}; }
  decltype(tools::CublasLt::open()) cublaslt_ = tl::unexpected<Error>(not_opened());
  decltype(tools::LibraryHandle::create()) library_ = tl::unexpected<Error>(not_opened());
  Result<std::unique_ptr<octile::GpuSession>> gpu_ = tl::unexpected<Error>(not_opened());
};

TEST_F(Interoperation, CublasLtTakesOurOperandsAsTheyAre) {
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
    expect_both_right(problem, s.m);
  }
}

// The scales of both operands have a row for every 128 tokens, and D is added to.
TEST_F(Interoperation, CublasLtTakesTheOperandsOfAWeightGradient) {
  for (const char* recipe : {"blockwise", "blockwise_hybrid"}) {
    const GemmProblem problem =
        gemm_problem(*find_recipe(recipe), Pass::kWgrad, kDynamic, 576, 768);
    for (const std::int64_t tokens : {64, 1152, 2048}) expect_both_right(problem, tokens);
  }
}

// Scales per row (OUTER_VEC) and per tensor.
TEST_F(Interoperation, CublasLtTakesScalesForAllOfK) {
  for (const char* recipe : {"tensorwise", "rowwise"}) {
    for (const Pass pass : {Pass::kFprop, Pass::kDgrad}) {
      expect_both_right(gemm_problem(*find_recipe(recipe), pass, kDynamic, 576, 1152), 512);
    }
  }
}

}  // namespace
}  // namespace octile::tests
