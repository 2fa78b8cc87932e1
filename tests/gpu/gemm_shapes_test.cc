// A grid of token counts, n and k with tails in each, through the public API with the default
// configuration, and the layouts a caller may choose.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/families/gemm/complete.h"
#include "runtime/prove/gemm/tolerance.h"
#include "runtime/reference/gemm/reference.h"
#include "tests/gpu/gemm_case.h"
#include "tests/support/gemm_call.h"

namespace octile::tests {
namespace {

class GemmShapes : public GpuTest {};

constexpr std::array<std::int64_t, 10> kM{0, 1, 3, 63, 64, 77, 128, 129, 4096, 4097};
constexpr std::array<std::int64_t, 6> kN{8, 24, 576, 768, 2112, 7168};
constexpr std::array<std::int64_t, 7> kK{16, 128, 144, 576, 1152, 7168, 16384};

// The checker itself, against the host's FP64 product.
TEST_F(GemmShapes, CheckerAgreesWithTheHost) {
  for (const GemmShape shape :
       {GemmShape{5, 24, 144}, GemmShape{70, 136, 400}, GemmShape{64, 64, 16}}) {
    GemmCase c(gpu(), {}, shape, 11);
    c.run_plan(gpu().stream());
    const Verdict device = c.judge(reference::tolerance_c(128));
    const auto fetch = [&](const DeviceBuffer& buffer) {
      std::vector<std::uint8_t> host(buffer.bytes());
      EXPECT_TRUE(buffer.download(host.data(), host.size(), gpu().stream()));
      gpu().synchronize();
      return host;
    };
    const auto a = fetch(c.a());
    const auto b = fetch(c.b());
    const auto sa = fetch(c.a_scale());
    const auto sb = fetch(c.b_scale());
    const auto d = fetch(c.d());
    GemmArguments on_host = c.args();
    on_host.a = a.data();
    on_host.a_scale = sa.data();
    on_host.b = b.data();
    on_host.b_scale = sb.data();
    const auto call = complete_for_fp64(c.problem(), on_host);
    ASSERT_TRUE(call) << call.error().message;
    const auto count = static_cast<std::size_t>(shape.m * shape.n);
    std::vector<double> r(count);
    std::vector<double> s(count);
    ASSERT_TRUE(
        reference::gemm_fp64(c.problem(), *call, {0, shape.m, 0, shape.n}, r.data(), s.data()));
    float worst_rel = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto row = static_cast<std::int64_t>(i) / shape.n;
      const auto col = static_cast<std::int64_t>(i) % shape.n;
      std::uint16_t bits = 0;
      std::memcpy(&bits, d.data() + GemmCase::kGuardBytes + (row * c.ldd() + col) * 2, 2);
      const double value = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
      if (s[i] > 0)
        worst_rel = std::max(worst_rel, static_cast<float>(std::abs(value - r[i]) / s[i]));
    }
    EXPECT_NEAR(device.worst_rel, worst_rel, 1e-6) << to_text(shape);
  }
}

class GemmGrid : public GpuTest, public ::testing::WithParamInterface<std::int64_t> {
 protected:
  static void SetUpTestSuite() {
    std::vector<PlannedGemm> planned;
    for (const std::int64_t k : kK) {
      for (const std::int64_t n : kN) {
        for (const std::int64_t m : kM) planned.push_back({{}, {m, n, k}});
      }
    }
    compile_plans(planned);
  }
};

TEST_P(GemmGrid, WithinToleranceAndBounds) {
  std::uint64_t seed = 1000;
  count_cases(kN.size() * kM.size(), 0);
  for (const std::int64_t n : kN) {
    for (const std::int64_t m : kM) {
      ++seed;
      GemmCase c(gpu(), {}, {m, n, GetParam()}, seed, {},
                 seed % 2 == 0 ? CodeMode::kUniform : CodeMode::kQuantised);
      c.run_plan(gpu().stream());
      c.judge(reference::tolerance_c(128));
      if (HasFailure()) return;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(K, GemmGrid, ::testing::ValuesIn(kK));

TEST_F(GemmShapes, CallersStrides) {
  const Strides strides{.a = 48, .b = 16, .d = 24, .a_scale = 12, .b_scale = 5};
  std::uint64_t seed = 2000;
  for (const GemmShape shape : {GemmShape{77, 576, 1152}, GemmShape{130, 2112, 144},
                                GemmShape{1, 24, 7168}, GemmShape{300, 200, 576}}) {
    GemmCase c(gpu(), {}, shape, ++seed, strides);
    c.run_plan(gpu().stream());
    c.judge(reference::tolerance_c(128));
  }
}

TEST_F(GemmShapes, EveryFormatPair) {
  std::uint64_t seed = 3000;
  for (const DType a : {DType::kE4M3, DType::kE5M2}) {
    for (const DType b : {DType::kE4M3, DType::kE5M2}) {
      GemmProblem recipe;
      recipe.a.dtype = a;
      recipe.b.dtype = b;
      for (const GemmShape shape : {GemmShape{77, 576, 1152}, GemmShape{4097, 264, 400}}) {
        GemmCase c(gpu(), recipe, shape, ++seed);
        c.run_plan(gpu().stream());
        c.judge(reference::tolerance_c(128));
      }
    }
  }
}

// A token count the plan was prepared for by another kernel's bucket: any kernel is right for any
// count.
TEST_F(GemmShapes, OnePlanServesEveryCount) {
  octile_plan* plan = nullptr;
  expect_ok(octile_plan_create(gpu().library(), "cuda:0",
                               "gemm m=? n=576 k=1152 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 "
                               "promote=128",
                               &plan),
            "octile_plan_create");
  expect_ok(octile_plan_prepare(plan, 0, 5000, OCTILE_PREPARE_DEFAULT), "octile_plan_prepare");
  for (const std::int64_t m : {1, 2, 17, 65, 333, 1000, 4999}) {
    GemmCase c(gpu(), {}, {m, 576, 1152}, static_cast<std::uint64_t>(4000 + m));
    const GemmArguments args = c.args();
    expect_ok(tests::run_gemm(plan, args, gpu().stream()), "octile_gemm_run");
    c.judge(reference::tolerance_c(128));
  }
  expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
}

// Past 2^31 elements of A and of D, in rows sampled from both ends.
TEST_F(GemmShapes, BeyondTwoToTheThirtyOne) {
  for (const GemmShape shape : {GemmShape{140000, 64, 16384}, GemmShape{310000, 7168, 128}}) {
    GemmCase c(gpu(), {}, shape, 5000);
    c.run_plan(gpu().stream());
    c.judge(reference::tolerance_c(128));
  }
}

}  // namespace
}  // namespace octile::tests
