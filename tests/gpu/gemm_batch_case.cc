#include "tests/gpu/gemm_batch_case.h"

#include <algorithm>
#include <bit>

#include "generator/core/layout.h"
#include "runtime/families/gemm/launch.h"
#include "runtime/families/gemm/tolerance.h"
#include "tests/gpu/checker_arguments.h"

namespace octile::tests {
namespace {

constexpr int kScaleSpread = 3;

}  // namespace

GemmBatchCase::GemmBatchCase(GpuSession& gpu, const GemmProblem& recipe, std::int64_t batch,
                             std::int64_t m, std::int64_t n, std::int64_t k, std::uint64_t seed,
                             BatchLayout layout)
    : gpu_(gpu), problem_(recipe), m_(m), layout_(layout) {
  problem_.m = kDynamic;
  problem_.n = n;
  problem_.k = k;
  problem_.batch = batch;
  a_row_ = round_up(k, 16) + 16;
  b_row_ = round_up(k, 16) + 32;
  d_row_ = n + 8;
  a_scale_row_ = packed_scale_ld(problem_.a, m, k);
  b_scale_row_ = packed_scale_ld(problem_.b, n, k);
  const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  a_ = gpu_.zeroed(bytes(batch * m * a_row_));
  b_ = gpu_.zeroed(bytes(batch * n * b_row_));
  a_scale_ = gpu_.zeroed(bytes(4 * batch * packed_scale_rows(problem_.a, m, k) * a_scale_row_));
  b_scale_ = gpu_.zeroed(bytes(4 * batch * packed_scale_rows(problem_.b, n, k) * b_scale_row_));
  d_ = gpu_.allocate(bytes(batch * m * d_row_ * element_bytes() + 2 * kGuardBytes));
  if (problem_.sentry) sentry_ = gpu_.zeroed(16);
  fill(a_, batch * m, a_row_, problem_.a.dtype, a_scale_, seed * 4);
  fill(b_, batch * n, b_row_, problem_.b.dtype, b_scale_, seed * 4 + 1);
  poison_output();
}

void GemmBatchCase::fill(DeviceBuffer& codes, std::int64_t rows, std::int64_t ld, DType type,
                         DeviceBuffer& scales, std::uint64_t seed) {
  void* p = codes.pointer();
  std::int64_t cols = problem_.k;
  int e5m2 = type == DType::kE5M2 ? 1 : 0;
  int mode = problem_.d.dtype == DType::kFP16 ? 4 : 0;  // sums stay within fp16 (CodeMode)
  gpu_.launch("fill_codes", kFillBlocks, kFillThreads,
              {&p, &rows, &cols, &ld, &seed, &e5m2, &mode});
  void* q = scales.pointer();
  auto count = static_cast<std::int64_t>(scales.bytes() / 4);
  std::uint64_t salt = seed + 2;
  int spread = problem_.d.dtype == DType::kFP16 ? 0 : kScaleSpread;
  int format = static_cast<int>(&scales == &b_scale_ ? problem_.b.scale : problem_.a.scale);
  gpu_.launch("fill_scales", kFillBlocks, kFillThreads, {&q, &count, &salt, &spread, &format});
}

GemmArguments GemmBatchCase::args() const {
  GemmArguments args;
  args.tokens = m_;
  args.a = a_.pointer();
  args.a_scale = a_scale_.pointer();
  args.b = b_.pointer();
  args.b_scale = b_scale_.pointer();
  args.d = static_cast<char*>(d_.pointer()) + kGuardBytes;
  args.sentry = static_cast<std::uint32_t*>(sentry_.pointer());
  // Matrices side by side fill the same memory as packed ones.
  const bool aside = layout_ == BatchLayout::kSideBySide;
  const auto place = [&](std::int64_t row, std::int64_t& ld, std::int64_t& stride) {
    ld = aside ? problem_.batch * row : row;
    stride = aside ? row : 0;
  };
  place(a_row_, args.lda, args.a_batch_stride);
  place(b_row_, args.ldb, args.b_batch_stride);
  place(d_row_, args.ldd, args.d_batch_stride);
  place(a_scale_row_, args.a_scale_ld, args.a_scale_batch_stride);
  place(b_scale_row_, args.b_scale_ld, args.b_scale_batch_stride);
  if (layout_ == BatchLayout::kSharedB) {
    args.b_batch_stride = args.b_scale_batch_stride = OCTILE_BATCH_SHARED;
  }
  return args;
}

std::vector<reference::GemmPart> GemmBatchCase::parts() const {
  const reference::GemmArgs args = reference_args(problem_, this->args());
  std::vector<reference::GemmPart> parts;
  std::int64_t unused = 0;
  for (std::int64_t i = 0; i < problem_.batch; ++i) {
    parts.push_back(reference::part_of(problem_, args, i, unused));
  }
  return parts;
}

void GemmBatchCase::poison_output() {
  ASSERT_TRUE(d_.fill(kPoison, gpu_.stream()));
  if (problem_.sentry) {
    ASSERT_TRUE(sentry_.fill(0, gpu_.stream()));
  }
  if (!problem_.accumulate) return;
  ASSERT_EQ((*gpu_.driver())
                ->cuMemsetD2D8Async(
                    d_.get() + kGuardBytes, static_cast<std::size_t>(d_row_ * element_bytes()),
                    kInitialByte, static_cast<std::size_t>(problem_.n * element_bytes()),
                    static_cast<std::size_t>(problem_.batch * m_), gpu_.stream()),
            CUDA_SUCCESS);
}

void GemmBatchCase::run_config(const GemmConfig& config, CUstream stream) {
  auto built = gpu_.internals().engine.build(problem_, config, gpu_.device());
  ASSERT_TRUE(built) << built.error().message;
  auto loaded = gpu_.internals().registry.load(gpu_.driver(), 0, built->kernel);
  ASSERT_TRUE(loaded) << loaded.error().message;
  const ResolvedGemm resolved = resolve(problem_, config, gpu_.device(), *loaded);
  const LaunchSite site{.driver = *gpu_.driver(), .stream = stream, .in_primary = true};
  GemmArguments call = args();
  const Status good = check_arguments(problem_, call);
  ASSERT_TRUE(good) << good.error().message;
  const Status launched = launch(site, resolved, call);
  ASSERT_TRUE(launched) << launched.error().message;
}

std::vector<std::uint8_t> GemmBatchCase::bytes_of_d() {
  std::vector<std::uint8_t> host(d_.bytes());
  EXPECT_TRUE(d_.download(host.data(), host.size(), gpu_.stream()));
  gpu_.synchronize();
  return host;
}

void GemmBatchCase::judge_part(const reference::GemmPart& part, const DeviceBuffer& verdict) {
  const float initial =
      std::bit_cast<float>(problem_.d.dtype == DType::kFP32 ? 0x40404040U : 0x40400000U);
  int a_e5m2 = problem_.a.dtype == DType::kE5M2 ? 1 : 0;
  int b_e5m2 = problem_.b.dtype == DType::kE5M2 ? 1 : 0;
  int b_rows = scales_rows_of_b(problem_) ? 1 : 0;
  double c = reference::tolerance_c(problem_.promote, problem_.k);
  void* v = verdict.pointer();
  const void* a = part.args.a;
  const void* b = part.args.b;
  DeviceScales sa = device_scales(part.args.a_scale, part.args.a_scale_ld, problem_.a);
  DeviceScales sb = device_scales(part.args.b_scale, part.args.b_scale_ld, problem_.b);
  DeviceOutput out{
      part.args.d, part.args.ldd, static_cast<int>(problem_.d.dtype),
      0,           nullptr,       problem_.accumulate ? static_cast<double>(initial) : 0.0};
  std::int64_t lda = part.args.lda, ldb = part.args.ldb;
  int m = static_cast<int>(m_), n = static_cast<int>(problem_.n), k = static_cast<int>(problem_.k);
  const std::int64_t tiles =
      ceil_div(m_, std::int64_t{64}) * ceil_div(problem_.n, std::int64_t{64});
  gpu_.launch("check_product", static_cast<unsigned>(tiles), 256,
              {&a, &lda, &sa, &b, &ldb, &sb, &b_rows, &out, &m, &n, &k, &a_e5m2, &b_e5m2, &c, &v});
}

void GemmBatchCase::judge() {
  DeviceBuffer verdict = gpu_.zeroed(sizeof(DeviceVerdict));
  for (const reference::GemmPart& part : parts()) judge_part(part, verdict);
  DeviceVerdict host{};
  EXPECT_TRUE(verdict.download(&host, sizeof host, gpu_.stream()));
  gpu_.synchronize();
  EXPECT_EQ(host.violations, 0U) << "element " << host.first << " of a matrix; c needed up to "
                                 << std::bit_cast<float>(host.worst_c);
  expect_rest_untouched();
}

// Every layout has n columns of D in each row of d_row_ elements.
void GemmBatchCase::expect_rest_untouched() {
  const std::vector<std::uint8_t> bytes = bytes_of_d();
  const auto poisoned = [](std::uint8_t byte) { return byte == kPoison; };
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.begin() + kGuardBytes, poisoned));
  EXPECT_TRUE(std::all_of(bytes.end() - kGuardBytes, bytes.end(), poisoned));
  std::int64_t written = 0;
  for (std::int64_t row = 0; row < problem_.batch * m_; ++row) {
    const auto* begin = bytes.data() + kGuardBytes + row * d_row_ * element_bytes();
    const auto* end = begin + d_row_ * element_bytes();
    written += end - (begin + problem_.n * element_bytes()) -
               std::count_if(begin + problem_.n * element_bytes(), end, poisoned);
  }
  EXPECT_EQ(written, 0) << "bytes outside the matrices were written";
}

}  // namespace octile::tests
