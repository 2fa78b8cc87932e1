#include "tests/gpu/gemm_batch_case.h"

#include <algorithm>

#include "generator/core/layout.h"
#include "generator/core/sum_bits.h"
#include "runtime/families/gemm/complete.h"
#include "runtime/prove/gemm/tolerance.h"
#include "tests/gpu/gemm_parts.h"

namespace octile::tests {

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
  if (has_sentry(problem_)) sentry_ = gpu_.zeroed(sizeof(octile_squares));
  const bool within_fp16 = problem_.d.dtype == DType::kFP16;
  fill_operand(gpu_, {a_, a_scale_, problem_.a, batch * m, k, a_row_}, within_fp16, seed * 4);
  fill_operand(gpu_, {b_, b_scale_, problem_.b, batch * n, k, b_row_}, within_fp16, seed * 4 + 1);
  poison_output();
}

GemmArguments GemmBatchCase::args() const {
  GemmArguments args;
  args.tokens = m_;
  args.a = a_.pointer();
  args.a_scale = a_scale_.pointer();
  args.b = b_.pointer();
  args.b_scale = b_scale_.pointer();
  args.d = static_cast<char*>(d_.pointer()) + kGuardBytes;
  args.monitor.sentry = static_cast<std::uint32_t*>(sentry_.pointer());
  // Matrices side by side fill the same memory as packed ones.
  const bool aside = layout_ == BatchLayout::kSideBySide;
  const auto place = [&](std::int64_t row, std::int64_t& ld, std::int64_t& stride) {
    ld = aside ? problem_.batch * row : row;
    stride = aside ? row : 0;
  };
  place(a_row_, args.lda, args.batch.a_stride);
  place(b_row_, args.ldb, args.batch.b_stride);
  place(d_row_, args.ldd, args.batch.d_stride);
  place(a_scale_row_, args.a_scale_ld, args.batch.a_scale_stride);
  place(b_scale_row_, args.b_scale_ld, args.batch.b_scale_stride);
  if (layout_ == BatchLayout::kSharedB) {
    args.batch.b_stride = args.batch.b_scale_stride = OCTILE_BATCH_SHARED;
  }
  return args;
}

std::vector<reference::GemmPart> GemmBatchCase::parts() const {
  const GemmCall args = complete(problem_, this->args()).value();
  std::vector<reference::GemmPart> parts;
  std::int64_t unused = 0;
  for (std::int64_t i = 0; i < problem_.batch; ++i) {
    parts.push_back(reference::part_of(problem_, args, i, unused));
  }
  return parts;
}

void GemmBatchCase::poison_output() {
  ASSERT_TRUE(d_.fill(kPoison, gpu_.stream()));
  if (has_sentry(problem_)) {
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
  run_kernel(gpu_, problem_, config, args(), stream);
}

std::vector<std::uint8_t> GemmBatchCase::bytes_of_d() { return bytes_of(gpu_, d_); }

void GemmBatchCase::judge() {
  const DeviceBuffer verdict = make_verdict(gpu_);
  const double c =
      reference::tolerance_c(problem_.promote, problem_.k, coarsest_sums(gpu_.device()));
  for (const reference::GemmPart& part : parts()) judge_part(gpu_, problem_, part, c, verdict);
  expect_no_violation(gpu_, verdict);
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
