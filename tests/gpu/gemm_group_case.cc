#include "tests/gpu/gemm_group_case.h"

#include <fmt/format.h>

#include <algorithm>

#include "generator/core/sum_bits.h"
#include "runtime/families/gemm/complete.h"
#include "runtime/prove/gemm/tolerance.h"
#include "tests/gpu/gemm_parts.h"

namespace octile::tests {
namespace {

std::vector<std::int32_t> offsets_of(const std::vector<std::int32_t>& sizes) {
  std::vector<std::int32_t> offsets{0};
  for (const std::int32_t size : sizes) offsets.push_back(offsets.back() + size);
  return offsets;
}

std::size_t at_least_16(std::int64_t bytes) {
  return static_cast<std::size_t>(std::max<std::int64_t>(bytes, 16));
}

}  // namespace

GemmGroupCase::GemmGroupCase(GpuSession& gpu, const GemmProblem& recipe,
                             const std::vector<std::int32_t>& sizes, std::int64_t n,
                             std::int64_t other, std::uint64_t seed, std::int64_t room)
    : GemmTensors(gpu, recipe) {
  const bool masked = recipe.grouping == Grouping::kMasked;
  const bool in_k = groups_k(recipe);
  problem_.n = n;
  problem_.m = in_k ? other : kDynamic;
  problem_.k = in_k ? kDynamic : other;
  problem_.groups = static_cast<std::int64_t>(sizes.size());
  group_rows_ = masked ? sizes : offsets_of(sizes);
  tokens_ = room + (masked ? *std::ranges::max_element(sizes) : group_rows_.back());
  all_ = matrices_of(problem_, tokens_);
  const octile::GemmShape shape = shape_of(problem_, tokens_);
  lda_ = round_up(all_.k, 16) + 16;
  ldb_ = round_up(all_.k, 16) + 32;
  ldd_ = n + 16;
  d_rows_ = all_.d_rows;
  a_scale_ld_ = round_up(shape.m, 4);
  const std::int64_t k_blocks = ceil_div(all_.k, 128);
  b_scale_ld_ = round_up(in_k ? n : k_blocks, 4);
  // Scales that serve all of K are one for each group, or one for each row.
  const bool at_end = scales_at_end(scheme_of(problem_));
  const bool of_tensors = problem_.a.granularity == Granularity::kPerTensor;
  if (at_end) a_scale_ld_ = of_tensors ? 1 : round_up(shape.m, 4);
  if (at_end) b_scale_ld_ = of_tensors ? 1 : n;
  const std::int64_t scale_rows = at_end ? 1 : k_blocks;
  const std::int64_t a_scales =
      (masked || of_tensors ? problem_.groups : 1) * scale_rows * a_scale_ld_;
  const std::int64_t b_scales =
      at_end ? problem_.groups * b_scale_ld_
      : in_k ? k_blocks * b_scale_ld_
             : problem_.groups * ceil_div(n, std::int64_t{128}) * b_scale_ld_;
  a_ = gpu_.zeroed(at_least_16(all_.a_rows * lda_));
  b_ = gpu_.zeroed(at_least_16(all_.b_rows * ldb_));
  a_scale_ = gpu_.zeroed(at_least_16(a_scales * 4));
  b_scale_ = gpu_.zeroed(at_least_16(b_scales * 4));
  d_ = gpu_.allocate(at_least_16(all_.d_rows * ldd_ * size_of(problem_.d.dtype) + 2 * kGuardBytes));
  if (is_fp8(problem_.d.dtype)) {
    d_scale_ =
        gpu_.allocate(at_least_16(ceil_div(n, std::int64_t{128}) * d_scale_ld() * std::int64_t{4}));
  }
  if (has_sentry(problem_)) sentry_ = gpu_.zeroed(sizeof(octile_squares));
  groups_ = gpu_.zeroed(group_rows_.size() * sizeof(std::int32_t));
  const bool within_fp16 = problem_.d.dtype == DType::kFP16;
  fill_operand(gpu_, {a_, a_scale_, problem_.a, all_.a_rows, all_.k, lda_}, within_fp16, seed * 4);
  fill_operand(gpu_, {b_, b_scale_, problem_.b, all_.b_rows, all_.k, ldb_}, within_fp16,
               seed * 4 + 1);
  if (in_k) {
    clear_padding(a_, all_.a_rows, lda_);
    clear_padding(b_, all_.b_rows, ldb_);
  }
  set_group_rows(group_rows_);
  poison_output();
}

// Zeros from the end of each group's tokens to the next multiple of 128.
void GemmGroupCase::clear_padding(DeviceBuffer& codes, std::int64_t rows, std::int64_t ld) {
  std::int64_t begin = 0;
  for (std::size_t g = 1; g < group_rows_.size(); ++g) {
    const std::int64_t tokens = group_rows_[g] - group_rows_[g - 1];
    const std::int64_t padding = round_up(tokens, kGroupAlign) - tokens;
    if (padding > 0) {
      ASSERT_EQ((*gpu_.driver())
                    ->cuMemsetD2D8Async(codes.get() + static_cast<CUdeviceptr>(begin + tokens),
                                        static_cast<std::size_t>(ld), 0,
                                        static_cast<std::size_t>(padding),
                                        static_cast<std::size_t>(rows), gpu_.stream()),
                CUDA_SUCCESS);
    }
    begin += tokens + padding;
  }
}

void GemmGroupCase::set_group_rows(const std::vector<std::int32_t>& rows) {
  ASSERT_EQ(rows.size(), group_rows_.size());
  group_rows_ = rows;
  ASSERT_TRUE(groups_.upload(rows.data(), rows.size() * sizeof(std::int32_t), gpu_.stream()));
  gpu_.synchronize();
}

GemmArguments GemmGroupCase::args() const {
  GemmArguments args = arguments(tokens_);
  const auto* groups = static_cast<const std::int32_t*>(groups_.pointer());
  (problem_.grouping == Grouping::kMasked ? args.groups.counts : args.groups.offsets) = groups;
  return args;
}

std::vector<reference::GemmPart> GemmGroupCase::parts() const {
  GemmCall args = complete(problem_, this->args()).value();
  args.group_rows = group_rows_.data();
  std::vector<reference::GemmPart> parts;
  std::int64_t k_blocks = 0;
  for (std::int64_t g = 0; g < problem_.groups; ++g) {
    parts.push_back(reference::part_of(problem_, args, g, k_blocks));
  }
  return parts;
}

void GemmGroupCase::expect_guards() {
  const std::vector<std::uint8_t> bytes = bytes_of_d();
  const auto poisoned = [](std::uint8_t byte) { return byte == kPoison; };
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.begin() + kGuardBytes, poisoned));
  EXPECT_TRUE(std::all_of(bytes.end() - kGuardBytes, bytes.end(), poisoned));
}

void GemmGroupCase::judge() {
  const DeviceBuffer verdict = make_verdict(gpu_);
  const double c = reference::tolerance_c(problem_.promote, all_.k, coarsest_sums(gpu_.device()));
  std::vector<bool> in_group(static_cast<std::size_t>(all_.d_rows));
  for (const reference::GemmPart& part : parts()) {
    std::fill_n(in_group.begin() + static_cast<std::ptrdiff_t>(part.row0), part.args.shape.m, true);
    judge_part(gpu_, problem_, part, c, verdict);
  }
  expect_no_violation(gpu_, verdict);
  // The rest of D.
  const std::vector<std::uint8_t> bytes = bytes_of_d();
  const std::int64_t element = size_of(problem_.d.dtype);
  std::int64_t wrong = 0;
  for (std::int64_t row = 0; row < all_.d_rows; ++row) {
    const auto* begin = bytes.data() + kGuardBytes + row * ldd_ * element;
    const bool exists = in_group[static_cast<std::size_t>(row)];
    const int inside = problem_.accumulate ? kInitialByte : kPoison;
    const std::int64_t columns = problem_.n * element;
    if (!exists) {
      wrong += std::count_if(begin, begin + columns, [&](int byte) { return byte != inside; });
    }
    wrong += std::count_if(begin + columns, begin + ldd_ * element,
                           [](int byte) { return byte != kPoison; });
  }
  EXPECT_EQ(wrong, 0) << "bytes outside the groups were written";
  expect_guards();
}

}  // namespace octile::tests
