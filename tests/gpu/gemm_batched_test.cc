// Batches of GEMMs at constant strides.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "generator/families.h"
#include "generator/gemm/candidates.h"
#include "tests/gpu/gemm_batch_case.h"
#include "tests/gpu/gemm_kernel_test.h"
#include "tests/gpu/gemm_parts.h"
#include "tests/support/gemm_call.h"
#include "tests/support/gemm_variants.h"

namespace octile::tests {
namespace {

constexpr std::array kLayouts{BatchLayout::kPacked, BatchLayout::kSideBySide,
                              BatchLayout::kSharedB};

class GemmBatched : public GemmKernelTest<GemmBatchCase> {
 protected:
  static const std::vector<GemmVariant>& variants() {
    static const std::vector<GemmVariant> all =
        covering_batch_variants(GpuSession::get()->device());
    return all;
  }
  static void SetUpTestSuite() {
    if (GpuSession::get() != nullptr) compile_variants(variants());
  }
};

// Tails of m, n and k, fewer and more tiles than SMs, in every layout.
TEST_F(GemmBatched, CoveringSetIsRight) {
  std::uint64_t seed = 60000;
  std::size_t cases = 0;
  for (const auto& [recipe, config] : variants()) {
    for (const BatchLayout layout : kLayouts) {
      const bool few = cases % 2 == 0;
      const std::int64_t m = few ? config.block_m + 5 : 2 * config.block_m - 1;
      GemmBatchCase c(gpu(), recipe, few ? 3 : 37, m, few ? 520 : config.block_n + 8,
                      few ? 1168 : 400, ++seed, layout);
      if (refused_by(config, c.problem(), kDynamic, gpu().device()) != nullptr) continue;
      ++cases;
      c.run_config(config, gpu().stream());
      c.judge();
      if (HasFailure()) FAIL() << to_text(c.problem()) << "\n" << to_text(config);
    }
  }
  count_cases(cases, 0);
  EXPECT_GT(cases, variants().size());
}

TEST_F(GemmBatched, AnyBatchAndTokenCount) {
  std::uint64_t seed = 61000;
  for (const GemmProblem& recipe : batch_recipes()) {
    for (const auto& [batch, m] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {1, 333}, {3, 4096}, {129, 17}, {1024, 3}}) {
      GemmBatchCase c(gpu(), recipe, batch, m, 136, 272, ++seed, BatchLayout::kSideBySide);
      c.run_config(pick(c.problem(), m), gpu().stream());
      c.judge();
      if (HasFailure()) FAIL() << to_text(c.problem()) << ", m = " << m;
    }
  }
}

// The absorbed projections of DeepSeek-V3: 128 heads in the rows of tokens.
TEST_F(GemmBatched, AbsorbedProjections) {
  std::uint64_t seed = 62000;
  for (const std::int64_t tokens : {1, 64, 500}) {
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{512, 128}, {128, 512}}) {
      GemmProblem recipe;
      GemmBatchCase c(gpu(), recipe, 128, tokens, n, k, ++seed, BatchLayout::kSideBySide);
      c.run_config(pick(c.problem(), tokens), gpu().stream());
      c.judge();
      if (HasFailure()) FAIL() << to_text(c.problem()) << ", m = " << tokens;
    }
  }
}

TEST_F(GemmBatched, NoKLeavesZeros) {
  GemmProblem recipe;
  for (const BatchLayout layout : {BatchLayout::kPacked, BatchLayout::kSideBySide}) {
    GemmBatchCase c(gpu(), recipe, 5, 70, 136, 16, 63000, layout);
    GemmProblem empty = c.problem();
    empty.k = 0;
    GemmArguments args = c.args();
    octile_plan* plan = nullptr;
    expect_ok(octile_plan_create(gpu().library(), "cuda:0", to_text(Problem(empty)).c_str(), &plan),
              "octile_plan_create");
    expect_ok(octile_plan_prepare(plan, c.tokens(), c.tokens(), OCTILE_PREPARE_DEFAULT),
              "octile_plan_prepare");
    expect_ok(tests::run_gemm(plan, args, gpu().stream()), "octile_gemm_run");
    const std::vector<std::uint8_t> bytes = c.bytes_of_d();
    const std::int64_t rows = 5 * c.tokens(), columns = 136 * 2, row_bytes = (136 + 8) * 2;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < row_bytes; ++i) {
        const auto at = static_cast<std::size_t>(GemmBatchCase::kGuardBytes + row * row_bytes + i);
        ASSERT_EQ(bytes[at], i < columns ? 0 : GemmBatchCase::kPoison) << row << ", " << i;
      }
    }
    expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
  }
}

TEST_F(GemmBatched, RepeatsAreBitEqual) {
  for (const GemmProblem& recipe : batch_recipes()) {
    GemmBatchCase c(gpu(), recipe, 40, 300, 264, 528, 64000, BatchLayout::kSideBySide);
    expect_bit_equal_repeats(c, {16, 300, 8192});
    if (HasFatalFailure()) return;
  }
}

// A batch has the bits of its GEMMs one by one, if these do not split K.
TEST_F(GemmBatched, EachHasTheBitsOfOneGemm) {
  for (const GemmProblem& recipe : batch_recipes()) {
    GemmBatchCase c(gpu(), recipe, 3, 200, 264, 400, 65000, BatchLayout::kSideBySide);
    const GemmConfig config = pick(c.problem(), c.tokens());
    run(c, config);
    const auto together = c.bytes_of_d();
    GemmProblem one = c.problem();
    one.batch = 0;
    one.invariant = true;
    octile_plan* plan = nullptr;
    expect_ok(octile_plan_create(gpu().library(), "cuda:0", to_text(Problem(one)).c_str(), &plan),
              "octile_plan_create");
    expect_ok(octile_plan_prepare(plan, c.tokens(), c.tokens(), OCTILE_PREPARE_DEFAULT),
              "octile_plan_prepare");
    c.poison_output();
    for (const reference::GemmPart& part : c.parts()) {
      GemmArguments args = c.args();
      args.a = part.args.a;
      args.a_scale = part.args.a_scale;
      args.b = part.args.b;
      args.b_scale = part.args.b_scale;
      args.d = part.args.d;
      args.batch.a_stride = args.batch.a_scale_stride = args.batch.d_stride = 0;
      args.batch.b_stride = args.batch.b_scale_stride = 0;
      expect_ok(tests::run_gemm(plan, args, gpu().stream()), "octile_gemm_run");
    }
    EXPECT_EQ(c.bytes_of_d(), together) << to_text(c.problem());
    expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
  }
}

// D on the GPU and on the host, of a weight gradient whose tokens lie in three panels of 144. All
// sums are exact, so the bits are equal.
void expect_sum_of_the_host(GpuSession& gpu, const char* types, bool has_blocks) {
  constexpr std::int64_t kM = 264, kN = 136, kTokens = 144, kPanels = 3;
  constexpr std::int64_t kBlocks = kPanels * 2;  // of K, two in each panel
  const std::string text =
      fmt::format("gemm m={} n={} k=? {} batch={} sum=1", kM, kN, types, kPanels);
  std::vector<std::uint8_t> a(kPanels * kM * kTokens), b(kPanels * kN * kTokens);
  std::uint32_t state = 1;
  const auto draw = [&state](std::uint32_t below) {
    state = state * 1664525 + 1013904223;
    return (state >> 16) % below;
  };
  // 1, 2, 4, and their negatives, in E4M3.
  for (auto* codes : {&a, &b}) {
    for (std::uint8_t& code : *codes)
      code = static_cast<std::uint8_t>(0x38 + 8 * draw(3) + 128 * draw(2));
  }
  std::vector<float> a_scale(has_blocks ? kBlocks * kM : 1), b_scale(has_blocks ? kBlocks * kN : 1);
  for (auto* scales : {&a_scale, &b_scale}) {
    for (float& scale : *scales) scale = draw(2) == 0 ? 0.5F : 2.0F;
  }
  std::vector<float> expected(kM * kN, -7.0F), actual(kM * kN);
  const auto run = [&](const char* device, const GemmArguments& args, CUstream stream) {
    octile_plan* plan = nullptr;
    expect_ok(octile_plan_create(gpu.library(), device, text.c_str(), &plan), "octile_plan_create");
    expect_ok(octile_plan_prepare(plan, kTokens, kTokens, OCTILE_PREPARE_DEFAULT),
              "octile_plan_prepare");
    expect_ok(tests::run_gemm(plan, args, stream), "octile_gemm_run");
    expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
  };
  GemmArguments args;
  args.tokens = kTokens;
  args.a = a.data();
  args.a_scale = a_scale.data();
  args.b = b.data();
  args.b_scale = b_scale.data();
  args.d = expected.data();
  run("host", args, nullptr);
  const auto on_gpu = [&gpu](const auto& values) {
    const std::size_t bytes = values.size() * sizeof values[0];
    DeviceBuffer made = DeviceBuffer::allocate(gpu.driver(), bytes).value();
    EXPECT_TRUE(made.upload(values.data(), bytes, gpu.stream()));
    return made;
  };
  const DeviceBuffer da = on_gpu(a), db = on_gpu(b), sa = on_gpu(a_scale), sb = on_gpu(b_scale);
  const DeviceBuffer d = on_gpu(std::vector<float>(kM * kN, -7.0F));
  args.a = da.pointer();
  args.a_scale = sa.pointer();
  args.b = db.pointer();
  args.b_scale = sb.pointer();
  args.d = d.pointer();
  run("cuda:0", args, gpu.stream());
  ASSERT_TRUE(d.download(actual.data(), d.bytes(), gpu.stream()));
  gpu.synchronize();
  EXPECT_EQ(actual, expected) << text;
}

TEST_F(GemmBatched, SanitizerCasesOfSums) {
  const char* const blocks = "a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128";
  const char* const powers = "a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128";
  const char* const tensors = "a=e4m3:tensor b=e4m3:tensor d=fp32 acc=1 promote=128";
  for (const char* types : {blocks, powers}) expect_sum_of_the_host(gpu(), types, true);
  expect_sum_of_the_host(gpu(), tensors, false);
}

// For compute-sanitizer: one small case of every kind of batch.
TEST_F(GemmBatched, SanitizerCases) {
  std::uint64_t seed = 66000;
  for (const auto& [recipe, config] : variants()) {
    if (++seed % 5 != 0) continue;
    GemmBatchCase c(gpu(), recipe, 3, config.block_m + 2, config.block_n + 8,
                    (config.stages + 1) * 128 + 16, seed, kLayouts[seed % kLayouts.size()]);
    if (refused_by(config, c.problem(), kDynamic, gpu().device()) != nullptr) continue;
    c.run_config(config, gpu().stream());
    c.judge();
    if (HasFailure()) FAIL() << to_text(c.problem()) << "\n" << to_text(config);
  }
}

}  // namespace
}  // namespace octile::tests
