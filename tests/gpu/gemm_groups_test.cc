// GEMMs of groups of tokens: contiguous and masked rows, and groups of K.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "generator/families.h"
#include "generator/gemm/candidates.h"
#include "runtime/reference/gemm/squares.h"
#include "tests/gpu/gemm_group_case.h"
#include "tests/gpu/gemm_kernel_test.h"
#include "tests/gpu/gemm_parts.h"
#include "tests/support/gemm_call.h"
#include "tests/support/gemm_variants.h"

namespace octile::tests {
namespace {

using Sizes = std::vector<std::int32_t>;

class GemmGroups : public GemmKernelTest<GemmGroupCase> {
 protected:
  static const std::vector<GemmVariant>& variants() {
    static const std::vector<GemmVariant> all =
        covering_group_variants(GpuSession::get()->device());
    return all;
  }
  static void SetUpTestSuite() {
    if (GpuSession::get() != nullptr) compile_variants(variants());
  }
  std::vector<std::uint8_t> bytes_of(const void* from, std::size_t bytes) {
    std::vector<std::uint8_t> host(bytes);
    EXPECT_EQ((*gpu().driver())
                  ->cuMemcpyDtoHAsync(host.data(), reinterpret_cast<CUdeviceptr>(from), bytes,
                                      gpu().stream()),
              CUDA_SUCCESS);
    gpu().synchronize();
    return host;
  }
  // Expects the codes and scales of one case to be those of the quantiser for another's fp32 D.
  void expect_quantised(GemmGroupCase& codes, GemmGroupCase& sums) {
    const std::int64_t rows = codes.tokens(), n = codes.problem().n;
    QuantizeProblem quantiser;
    quantiser.cols = n;
    quantiser.x = sums.problem().d;
    quantiser.q = codes.problem().d;
    DeviceBuffer d = gpu().zeroed(static_cast<std::size_t>(rows * codes.args().ldd));
    DeviceBuffer scales = gpu().zeroed(codes.d_scale().bytes());
    octile_quantize_args args{};
    args.struct_size = sizeof args;
    args.rows = rows;
    args.x = sums.args().d;
    args.ldx = sums.args().ldd;
    args.q = d.pointer();
    args.ldq = codes.args().ldd;
    args.scale = scales.pointer();
    octile_plan* plan = nullptr;
    const std::string text = to_text(Problem(quantiser));
    expect_ok(octile_plan_create(gpu().library(), "cuda:0", text.c_str(), &plan),
              "octile_plan_create");
    expect_ok(octile_plan_prepare(plan, rows, rows, OCTILE_PREPARE_DEFAULT), "octile_plan_prepare");
    expect_ok(octile_quantize_run(plan, &args, gpu().stream()), "octile_quantize_run");
    expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
    const auto bytes_of_d = static_cast<std::size_t>(rows * args.ldq);
    const auto got = bytes_of(codes.args().d, bytes_of_d);
    const auto expected = bytes_of(d.pointer(), bytes_of_d);
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto first = row * args.ldq;
      ASSERT_TRUE(
          std::equal(got.begin() + first, got.begin() + first + n, expected.begin() + first))
          << "codes of row " << row;
    }
    for (std::int64_t block = 0; block < ceil_div(n, std::int64_t{128}); ++block) {
      const auto at = static_cast<std::size_t>(block * codes.d_scale_ld() * 4);
      const auto bytes = static_cast<std::size_t>(rows * 4);
      EXPECT_EQ(bytes_of(static_cast<const char*>(codes.d_scale().pointer()) + at, bytes),
                bytes_of(static_cast<const char*>(scales.pointer()) + at, bytes))
          << "scales of block " << block;
    }
  }
};

// Empty groups, groups of one row, ends within tiles and with them, one that has most.
TEST_F(GemmGroups, CoveringSetIsRight) {
  std::uint64_t seed = 40000;
  std::size_t cases = 0;
  for (const auto& [recipe, config] : variants()) {
    const std::int32_t bm = config.block_m;
    for (const Sizes& sizes :
         {Sizes{0, 1, 129, bm, 3, 0, bm + 5, 2 * bm - 1}, Sizes{1, 2, 3, 700, 0, 64, 33, 128}}) {
      const std::int64_t n = cases % 2 == 0 ? 520 : 264;
      GemmGroupCase c(gpu(), recipe, sizes, n, cases % 3 == 0 ? 1168 : 400, ++seed, cases % 2 * 9);
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

TEST_F(GemmGroups, AnyCountOfGroups) {
  std::uint64_t seed = 41000;
  for (const GemmProblem& recipe : group_recipes()) {
    for (const std::size_t groups : {1U, 3U, 256U, 1024U}) {
      Sizes sizes(groups);
      for (std::size_t g = 0; g < groups; ++g) {
        sizes[g] = static_cast<std::int32_t>(g % 7 == 3 ? 0 : g * 37 % 61);
      }
      if (groups == 3) sizes = {5, 2000, 1};
      GemmGroupCase c(gpu(), recipe, sizes, 136, 272, ++seed, 5);
      c.run_config(pick(c.problem(), c.tokens()), gpu().stream());
      c.judge();
      if (HasFailure()) FAIL() << to_text(c.problem()) << ", " << groups << " groups";
    }
  }
}

TEST_F(GemmGroups, NoTokens) {
  for (const GemmProblem& recipe : group_recipes()) {
    GemmGroupCase c(gpu(), recipe, Sizes(6, 0), 264, 400, 42000, 300);
    c.run_config(pick(c.problem(), c.tokens()), gpu().stream());
    c.judge();
    if (HasFailure()) FAIL() << to_text(c.problem());
  }
}

// Groups that break the rules stay inside the tensors and end.
TEST_F(GemmGroups, BrokenOffsetsTouchNothingElse) {
  constexpr std::int32_t kFar = 1 << 30;
  for (const GemmProblem& recipe : group_recipes()) {
    GemmGroupCase c(gpu(), recipe, Sizes{100, 200, 300}, 264, 400, 43000, 50);
    const bool masked = recipe.grouping == Grouping::kMasked;
    for (Sizes rows :
         {Sizes{-5, kFar, -kFar, 7}, Sizes{kFar, 0, kFar, 0}, Sizes{400, 300, 20, 1}}) {
      if (masked) rows.pop_back();
      c.set_group_rows(rows);
      run(c, pick(c.problem(), c.tokens()));
      if (masked) {
        c.judge();
      } else {
        c.expect_guards();
      }
      if (HasFailure()) FAIL() << to_text(c.problem());
    }
  }
}

TEST_F(GemmGroups, RepeatsAreBitEqual) {
  for (const GemmProblem& recipe : group_recipes()) {
    GemmGroupCase c(gpu(), recipe, Sizes{300, 1, 0, 513, 64, 200}, 520, 1040, 44000, 3);
    expect_bit_equal_repeats(c, {64, c.tokens(), 8192});
    if (HasFatalFailure()) return;
  }
}

// A NaN in one group reaches no other.
TEST_F(GemmGroups, GroupsDoNotSeeEachOther) {
  for (const GemmProblem& recipe : group_recipes()) {
    if (recipe.a.scale == ScaleFormat::kUe8m0x4) continue;  // its words hold no NaN
    GemmGroupCase c(gpu(), recipe, Sizes{70, 130, 33}, 264, 400, 45000);
    const GemmConfig config = pick(c.problem(), c.tokens());
    run(c, config);
    const auto clean = c.bytes_of_d();
    // A scale of the middle group.
    const auto parts = c.parts();
    const auto offset = static_cast<std::size_t>(static_cast<const char*>(parts[1].args.a_scale) -
                                                 static_cast<const char*>(c.a_scale().pointer()));
    const float nan = NAN;
    ASSERT_TRUE(c.a_scale().upload(&nan, sizeof nan, gpu().stream(), offset));
    run(c, config);
    const auto poisoned = c.bytes_of_d();
    const auto bytes_of = [&](const std::vector<std::uint8_t>& d, std::size_t g) {
      const auto begin = static_cast<std::size_t>(
          static_cast<const char*>(parts[g].args.d) -
          (static_cast<const char*>(c.args().d) - GemmGroupCase::kGuardBytes));
      const auto bytes = static_cast<std::size_t>(parts[g].args.shape.m * c.args().ldd *
                                                  size_of(c.problem().d.dtype));
      return std::vector<std::uint8_t>(d.begin() + static_cast<std::ptrdiff_t>(begin),
                                       d.begin() + static_cast<std::ptrdiff_t>(begin + bytes));
    };
    EXPECT_EQ(bytes_of(poisoned, 0), bytes_of(clean, 0)) << to_text(c.problem());
    EXPECT_NE(bytes_of(poisoned, 1), bytes_of(clean, 1)) << to_text(c.problem());
    EXPECT_EQ(bytes_of(poisoned, 2), bytes_of(clean, 2)) << to_text(c.problem());
  }
}

// One graph serves every offset and count; the token count of the call is its room.
TEST_F(GemmGroups, GraphsReplayWithOtherGroups) {
  for (const GemmProblem& recipe : group_recipes()) {
    if (groups_k(recipe)) continue;  // the padding's place depends on the offsets
    GemmGroupCase c(gpu(), recipe, Sizes{100, 200, 0, 44}, 264, 400, 46000, 20);
    octile_plan* plan = nullptr;
    expect_ok(
        octile_plan_create(gpu().library(), "cuda:0", to_text(Problem(c.problem())).c_str(), &plan),
        "octile_plan_create");
    expect_ok(octile_plan_prepare(plan, c.tokens(), c.tokens(), OCTILE_PREPARE_DEFAULT),
              "octile_plan_prepare");
    const GemmArguments args = c.args();
    const DriverApi& driver = gpu().driver()->api();
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    ASSERT_EQ(driver.cuStreamBeginCapture(gpu().stream(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
              CUDA_SUCCESS);
    expect_ok(tests::run_gemm(plan, args, gpu().stream()), "octile_gemm_run");
    ASSERT_EQ(driver.cuStreamEndCapture(gpu().stream(), &graph), CUDA_SUCCESS);
    ASSERT_EQ(driver.cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    const bool masked = recipe.grouping == Grouping::kMasked;
    for (const Sizes& rows : {masked ? Sizes{100, 200, 0, 44} : Sizes{0, 100, 300, 300, 344},
                              masked ? Sizes{0, 220, 1, 7} : Sizes{5, 6, 7, 8, 360},
                              masked ? Sizes{0, 0, 0, 0} : Sizes{0, 0, 0, 0, 0}}) {
      c.set_group_rows(rows);
      c.poison_output();
      ASSERT_EQ(driver.cuGraphLaunch(exec, gpu().stream()), CUDA_SUCCESS);
      gpu().synchronize();
      c.judge();
      if (HasFailure()) FAIL() << to_text(c.problem());
    }
    driver.cuGraphExecDestroy(exec);
    driver.cuGraphDestroy(graph);
    expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
  }
}

// Codes and scales of FP8 D are those of the project's quantiser on the fp32 D of the same sums.
TEST_F(GemmGroups, Fp8DEqualsQuantisingFp32D) {
  std::vector<GemmVariant> kernels;  // in pairs: with FP8 D, and the same but for its store
  for (const DType type : {DType::kE4M3, DType::kE5M2}) {
    GemmProblem recipe = group_recipes().front();
    recipe.d = {type, Granularity::k1x128, ScaleFormat::kF32};
    recipe.sentry = type == DType::kE5M2 ? Sentry::kSquares : Sentry::kNone;
    const std::vector<GemmConfig> configs = covering_gemm_configs(recipe, gpu().device());
    for (std::size_t i = type == DType::kE5M2 ? 1 : 0; i < configs.size(); i += 2) {
      GemmVariant plain{recipe, configs[i]};
      plain.problem.d = {DType::kFP32};
      const bool whole_panels = configs[i].block_m >= 64 && configs[i].ctas_per_sm == 1;
      plain.config.store = whole_panels ? EpilogueStore::kTma : EpilogueStore::kDirect;
      if (refused_by(plain.config, plain.problem, kDynamic, gpu().device()) != nullptr) continue;
      kernels.push_back({recipe, configs[i]});
      kernels.push_back(plain);
    }
  }
  compile_variants(kernels);
  for (std::size_t i = 0; i < kernels.size(); i += 2) {
    const auto& [recipe, config] = kernels[i];
    const Sizes sizes{3, 0, config.block_m + 5, 2 * config.block_m - 1, 130, 1};
    GemmGroupCase codes(gpu(), recipe, sizes, 400, 656, 46500 + i);
    GemmGroupCase sums(gpu(), kernels[i + 1].problem, sizes, 400, 656, 46500 + i);
    run(codes, config);
    codes.expect_guards();
    run(sums, kernels[i + 1].config);
    expect_quantised(codes, sums);
    if (recipe.sentry == Sentry::kSquares) {
      expect_like_squares(codes.squares(), sum_of_squares(sums.squares()), 0x1p-16);
    }
    if (HasFailure()) FAIL() << to_text(codes.problem()) << "\n" << to_text(config);
  }
  count_cases(kernels.size() / 2, 0);
  EXPECT_GT(kernels.size(), 10U);
}

// For compute-sanitizer: one small case of every kind of groups.
TEST_F(GemmGroups, SanitizerCases) {
  std::uint64_t seed = 47000;
  for (const auto& [recipe, config] : variants()) {
    if (++seed % 5 != 0) continue;
    GemmGroupCase c(gpu(), recipe, Sizes{3, 0, config.block_m + 2, 140}, config.block_n + 8,
                    (config.stages + 1) * 128 + 16, seed, 2);
    if (refused_by(config, c.problem(), kDynamic, gpu().device()) != nullptr) continue;
    c.run_config(config, gpu().stream());
    c.judge();
    if (HasFailure()) FAIL() << to_text(c.problem()) << "\n" << to_text(config);
  }
}

}  // namespace
}  // namespace octile::tests
