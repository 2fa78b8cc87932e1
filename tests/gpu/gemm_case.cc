#include "tests/gpu/gemm_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>

#include "generator/core/types.h"
#include "tests/gpu/checker_arguments.h"
#include "tests/gpu/gemm_parts.h"
#include "tests/support/gemm_call.h"

namespace octile::tests {
namespace {

// Cases are judged on several threads.
struct Worst {
  std::mutex mutex;
  std::map<int, double> by_promote;
};
Worst& worst() {
  static Worst seen;
  return seen;
}

// The scales of an operand of rows x k: `outer` runs of them, `ld` apart.
struct ScaleArray {
  std::int64_t outer = 0, ld = 0, element_bytes = 4;
  std::int64_t bytes() const { return outer * ld * element_bytes; }
};

ScaleArray scale_array(const TensorType& type, std::int64_t rows, std::int64_t k,
                       std::int64_t stride) {
  const std::int64_t k_blocks = ceil_div(k, 128);
  if (is_mx(type)) {
    const std::int64_t runs = type.granularity == Granularity::k32x32 ? ceil_div(rows, 32) : rows;
    return {runs, round_up(ceil_div(k, 32), 4) + stride, 1};
  }
  if (type.granularity == Granularity::k128x128) {
    return {ceil_div(rows, 128), round_up(k_blocks, 4) + stride};
  }
  return {k_blocks, round_up(rows, 4) + stride};
}

}  // namespace

std::string to_text(const GemmShape& s) { return fmt::format("{}x{}x{}", s.m, s.n, s.k); }

GemmProblem weight_gradient() {
  GemmProblem p;
  p.m = 0;
  p.k = kDynamic;
  p.b.granularity = Granularity::k1x128;
  p.d.dtype = DType::kFP32;
  p.accumulate = true;
  return p;
}

GemmProblem scaled_at_end(Granularity granularity, int promote) {
  GemmProblem p;
  p.a.granularity = p.b.granularity = granularity;
  p.promote = promote;
  return p;
}

double worst_c_seen(int promote) {
  const std::scoped_lock lock(worst().mutex);
  return worst().by_promote[promote];
}

GemmCase::GemmCase(GpuSession& gpu, const GemmProblem& recipe, GemmShape shape, std::uint64_t seed,
                   Strides strides, CodeMode code_mode, int scale_spread)
    : GemmTensors(gpu, recipe), shape_(shape) {
  const bool in_k = has_tokens_in_k(recipe);
  problem_.m = in_k ? shape.m : kDynamic;
  problem_.n = shape.n;
  problem_.k = in_k ? kDynamic : shape.k;
  const ScaleArray scales_a = scale_array(problem_.a, shape.m, shape.k, strides.a_scale);
  const ScaleArray scales_b = scale_array(problem_.b, shape.n, shape.k, strides.b_scale);
  lda_ = round_up(shape.k, 16) + strides.a;
  ldb_ = round_up(shape.k, 16) + strides.b;
  ldd_ = shape.n + strides.d;
  d_rows_ = shape.m;
  a_scale_ld_ = scales_a.ld;
  b_scale_ld_ = scales_b.ld;
  const auto bytes = [](std::int64_t n) {
    return static_cast<std::size_t>(std::max<std::int64_t>(n, 16));
  };
  a_ = gpu_.zeroed(bytes(shape.m * lda_));
  b_ = gpu_.zeroed(bytes(shape.n * ldb_));
  a_scale_ = gpu_.zeroed(bytes(scales_a.bytes()));
  b_scale_ = gpu_.zeroed(bytes(scales_b.bytes()));
  d_ = gpu_.allocate(bytes(shape.m * ldd_ * size_of(problem_.d.dtype) + 2 * kGuardBytes));
  if (is_fp8(problem_.d.dtype)) {
    d_scale_ = gpu_.allocate(bytes(ceil_div(shape.n, 128) * round_up(shape.m, 4) * 4));
  }
  if (has_sentry(problem_)) sentry_ = gpu_.zeroed(sizeof(octile_squares));
  const auto fill_codes = [&](DeviceBuffer& buffer, std::int64_t rows, std::int64_t ld,
                              std::uint64_t salt, DType dtype) {
    void* p = buffer.pointer();
    std::int64_t cols = shape.k;
    std::uint64_t s = seed * 4 + salt;
    int e5m2 = dtype == DType::kE5M2 ? 1 : 0;
    int mode = static_cast<int>(code_mode);
    gpu_.launch("fill_codes", kFillBlocks, kFillThreads, {&p, &rows, &cols, &ld, &s, &e5m2, &mode});
  };
  const auto fill_scales = [&](DeviceBuffer& buffer, std::uint64_t salt, ScaleFormat scales) {
    void* p = buffer.pointer();
    std::int64_t count = static_cast<std::int64_t>(buffer.bytes() / 4);
    std::uint64_t s = seed * 4 + salt;
    int spread = scale_spread;
    int format = static_cast<int>(scales);
    gpu_.launch("fill_scales", kFillBlocks, kFillThreads, {&p, &count, &s, &spread, &format});
  };
  fill_codes(a_, shape.m, lda_, 0, problem_.a.dtype);
  fill_codes(b_, shape.n, ldb_, 1, problem_.b.dtype);
  fill_scales(a_scale_, 2, problem_.a.scale);
  fill_scales(b_scale_, 3, problem_.b.scale);
  if (problem_.bias) {
    bias_ = gpu_.zeroed(bytes(shape.n * size_of(*problem_.bias)));
    void* p = bias_.pointer();
    std::int64_t count = shape.n;
    std::uint64_t s = seed;
    int type = static_cast<int>(*problem_.bias);
    gpu_.launch("fill_bias", 16, kFillThreads, {&p, &count, &s, &type});
  }
  poison_output();
}

GemmArguments GemmCase::args() const {
  GemmArguments args = arguments(has_tokens_in_k(problem_) ? shape_.k : shape_.m);
  if (is_fp8(problem_.d.dtype)) args.d_scales.scale_ld = round_up(shape_.m, 4);
  args.bias = bias_.pointer();
  return args;
}

void GemmCase::run_plan(CUstream stream) {
  octile_plan* plan = nullptr;
  expect_ok(octile_plan_create(gpu_.library(), "cuda:0", to_text(Problem(problem_)).c_str(), &plan),
            "octile_plan_create");
  const GemmArguments a = args();
  expect_ok(octile_plan_prepare(plan, a.tokens, a.tokens, OCTILE_PREPARE_DEFAULT),
            "octile_plan_prepare");
  expect_ok(tests::run_gemm(plan, a, stream), "octile_gemm_run");
  expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
}

void GemmCase::run_config(const GemmConfig& config, CUstream stream, int sm_limit) {
  GemmArguments call = args();
  call.sm_limit = sm_limit;
  run_call(config, call, stream);
}

Verdict GemmCase::raw_verdict(double c) {
  DeviceBuffer device_verdict = gpu_.zeroed(sizeof(DeviceVerdict));
  const GemmArguments g = args();
  const void* a = g.a;
  const void* b = g.b;
  DeviceScales sa = device_scales(g.a_scale, a_scale_ld_, problem_.a);
  DeviceScales sb = device_scales(g.b_scale, b_scale_ld_, problem_.b);
  std::int64_t lda = lda_, ldb = ldb_;
  int b_rows = problem_.b.granularity != Granularity::k128x128 ? 1 : 0;
  const float initial =
      std::bit_cast<float>(problem_.d.dtype == DType::kFP32 ? 0x40404040U : 0x40400000U);
  DeviceOutput out{g.d,
                   ldd_,
                   static_cast<int>(problem_.d.dtype),
                   problem_.bias ? static_cast<int>(*problem_.bias) : 0,
                   g.bias,
                   problem_.accumulate ? static_cast<double>(initial) : 0.0};
  int m = static_cast<int>(shape_.m), n = static_cast<int>(shape_.n),
      k = static_cast<int>(shape_.k);
  int a_e5m2 = problem_.a.dtype == DType::kE5M2 ? 1 : 0;
  int b_e5m2 = problem_.b.dtype == DType::kE5M2 ? 1 : 0;
  void* v = device_verdict.pointer();
  const std::int64_t tiles = ceil_div(shape_.m, 64) * ceil_div(shape_.n, 64);
  if (tiles > 0) {
    gpu_.launch(
        "check_product", static_cast<unsigned>(tiles), 256,
        {&a, &lda, &sa, &b, &ldb, &sb, &b_rows, &out, &m, &n, &k, &a_e5m2, &b_e5m2, &c, &v});
  }
  DeviceVerdict host{};
  EXPECT_TRUE(device_verdict.download(&host, sizeof host, gpu_.stream()));
  gpu_.synchronize();
  return {host.violations, host.first, std::bit_cast<float>(host.worst_c),
          std::bit_cast<float>(host.worst_rel)};
}

Verdict GemmCase::judge(double c) {
  const Verdict verdict = raw_verdict(c);
  EXPECT_EQ(verdict.violations, 0U)
      << to_text(shape_) << ": element (" << (shape_.n > 0 ? verdict.first / shape_.n : 0) << ", "
      << (shape_.n > 0 ? verdict.first % shape_.n : 0) << ") outside the tolerance; c needed up to "
      << verdict.worst_c;
  {
    const std::scoped_lock lock(worst().mutex);
    double& most = worst().by_promote[problem_.promote];
    most = std::max(most, static_cast<double>(verdict.worst_c));
  }

  DeviceBuffer touched = gpu_.zeroed(8);
  const void* buffer = d_.pointer();
  std::int64_t bytes = static_cast<std::int64_t>(d_.bytes());
  std::int64_t first = kGuardBytes;
  std::int64_t rows = shape_.m;
  const std::int64_t element = size_of(problem_.d.dtype);
  std::int64_t row_bytes = shape_.n * element;
  std::int64_t stride_bytes = std::max<std::int64_t>(ldd_ * element, 1);
  int poison = kPoison;
  void* counter = touched.pointer();
  gpu_.launch("check_guard", kFillBlocks, kFillThreads,
              {&buffer, &bytes, &first, &rows, &row_bytes, &stride_bytes, &poison, &counter});
  EXPECT_EQ(gpu_.read_counter(touched), 0U) << to_text(shape_) << ": bytes outside D were written";
  return verdict;
}

void compile_plans(const std::vector<PlannedGemm>& planned) {
  GpuSession* const gpu = GpuSession::get();
  if (gpu == nullptr) return;
  gpu->for_each_on_cores(planned.size(), [&](std::size_t i) {
    const auto& [recipe, shape] = planned[i];
    GemmProblem problem = recipe;
    const bool in_k = has_tokens_in_k(recipe);
    problem.m = in_k ? shape.m : kDynamic;
    problem.n = shape.n;
    problem.k = in_k ? kDynamic : shape.k;
    const std::int64_t tokens = in_k ? shape.k : shape.m;
    octile_plan* plan = nullptr;
    const std::string text = to_text(Problem(problem));
    if (octile_plan_create(gpu->library(), "cuda:0", text.c_str(), &plan) != OCTILE_OK) return;
    octile_plan_prepare(plan, tokens, tokens, OCTILE_PREPARE_DEFAULT);
    octile_plan_destroy(plan);
  });
}

void compile_configs(const GemmProblem& problem, const std::vector<GemmConfig>& configs) {
  std::vector<GemmVariant> variants;
  for (const GemmConfig& config : configs) variants.push_back({problem, config});
  compile_variants(variants);
}

}  // namespace octile::tests
