// Every scaling and output of the GEMM: weight gradients, D in other types, sums that are added to
// D, biases, sentries, and limits on the SMs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "generator/gemm/candidates.h"
#include "generator/gemm/passes.h"
#include "runtime/prove/gemm/tolerance.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/gemm/squares.h"
#include "tests/gpu/gemm_case.h"
#include "tests/gpu/gemm_parts.h"
#include "tests/support/gemm_variants.h"

namespace octile::tests {
namespace {

// Sums of squares of two kernels, whose warps sum up to 32 * 128 of them in fp32.
constexpr double kSquaresTolerance = 0x1p-16;

std::uint64_t word_of_all_copies(const octile_squares& squares, std::size_t word) {
  std::uint64_t sum = 0;
  for (const auto& copy : squares.words) sum += copy[word];
  return sum;
}

class GemmOutputs : public GpuTest {
 protected:
  static const std::vector<GemmVariant>& variants() {
    static const std::vector<GemmVariant> all = covering_gemm_variants(GpuSession::get()->device());
    return all;
  }
  static void SetUpTestSuite() {
    if (GpuSession::get() != nullptr) compile_variants(variants());
  }

  // A case whose results are finite, in fp16 too.
  GemmCase finite_case(const GemmProblem& problem, GemmShape shape, std::uint64_t seed,
                       Strides strides = {}) {
    if (problem.d.dtype != DType::kFP16) return {gpu(), problem, shape, seed, strides};
    return {gpu(), problem, shape, seed, strides, CodeMode::kAlternating, 0};
  }
  std::vector<std::uint8_t> bytes_of(const DeviceBuffer& buffer) {
    return tests::bytes_of(gpu(), buffer);
  }
  // Expects the codes and scales of one case to be those of the quantiser for another's fp32 D, and
  // no byte beside them written.
  void expect_quantised(GemmCase& codes, GemmCase& sums) {
    const auto [m, n, k] = codes.shape();
    QuantizeProblem quantiser;
    quantiser.cols = n;
    quantiser.x = sums.problem().d;
    quantiser.q = codes.problem().d;
    DeviceBuffer d = gpu().allocate(codes.d().bytes());
    DeviceBuffer scales = gpu().allocate(codes.d_scale().bytes());
    ASSERT_TRUE(d.fill(GemmCase::kPoison, gpu().stream()));
    ASSERT_TRUE(scales.fill(GemmCase::kPoison, gpu().stream()));
    octile_quantize_args args{};
    args.struct_size = sizeof args;
    args.rows = m;
    args.x = static_cast<char*>(sums.d().pointer()) + GemmCase::kGuardBytes;
    args.ldx = sums.ldd();
    args.q = static_cast<char*>(d.pointer()) + GemmCase::kGuardBytes;
    args.ldq = codes.ldd();
    args.scale = scales.pointer();
    octile_plan* plan = nullptr;
    const std::string text = to_text(Problem(quantiser));
    ASSERT_EQ(octile_plan_create(gpu().library(), "cuda:0", text.c_str(), &plan), OCTILE_OK);
    EXPECT_EQ(octile_plan_prepare(plan, m, m, OCTILE_PREPARE_DEFAULT), OCTILE_OK);
    EXPECT_EQ(octile_quantize_run(plan, &args, gpu().stream()), OCTILE_OK);
    EXPECT_EQ(octile_plan_destroy(plan), OCTILE_OK);
    EXPECT_TRUE(bytes_of(codes.d()) == bytes_of(d)) << to_text(codes.shape()) << ": codes differ";
    EXPECT_TRUE(bytes_of(codes.d_scale()) == bytes_of(scales))
        << to_text(codes.shape()) << ": scales differ";
  }
  template <typename T>
  void write(DeviceBuffer& buffer, std::size_t index, T value) {
    EXPECT_TRUE(buffer.upload(&value, sizeof value, gpu().stream(), index * sizeof value));
    gpu().synchronize();
  }
};

TEST_F(GemmOutputs, CoveringSetIsRight) {
  std::uint64_t seed = 20000;
  std::size_t cases = 0;
  for (const auto& [problem, config] : variants()) {
    for (const GemmShape shape : {GemmShape{1, 8, 1}, GemmShape{77, 576, 1153},
                                  GemmShape{300, 200, 7168}, GemmShape{1337, 520, 77}}) {
      GemmCase c = finite_case(problem, shape, ++seed, {.a = 16, .b = 32, .d = 8});
      const std::int64_t tokens = has_tokens_in_k(problem) ? shape.k : shape.m;
      if (refused_by(config, c.problem(), tokens, gpu().device()) != nullptr) continue;
      ++cases;
      c.run_config(config, gpu().stream());
      c.judge(reference::tolerance_c(problem.promote, c.shape().k));
      if (has_sentry(problem)) {
        EXPECT_EQ(c.sentry(), 0U);
      }
      if (HasFailure()) FAIL() << to_text(problem) << "\n" << to_text(config);
    }
  }
  count_cases(cases, 0);
  EXPECT_GT(cases, 2 * variants().size());
}

// D and its scales are those of the project's quantiser on the fp32 D of the same sums, with rows
// that are infinite, NaN and subnormal among them.
TEST_F(GemmOutputs, Fp8DEqualsQuantisingFp32D) {
  std::uint64_t seed = 23000;
  std::size_t cases = 0;
  for (const auto& [problem, config] : covering_fp8_d_variants(gpu().device())) {
    for (const GemmShape shape :
         {GemmShape{1, 16, 128}, GemmShape{301, 528, 1153}, GemmShape{130, 4096, 640}}) {
      const Strides strides{.a = 16, .b = 32, .d = 16};
      GemmProblem plain = problem;
      plain.d = {DType::kFP32};
      GemmCase codes(gpu(), problem, shape, ++seed, strides);
      GemmCase sums(gpu(), plain, shape, seed, strides);
      if (problem.a.scale != ScaleFormat::kUe8m0x4 && shape.m > 3) {
        for (GemmCase* c : {&codes, &sums}) {
          write(c->a_scale(), 1, 0x1p127F);
          write(c->a_scale(), 2, std::numeric_limits<float>::quiet_NaN());
          write(c->a_scale(), 3, 0x1p-149F);
        }
      }
      ++cases;
      codes.run_config(config, gpu().stream());
      // The same kernel but for its store.
      GemmConfig plain_config = config;
      const bool whole_panels = config.block_m >= 64 && config.ctas_per_sm == 1;
      plain_config.store = whole_panels ? EpilogueStore::kTma : EpilogueStore::kDirect;
      sums.run_config(plain_config, gpu().stream());
      expect_quantised(codes, sums);
      if (has_sentry(problem)) {
        EXPECT_EQ(codes.sentry(), sums.sentry());
      }
      if (problem.sentry == Sentry::kSquares) {
        expect_like_squares(codes.squares(), sum_of_squares(sums.squares()), kSquaresTolerance);
      }
      if (HasFailure()) FAIL() << to_text(problem) << "\n" << to_text(config);
    }
  }
  count_cases(cases, 0);
  EXPECT_GT(cases, 60U);
}

// Through plans; with k = 0 the scales are 1.
TEST_F(GemmOutputs, Fp8DOfAnyTokenCount) {
  std::uint64_t seed = 24000;
  for (const GemmShape shape : {GemmShape{1, 256, 512}, GemmShape{77, 144, 0},
                                GemmShape{1000, 1040, 2048}, GemmShape{4096, 512, 96}}) {
    GemmProblem problem;
    problem.d = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
    GemmProblem plain;
    plain.d = {DType::kFP32};
    plain.invariant = true;
    GemmCase codes(gpu(), problem, shape, ++seed);
    GemmCase sums(gpu(), plain, shape, seed);
    codes.run_plan(gpu().stream());
    sums.run_plan(gpu().stream());
    expect_quantised(codes, sums);
  }
}

// Through plans: the token count decides the kernel, and none leaves D as it is.
TEST_F(GemmOutputs, WeightGradientsOfAnyTokenCount) {
  std::uint64_t seed = 21000;
  for (const std::int64_t tokens : {0, 1, 77, 127, 128, 129, 640, 4096, 4097}) {
    for (const auto& [m, n] : {std::pair(512, 1024), std::pair(576, 2112), std::pair(4, 8)}) {
      GemmCase c(gpu(), weight_gradient(), {m, n, tokens}, ++seed);
      c.run_plan(gpu().stream());
      c.judge(reference::tolerance_c(128));
      if (HasFailure()) FAIL() << m << "x" << n << "x" << tokens;
    }
  }
}

// The same with scales per row and per tensor, of every recipe that has them.
TEST_F(GemmOutputs, PassesOfRecipesWithScalesForAllOfK) {
  std::uint64_t seed = 21200;
  for (const char* recipe : {"tensorwise", "delayed", "rowwise"}) {
    for (const Pass pass : {Pass::kFprop, Pass::kDgrad, Pass::kWgrad}) {
      const GemmProblem problem = gemm_problem(*find_recipe(recipe), pass, kDynamic, 576, 1024);
      for (const std::int64_t tokens : {0, 1, 77, 129, 640, 4097}) {
        const GemmShape shape{m_at(problem, tokens), problem.n, k_at(problem, tokens)};
        GemmCase c(gpu(), problem, shape, ++seed);
        c.run_plan(gpu().stream());
        c.judge(reference::tolerance_c(problem.promote, c.shape().k));
        if (HasFailure()) FAIL() << to_text(problem) << " at " << tokens;
      }
    }
  }
}

TEST_F(GemmOutputs, AdversarialOperandsOfWeightGradients) {
  std::uint64_t seed = 21500;
  for (const CodeMode mode :
       {CodeMode::kUniform, CodeMode::kOneHuge, CodeMode::kAllEqual, CodeMode::kAlternating}) {
    for (const int promote : {32, 64, 128}) {
      GemmProblem problem = weight_gradient();
      problem.promote = promote;
      problem.a.dtype = mode == CodeMode::kUniform ? DType::kE5M2 : DType::kE4M3;
      GemmCase c(gpu(), problem, {384, 640, 4097}, ++seed, {}, mode, 12);
      c.run_plan(gpu().stream());
      c.judge(reference::tolerance_c(promote, c.shape().k));
    }
  }
}

constexpr std::array kAddingConfigs{"tile=192x112x128 stages=4 wg=3 store=direct",
                                    "tile=64x64x128 stages=4 wg=1 store=direct splits=2",
                                    "tile=192x128x128 stages=4 wg=3",
                                    "tile=256x128x128 stages=4 wg=2 scales=held"};

// D + sum, rounded once: the sum is that of the GEMM that overwrites. Tiles overlap at the last
// rows.
TEST_F(GemmOutputs, AddingIsOneAddition) {
  for (const char* text : kAddingConfigs) {
    const auto config = parse_gemm_config(text);
    ASSERT_TRUE(config) << text;
    for (const GemmShape shape : {GemmShape{300, 520, 1000}, GemmShape{1000, 136, 77}}) {
      const GemmProblem adds = weight_gradient();
      GemmProblem writes = adds;
      writes.accumulate = false;
      GemmCase sum(gpu(), writes, shape, 22000);
      GemmCase added(gpu(), adds, shape, 22000);
      sum.run_config(*config, gpu().stream());
      added.run_config(*config, gpu().stream());
      const auto plain = bytes_of(sum.d());
      const auto total = bytes_of(added.d());
      const float initial = std::bit_cast<float>(0x40404040U);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < shape.m * shape.n; ++i) {
        float x = 0, y = 0;
        const auto at = static_cast<std::size_t>(GemmCase::kGuardBytes + 4 * i);
        std::memcpy(&x, plain.data() + at, 4);
        std::memcpy(&y, total.data() + at, 4);
        wrong += x + initial == y ? 0 : 1;
      }
      EXPECT_EQ(wrong, 0) << to_text(shape) << " by " << text;
    }
  }
}

// Several tiles a CTA, and additions that hold up the other warps' reads of shared memory: two
// launches on the same D give the same bits. (Stages that were handed back too early gave sums with
// other scales here.)
TEST_F(GemmOutputs, AdditionsRepeat) {
  for (const char* text :
       {"tile=192x112x128 stages=5 wg=3 raster=16n store=direct",
        "tile=128x64x128 stages=4 wg=1 unroll=2 inflight=2 ctas=2 store=direct pdl=early",
        "tile=64x48x128 stages=7 wg=1 unroll=2 inflight=2 ctas=2 store=direct",
        "tile=192x128x128 stages=4 wg=3", "tile=256x128x128 stages=4 wg=2 scales=held"}) {
    const auto config = parse_gemm_config(text);
    ASSERT_TRUE(config) << text;
    const GemmShape shape{6144, 4096, 1024};
    GemmCase c(gpu(), weight_gradient(), shape, 22200);
    std::vector<std::uint32_t> first, second;
    for (std::vector<std::uint32_t>* d : {&first, &second}) {
      c.poison_output();
      c.run_config(*config, gpu().stream());
      d->resize(static_cast<std::size_t>(shape.m * c.ldd()));
      ASSERT_TRUE(c.d().download(d->data(), d->size() * 4, gpu().stream(),
                                 static_cast<std::size_t>(GemmCase::kGuardBytes)));
      gpu().synchronize();
    }
    std::size_t differing = 0;
    for (std::size_t i = 0; i < first.size(); ++i)
      differing += static_cast<std::size_t>(first[i] != second[i]);
    EXPECT_EQ(differing, 0U) << text;
  }
}

// 256 * 2^-140 + 2^-141.
TEST_F(GemmOutputs, SubnormalsAreKept) {
  for (const char* text : kAddingConfigs) {
    GemmCase c(gpu(), weight_gradient(), {200, 136, 256}, 22500, {}, CodeMode::kAllEqual);
    const std::vector<float> scales(200, 0x1p-70F);
    for (const std::size_t block : {0U, 1U}) {
      ASSERT_TRUE(c.a_scale().upload(scales.data(), 200 * 4, gpu().stream(), block * 200 * 4));
      ASSERT_TRUE(c.b_scale().upload(scales.data(), 136 * 4, gpu().stream(), block * 136 * 4));
    }
    const std::vector<float> before(200 * 136, 0x1p-141F);
    ASSERT_TRUE(c.d().upload(before.data(), before.size() * 4, gpu().stream(),
                             static_cast<std::size_t>(GemmCase::kGuardBytes)));
    const auto config = parse_gemm_config(text);
    ASSERT_TRUE(config);
    c.run_config(*config, gpu().stream());
    std::vector<float> after(before.size(), 1.0F);
    ASSERT_TRUE(c.d().download(after.data(), after.size() * 4, gpu().stream(),
                               static_cast<std::size_t>(GemmCase::kGuardBytes)));
    gpu().synchronize();
    EXPECT_EQ(std::ranges::count(after, 0x1p-132F + 0x1p-141F), std::ssize(after))
        << text << ": " << after.front();
  }
}

// An infinite scale, a NaN code, and a sum that only rounding makes infinite.
TEST_F(GemmOutputs, SentriesFireOnExactlyThePoisonedCases) {
  std::uint64_t seed = 23000;
  for (const auto& [problem, config] : variants()) {
    if (!has_sentry(problem)) continue;
    const GemmShape shape{config.block_m + 5, config.block_n + 8, 1024 + 77};
    GemmCase c = finite_case(problem, shape, ++seed);
    if (refused_by(config, c.problem(), has_tokens_in_k(problem) ? shape.k : shape.m,
                   gpu().device()) != nullptr) {
      continue;
    }
    const auto fires = [&] {
      c.poison_output();
      c.run_config(config, gpu().stream());
      return c.sentry();
    };
    EXPECT_EQ(fires(), 0U) << "nothing is poisoned";
    const auto last_row = static_cast<std::size_t>(shape.m - 1);
    const std::vector<std::uint8_t> codes = bytes_of(c.a());
    const std::size_t nan_at = last_row * static_cast<std::size_t>(c.lda()) + 3;
    write<std::uint8_t>(c.a(), nan_at, 0x7F);  // a NaN of both types
    EXPECT_EQ(fires(), 1U) << "a NaN code";
    write<std::uint8_t>(c.a(), nan_at, codes[nan_at]);
    EXPECT_EQ(fires(), 0U) << "the NaN is gone";
    if (scheme_of(problem) == Scheme::kMx) {
      const auto ld = static_cast<std::size_t>(c.args().a_scale_ld);
      write<std::uint8_t>(c.a_scale(), last_row * ld, 0xFF);  // NaN
    } else if (problem.a.scale == ScaleFormat::kUe8m0x4) {
      write<std::uint32_t>(c.a_scale(), last_row, 0xFFFFFFFFU);  // four NaNs of E8M0
    } else {
      const bool one_scale = problem.a.granularity == Granularity::kPerTensor;
      write<float>(c.a_scale(), one_scale ? 0 : last_row, std::numeric_limits<float>::infinity());
    }
    EXPECT_EQ(fires(), 1U) << "a scale that is not finite";
    if (HasFailure()) FAIL() << to_text(problem) << "\n" << to_text(config);
  }
}

// Whole tiles and tiles that overlap, rows and columns outside D, and values that are not finite.
TEST_F(GemmOutputs, SquaresAreThoseOfD) {
  std::uint64_t seed = 23500;
  std::size_t cases = 0;
  for (const auto& [problem, config] : variants()) {
    if (problem.sentry != Sentry::kSquares) continue;
    for (const GemmShape shape : {GemmShape{config.block_m + 5, config.block_n + 8, 1024 + 77},
                                  GemmShape{700, 1032, 256}, GemmShape{1, 8, 128}}) {
      GemmCase c = finite_case(problem, shape, ++seed);
      if (refused_by(config, c.problem(), has_tokens_in_k(problem) ? shape.k : shape.m,
                     gpu().device()) != nullptr) {
        continue;
      }
      ++cases;
      c.poison_output();
      c.run_config(config, gpu().stream());
      const octile_squares once = c.squares();
      const std::vector<std::uint8_t> d = bytes_of(c.d());
      double expected = 0;
      for (std::int64_t row = 0; row < shape.m; ++row) {
        for (std::int64_t column = 0; column < shape.n; ++column) {
          const double x = reference::load_as_float(d.data() + GemmCase::kGuardBytes,
                                                    problem.d.dtype, row * c.ldd() + column);
          expected += x * x;
        }
      }
      // D in 16 bits was rounded after its squares were taken.
      const bool rounded = problem.d.dtype != DType::kFP32;
      expect_like_squares(once, expected, rounded ? 0x1p-7 : kSquaresTolerance);
      if (!problem.accumulate) {
        // A second call adds the same bits, on fewer SMs too.
        c.run_config(config, gpu().stream(), 3);
        const octile_squares twice = c.squares();
        for (std::size_t i = 0; i < std::size(once.words[0]); ++i) {
          EXPECT_EQ(word_of_all_copies(twice, i), 2 * word_of_all_copies(once, i)) << i;
        }
      }
      if (HasFailure()) FAIL() << to_text(problem) << "\n" << to_text(config);
    }
    const GemmShape shape{config.block_m + 5, config.block_n + 8, 1024};
    GemmCase c = finite_case(problem, shape, ++seed);
    c.poison_output();
    if (problem.a.scale == ScaleFormat::kF32) {
      write(c.a_scale(), 0, std::numeric_limits<float>::infinity());
      c.run_config(config, gpu().stream());
      EXPECT_EQ(sum_of_squares(c.squares()), std::numeric_limits<double>::infinity());
    }
  }
  count_cases(cases, 0);
  EXPECT_GT(cases, 20U);
}

TEST_F(GemmOutputs, AnSmLimitChangesNoBit) {
  std::uint64_t seed = 24000;
  for (const auto& [problem, config] : variants()) {
    const GemmShape shape{700, 1032, 1024};
    GemmCase c(gpu(), problem, shape, ++seed);
    if (refused_by(config, c.problem(), has_tokens_in_k(problem) ? shape.k : shape.m,
                   gpu().device()) != nullptr) {
      continue;
    }
    c.run_config(config, gpu().stream());
    const auto all = bytes_of(c.d());
    for (const int limit : {1, 17, 100}) {
      c.poison_output();
      c.run_config(config, gpu().stream(), limit);
      ASSERT_EQ(bytes_of(c.d()), all) << limit << "\n" << to_text(problem) << to_text(config);
    }
  }
}

TEST_F(GemmOutputs, AThousandWeightGradientsAreBitEqual) {
  GemmProblem problem = weight_gradient();
  problem.accumulate = false;
  GemmCase c(gpu(), problem, {1536, 2112, 1000}, 25000);
  c.run_plan(gpu().stream());
  const auto first = bytes_of(c.d());
  const auto config = default_config(problem, 1000, gpu().device());
  for (int i = 0; i < 1000; ++i) c.run_config(config, gpu().stream());
  EXPECT_EQ(bytes_of(c.d()), first);
  c.judge(reference::tolerance_c(128));
}

// Past 2^31 elements of A and of D.
TEST_F(GemmOutputs, BeyondTwoToTheThirtyOne) {
  for (const GemmShape shape : {GemmShape{140000, 64, 16384}, GemmShape{46400, 46400, 128}}) {
    GemmCase c(gpu(), weight_gradient(), shape, 25500);
    c.run_plan(gpu().stream());
    c.judge(reference::tolerance_c(128));
  }
}

// For compute-sanitizer: one small case of every variant.
TEST_F(GemmOutputs, SanitizerCases) {
  std::uint64_t seed = 26000;
  for (const auto& [problem, config] : variants()) {
    const std::int64_t k = (2 * config.stages + 1) * config.splits * 128 + 13;
    GemmCase c = finite_case(problem, {config.block_m + 5, config.block_n + 8, k}, ++seed);
    c.run_config(config, gpu().stream());
    c.judge(reference::tolerance_c(problem.promote, c.shape().k));
    if (HasFailure()) FAIL() << to_text(problem) << "\n" << to_text(config);
  }
}

// The same of FP8 D, whose bits Fp8DEqualsQuantisingFp32D judges.
TEST_F(GemmOutputs, SanitizerCasesOfFp8D) {
  std::uint64_t seed = 26500;
  for (const auto& [problem, config] : covering_fp8_d_variants(gpu().device())) {
    if (++seed % 4 != 0) continue;
    const std::int64_t k = (2 * config.stages + 1) * 128 + 13;
    GemmCase c(gpu(), problem, {config.block_m + 5, config.block_n + 16, k}, seed, {.d = 16});
    c.run_config(config, gpu().stream());
    gpu().synchronize();
    if (has_sentry(problem)) {
      EXPECT_EQ(c.sentry(), 0U);
    }
    if (HasFailure()) FAIL() << to_text(problem) << "\n" << to_text(config);
  }
}

}  // namespace
}  // namespace octile::tests
