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
    : GemmTensors(gpu, recipe), m_(m), layout_(layout) {
  problem_.m = kDynamic;
  problem_.n = n;
  problem_.k = k;
  problem_.batch = batch;
  // Rows of one matrix, as far apart as if packed.
  lda_ = round_up(k, 16) + 16;
  ldb_ = round_up(k, 16) + 32;
  ldd_ = n + 8;
  d_rows_ = batch * m;
  a_scale_ld_ = packed_scale_ld(problem_.a, m, k);
  b_scale_ld_ = packed_scale_ld(problem_.b, n, k);
  const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  a_ = gpu_.zeroed(bytes(batch * m * lda_));
  b_ = gpu_.zeroed(bytes(batch * n * ldb_));
  a_scale_ = gpu_.zeroed(bytes(4 * batch * packed_scale_rows(problem_.a, m, k) * a_scale_ld_));
  b_scale_ = gpu_.zeroed(bytes(4 * batch * packed_scale_rows(problem_.b, n, k) * b_scale_ld_));
  d_ = gpu_.allocate(bytes(batch * m * ldd_ * element_bytes() + 2 * kGuardBytes));
  if (has_sentry(problem_)) sentry_ = gpu_.zeroed(sizeof(octile_squares));
  const bool within_fp16 = problem_.d.dtype == DType::kFP16;
  fill_operand(gpu_, {a_, a_scale_, problem_.a, batch * m, k, lda_}, within_fp16, seed * 4);
  fill_operand(gpu_, {b_, b_scale_, problem_.b, batch * n, k, ldb_}, within_fp16, seed * 4 + 1);
  poison_output();
}

GemmArguments GemmBatchCase::args() const {
  GemmArguments args = arguments(m_);
  // Matrices side by side fill the same memory as packed ones.
  const bool aside = layout_ == BatchLayout::kSideBySide;
  const auto place = [&](std::int64_t& ld, std::int64_t& stride) {
    stride = aside ? ld : 0;
    if (aside) ld *= problem_.batch;
  };
  place(args.lda, args.batch.a_stride);
  place(args.ldb, args.batch.b_stride);
  place(args.ldd, args.batch.d_stride);
  place(args.a_scale_ld, args.batch.a_scale_stride);
  place(args.b_scale_ld, args.batch.b_scale_stride);
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

void GemmBatchCase::judge() {
  const DeviceBuffer verdict = make_verdict(gpu_);
  const double c =
      reference::tolerance_c(problem_.promote, problem_.k, coarsest_sums(gpu_.device()));
  for (const reference::GemmPart& part : parts()) judge_part(gpu_, problem_, part, c, verdict);
  expect_no_violation(gpu_, verdict);
  expect_rest_untouched();
}

// Every layout has n columns of D in each row of ldd_ elements.
void GemmBatchCase::expect_rest_untouched() {
  const std::vector<std::uint8_t> bytes = bytes_of_d();
  const auto poisoned = [](std::uint8_t byte) { return byte == kPoison; };
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.begin() + kGuardBytes, poisoned));
  EXPECT_TRUE(std::all_of(bytes.end() - kGuardBytes, bytes.end(), poisoned));
  std::int64_t written = 0;
  for (std::int64_t row = 0; row < problem_.batch * m_; ++row) {
    const auto* begin = bytes.data() + kGuardBytes + row * ldd_ * element_bytes();
    const auto* end = begin + ldd_ * element_bytes();
    written += end - (begin + problem_.n * element_bytes()) -
               std::count_if(begin + problem_.n * element_bytes(), end, poisoned);
  }
  EXPECT_EQ(written, 0) << "bytes outside the matrices were written";
}

}  // namespace octile::tests
