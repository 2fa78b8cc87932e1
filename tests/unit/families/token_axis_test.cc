// A GEMM whose token count lies in k: weight gradients. No kernel is built for one yet, so the
// pieces of a plan are tested one by one: checks, the host executor and what a launch is resolved
// to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "generator/core/device_spec.h"
#include "runtime/families/families.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/gemm/reference.h"
#include "runtime/reference/synthetic.h"

namespace octile {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kM = 24, kN = 16;

GemmProblem weight_gradient(bool accumulate = false) {
  GemmProblem problem;
  problem.m = kM;
  problem.n = kN;
  problem.k = kDynamic;
  problem.b.granularity = Granularity::k1x128;
  problem.d.dtype = DType::kFP32;
  problem.accumulate = accumulate;
  return problem;
}

// Packed operands of this number of tokens, as transposing quantisers write them: rows padded to 16
// bytes.
struct Operands {
  explicit Operands(std::int64_t tokens)
      : a(codes(kM, tokens, 1)),
        b(codes(kN, tokens, 2)),
        a_scale(scales(kM, tokens, 3)),
        b_scale(scales(kN, tokens, 4)),
        d(kM * kN, -1.0F) {
    args.tokens = tokens;
    args.a = aligned(a);
    args.a_scale = aligned(a_scale);
    args.b = aligned(b);
    args.b_scale = aligned(b_scale);
    args.d = aligned(d);
  }

  std::vector<float> result() const {
    const auto* first = static_cast<const float*>(args.d);
    return {first, first + kM * kN};
  }

  std::vector<std::uint8_t> a, b;
  std::vector<float> a_scale, b_scale, d;
  GemmArguments args;

 private:
  // Vectors have room for an aligned start.
  template <typename T>
  static T* aligned(std::vector<T>& values) {
    values.resize(values.size() + 16, values.empty() ? T() : values.back());
    auto address = reinterpret_cast<std::uintptr_t>(values.data());
    T* start = reinterpret_cast<T*>(round_up(static_cast<std::int64_t>(address), 16));
    for (std::size_t i = values.size() - 16; i-- > 0;) start[i] = values[i];
    return start;
  }
  static std::vector<std::uint8_t> codes(std::int64_t rows, std::int64_t k, std::uint64_t seed) {
    const std::int64_t ld = round_up(k, 16);
    std::vector<std::uint8_t> all(static_cast<std::size_t>(rows * ld), 0x7F);  // NaN, never read
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < k; ++i) {
        const double x = reference::random_normal(seed, static_cast<std::uint64_t>(row * k + i));
        all[static_cast<std::size_t>(row * ld + i)] =
            reference::to_fp8(static_cast<float>(40 * x), DType::kE4M3);
      }
    }
    return all;
  }
  static std::vector<float> scales(std::int64_t rows, std::int64_t k, std::uint64_t seed) {
    std::vector<float> all(static_cast<std::size_t>(ceil_div(k, 128) * round_up(rows, 4)));
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<float>(0.001 + reference::random_uniform(seed, i));
    return all;
  }
};

TEST(TokensInK, AreNamedAndChecked) {
  const TokenAxis axis = token_axis(weight_gradient());
  EXPECT_EQ(axis.dimension, "k");
  EXPECT_EQ(axis.name, "tokens");
  EXPECT_TRUE(check_tokens(axis, axis.name, 100));
  EXPECT_THAT(check_tokens(axis, axis.name, -1).error().message,
              HasSubstr("tokens is -1; allowed: 0 to 2147483647"));
  const TokenAxis stated = token_axis(with_tokens(weight_gradient(), 64));
  // Without a dynamic dimension the count is m again.
  EXPECT_EQ(stated.dimension, "m");
  EXPECT_THAT(check_tokens(stated, stated.name, 64).error().message,
              HasSubstr("tokens is 64; allowed: 24, because the plan's problem states m=24"));
}

TEST(TokensInK, LeadingDimensionsAreThoseOfATransposingQuantiser) {
  Operands operands(20);
  const auto call = complete(weight_gradient(), operands.args);
  ASSERT_TRUE(call);
  EXPECT_EQ(call->lda, 32);
  EXPECT_EQ(call->ldb, 32);
  EXPECT_EQ(call->ldd, kN);
  EXPECT_EQ(call->a_scale_ld, round_up(kM, 4));
  EXPECT_EQ(call->b_scale_ld, round_up(kN, 4));
  operands.args.ldb = 24;
  EXPECT_THAT(complete(weight_gradient(), operands.args).error().message,
              HasSubstr("ldb is 24; allowed: 0 (meaning 32) or a multiple of 16 from 20 on"));
}

TEST(TokensInK, TheHostExecutorSumsOverThem) {
  for (const std::int64_t tokens : {1, 16, 100, 128, 300}) {
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(tokens);
      Operands dynamic(tokens), stated(tokens);
      const GemmProblem problem = weight_gradient(accumulate);
      const auto call = complete(problem, dynamic.args);
      ASSERT_TRUE(call);
      ASSERT_EQ(call->work, GemmCall::Work::kProduct);
      ASSERT_TRUE(run_on_host(problem, *call));

      GemmProblem fixed = problem;
      fixed.k = tokens;
      GemmCall args = *call;
      args.a = stated.args.a;
      args.b = stated.args.b;
      args.a_scale = stated.args.a_scale;
      args.b_scale = stated.args.b_scale;
      args.d = stated.args.d;
      ASSERT_TRUE(reference::gemm(fixed, args));
      EXPECT_EQ(dynamic.result(), stated.result());
      EXPECT_NE(dynamic.result(), std::vector<float>(kM * kN, -1.0F));
    }
  }
}

TEST(TokensInK, NoTokensAreAnEmptySum) {
  Operands operands(0);
  operands.args.a = operands.args.b = nullptr;
  GemmProblem problem = weight_gradient();
  const auto call = complete(problem, operands.args);
  ASSERT_TRUE(call);
  EXPECT_EQ(call->work, GemmCall::Work::kEmptySum);
  ASSERT_TRUE(run_on_host(problem, *call));
  EXPECT_EQ(operands.result(), std::vector<float>(kM * kN, 0.0F));

  Operands kept(0);
  problem.accumulate = true;
  const auto kept_call = complete(problem, kept.args);
  ASSERT_TRUE(kept_call);
  ASSERT_TRUE(run_on_host(problem, *kept_call));
  EXPECT_EQ(kept.result(), std::vector<float>(kM * kN, -1.0F));

  problem.m = 0;
  EXPECT_EQ(complete(problem, kept.args)->work, GemmCall::Work::kNothing);
}

TEST(TokensInK, TheGridDoesNotDependOnThem) {
  const DeviceSpec& h200 = *find_device("h200");
  const GemmProblem problem = weight_gradient();
  const ResolvedGemm resolved = resolve(problem, GemmConfig(), h200, LoadedKernel());
  for (const std::int64_t tokens : {16, 4096}) {
    const GemmShape shape = shape_of(problem, tokens);
    EXPECT_EQ(shape.m, kM);
    EXPECT_EQ(shape.n, kN);
    EXPECT_EQ(shape.k, tokens);
    const GemmWork work = resolved.at(shape);
    EXPECT_EQ(work.blocks, 1);
    EXPECT_EQ(work.a_box_rows, kM);
  }
}

TEST(TokensInM, TheGridFollowsThem) {
  GemmProblem problem;
  problem.n = 256;
  problem.k = 384;
  const ResolvedGemm resolved =
      resolve(problem, GemmConfig(), *find_device("h200"), LoadedKernel());
  EXPECT_EQ(resolved.at(shape_of(problem, 1)).blocks, 2);
  EXPECT_EQ(resolved.at(shape_of(problem, 1)).a_box_rows, 4);
  EXPECT_EQ(resolved.at(shape_of(problem, 129)).blocks, 4);
  EXPECT_EQ(resolved.at(shape_of(problem, 1 << 20)).blocks, 132);
}

TEST(SmLimit, NarrowsTheGridToWholeClusters) {
  GemmProblem problem;
  problem.n = 4096;
  problem.k = 384;
  GemmConfig config;
  config.cluster_m = 2;
  const ResolvedGemm pairs = resolve(problem, config, *find_device("h200"), LoadedKernel());
  EXPECT_EQ(pairs.at(shape_of(problem, 4096)).blocks, 132);
  EXPECT_EQ(pairs.at(shape_of(problem, 4096), 100).blocks, 100);
  EXPECT_EQ(pairs.at(shape_of(problem, 4096), 101).blocks, 100);
  EXPECT_EQ(pairs.at(shape_of(problem, 4096), 1).blocks, 2) << "one cluster runs in any case";
  EXPECT_EQ(pairs.at(shape_of(problem, 4096), 500).blocks, 132) << "no more than there are";
  EXPECT_EQ(pairs.at(shape_of(problem, 1), 100).blocks, 64) << "one row of tiles, in pairs";
}

}  // namespace
}  // namespace octile
