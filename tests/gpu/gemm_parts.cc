#include "tests/gpu/gemm_parts.h"

#include <bit>

#include "runtime/families/gemm/complete.h"
#include "runtime/families/gemm/launch.h"
#include "runtime/reference/gemm/squares.h"
#include "tests/gpu/checker_arguments.h"

namespace octile::tests {

void compile_variants(const std::vector<GemmVariant>& variants) {
  GpuSession* const gpu = GpuSession::get();
  if (gpu == nullptr) return;
  gpu->for_each_on_cores(variants.size(), [&](std::size_t i) {
    const auto& [problem, config] = variants[i];
    (void)gpu->internals().engine.build(problem, config, gpu->device());
  });
}

void run_kernel(GpuSession& gpu, const GemmProblem& problem, const GemmConfig& config,
                const GemmArguments& args, CUstream stream) {
  const auto call = complete(problem, args);
  ASSERT_TRUE(call) << call.error().message;
  auto built = gpu.internals().engine.build(problem, config, gpu.device());
  ASSERT_TRUE(built) << built.error().message;
  auto loaded = gpu.internals().registry.load(gpu.driver(), 0, built->kernel);
  ASSERT_TRUE(loaded) << loaded.error().message;
  const ResolvedGemm resolved = resolve(problem, config, gpu.device(), *loaded);
  const LaunchSite site{.driver = *gpu.driver(), .stream = stream, .in_primary = true};
  const Status launched = enqueue(site, resolved, *call);
  ASSERT_TRUE(launched) << launched.error().message;
}

void fill_operand(GpuSession& gpu, const OperandToFill& operand, bool within_fp16,
                  std::uint64_t seed) {
  constexpr int kScaleSpread = 3;
  void* p = operand.codes.pointer();
  std::int64_t rows = operand.rows, cols = operand.cols, ld = operand.ld;
  int e5m2 = operand.type.dtype == DType::kE5M2 ? 1 : 0;
  int mode = within_fp16 ? 4 : 0;  // CodeMode::kAlternating, kQuantised
  gpu.launch("fill_codes", kFillBlocks, kFillThreads, {&p, &rows, &cols, &ld, &seed, &e5m2, &mode});
  void* q = operand.scales.pointer();
  auto count = static_cast<std::int64_t>(operand.scales.bytes() / 4);
  std::uint64_t salt = seed + 2;
  int spread = within_fp16 ? 0 : kScaleSpread;
  int format = static_cast<int>(operand.type.scale);
  gpu.launch("fill_scales", kFillBlocks, kFillThreads, {&q, &count, &salt, &spread, &format});
}

DeviceBuffer make_verdict(GpuSession& gpu) { return gpu.zeroed(sizeof(DeviceVerdict)); }

void judge_part(GpuSession& gpu, const GemmProblem& problem, const reference::GemmPart& part,
                double c, const DeviceBuffer& verdict) {
  const float initial =
      std::bit_cast<float>(problem.d.dtype == DType::kFP32 ? 0x40404040U : 0x40400000U);
  int a_e5m2 = problem.a.dtype == DType::kE5M2 ? 1 : 0;
  int b_e5m2 = problem.b.dtype == DType::kE5M2 ? 1 : 0;
  int b_rows = problem.b.granularity != Granularity::k128x128 ? 1 : 0;
  void* v = verdict.pointer();
  const void* a = part.args.a;
  const void* b = part.args.b;
  DeviceScales sa = device_scales(part.args.a_scale, part.args.a_scale_ld, problem.a);
  DeviceScales sb = device_scales(part.args.b_scale, part.args.b_scale_ld, problem.b);
  DeviceOutput out{
      part.args.d, part.args.ldd, static_cast<int>(problem.d.dtype),
      0,           nullptr,       problem.accumulate ? static_cast<double>(initial) : 0.0};
  std::int64_t lda = part.args.lda, ldb = part.args.ldb;
  int m = static_cast<int>(part.args.shape.m), n = static_cast<int>(problem.n);
  int k = static_cast<int>(has_tokens_in_k(problem) ? part.args.shape.k : problem.k);
  const std::int64_t tiles =
      ceil_div(part.args.shape.m, std::int64_t{64}) * ceil_div(problem.n, std::int64_t{64});
  if (tiles == 0) return;
  gpu.launch("check_product", static_cast<unsigned>(tiles), 256,
             {&a, &lda, &sa, &b, &ldb, &sb, &b_rows, &out, &m, &n, &k, &a_e5m2, &b_e5m2, &c, &v});
}

void expect_no_violation(GpuSession& gpu, const DeviceBuffer& verdict) {
  DeviceVerdict host{};
  EXPECT_TRUE(verdict.download(&host, sizeof host, gpu.stream()));
  gpu.synchronize();
  EXPECT_EQ(host.violations, 0U) << "element " << host.first << " of a GEMM; c needed up to "
                                 << std::bit_cast<float>(host.worst_c);
}

octile_squares squares_in(GpuSession& gpu, const DeviceBuffer& sentry) {
  octile_squares squares{};
  EXPECT_TRUE(sentry.download(&squares, sizeof squares, gpu.stream()));
  gpu.synchronize();
  return squares;
}

void expect_like_squares(const octile_squares& seen, double expected, double tolerance) {
  const double sum = sum_of_squares(seen);
  if (sum != expected) {
    EXPECT_NEAR(sum / expected, 1, tolerance) << sum;
  }
}

std::vector<std::uint8_t> bytes_of(GpuSession& gpu, const DeviceBuffer& buffer) {
  std::vector<std::uint8_t> host(buffer.bytes());
  EXPECT_TRUE(buffer.download(host.data(), host.size(), gpu.stream()));
  gpu.synchronize();
  return host;
}

}  // namespace octile::tests
