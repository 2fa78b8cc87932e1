// GEMMs of groups through the C API: host runs on layouts made by hand from docs/numerics.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/reference/cast.h"
#include "runtime/reference/synthetic.h"
#include "tests/support/api_handles.h"
#include "tests/support/gemm_call.h"
#include "tests/support/gemm_plan_test.h"

namespace octile::test {
namespace {

constexpr std::int64_t kN = 136;  // two blocks of B's scales
constexpr std::int64_t kK = 144;  // two K-blocks
constexpr std::int64_t kBlocks = 2;
constexpr float kUntouched = -77;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

float value(std::uint8_t code) { return reference::from_fp8(code, DType::kE4M3); }

octile_gemm_desc rows_desc(octile_grouping grouping, std::int64_t groups) {
  octile_gemm_desc desc = e4m3_desc(kN, kK, OCTILE_SCALE_1X128, OCTILE_SCALE_128X128);
  desc.grouping = grouping;
  desc.groups = groups;
  return desc;
}

class GemmGroupsApi : public GemmPlanTest {};

// Groups of rows: `row0[g]` and `rows[g]` in A and D of `all` rows. A's scales have `tensors`
// tensors of `room` rows each.
struct RowGroups {
  std::vector<std::int64_t> row0, rows;
  std::int64_t all = 0, tensors = 1, room = 0;

  std::int64_t count() const { return static_cast<std::int64_t>(rows.size()); }
  std::int64_t scale_ld() const { return (room + 3) / 4 * 4; }
};

// Runs a plan of such groups and compares D with sums over the layouts.
void expect_products(const PlanHandle& plan, const RowGroups& g, GemmArguments args) {
  const auto a = integer_codes(g.all * kK, 1), b = integer_codes(g.count() * kN * kK, 2);
  const auto sa = binary_scales(g.tensors * kBlocks * g.scale_ld(), 3);
  constexpr std::int64_t kScaleLdOfB = 4;  // two K-blocks, padded to four
  const auto sb = binary_scales(g.count() * 2 * kScaleLdOfB, 4);
  std::vector<float> d(at(g.all * kN), kUntouched), expected = d;
  for (std::int64_t i = 0; i < g.count(); ++i) {
    for (std::int64_t r = 0; r < g.rows[at(i)]; ++r) {
      const std::int64_t row = g.row0[at(i)] + r;
      const std::int64_t first = g.tensors == 1 ? row : r + i * kBlocks * g.scale_ld();
      for (std::int64_t c = 0; c < kN; ++c) {
        float sum = 0;
        for (std::int64_t k = 0; k < kK; ++k) {
          const float scale = sa[at(first + k / 128 * g.scale_ld())] *
                              sb[at((i * 2 + c / 128) * kScaleLdOfB + k / 128)];
          sum += value(a[at(row * kK + k)]) * value(b[at((i * kN + c) * kK + k)]) * scale;
        }
        expected[at(row * kN + c)] = sum;
      }
    }
  }
  args.a = a.data();
  args.b = b.data();
  args.a_scale = sa.data();
  args.b_scale = sb.data();
  args.d = d.data();
  ASSERT_EQ(tests::run_gemm(plan.get(), args), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(d, expected);
}

TEST_F(GemmGroupsApi, ContiguousRowsMultiplyTheirOwnB) {
  const std::vector<std::int32_t> offsets{2, 5, 5, 12, 13};
  GemmArguments args;
  args.tokens = 15;
  args.groups.offsets = offsets.data();
  expect_products(plan_of(rows_desc(OCTILE_GROUPS_CONTIGUOUS, 4)),
                  {{2, 5, 5, 12}, {3, 0, 7, 1}, 15, 1, 15}, args);
}

TEST_F(GemmGroupsApi, MaskedRowsAreCounted) {
  const std::vector<std::int32_t> counts{3, 0, 99, -4};
  GemmArguments args;
  args.tokens = 6;
  args.groups.counts = counts.data();
  args.groups.expected_tokens = 2;
  expect_products(plan_of(rows_desc(OCTILE_GROUPS_MASKED, 4)),
                  {{0, 6, 12, 18}, {3, 0, 6, 0}, 24, 4, 6}, args);
}

// Each group's columns begin on a multiple of 128; D has a matrix for each.
TEST_F(GemmGroupsApi, GroupsOfKHaveAMatrixEach) {
  constexpr std::int64_t kM = 5, kTokens = 140;
  const std::vector<std::int32_t> offsets{0, 130, 130, 140};
  const std::vector<std::int64_t> begin{0, 256, 256};
  constexpr std::int64_t kColumns =
      128 * (3 + (kTokens - 3) / 128);  // octile_plan_quantized_layout
  octile_gemm_desc desc = rows_desc(OCTILE_GROUPS_CONTIGUOUS, 3);
  desc.m = kM;
  desc.k = OCTILE_DYNAMIC;
  desc.b_granularity = OCTILE_SCALE_1X128;
  desc.accumulate = 1;
  const auto a = integer_codes(kM * kColumns, 5), b = integer_codes(kN * kColumns, 6);
  const auto sa = binary_scales(kColumns / 128 * 8, 7), sb = binary_scales(kColumns / 128 * kN, 8);
  std::vector<float> d(at(3 * kM * kN)), expected(d.size());
  for (std::size_t i = 0; i < d.size(); ++i) d[i] = static_cast<float>(i % 100);
  for (std::int64_t i = 0; i < 3 * kM * kN; ++i) {
    const std::int64_t g = i / (kM * kN), row = i / kN % kM, col = i % kN;
    float sum = 0;
    for (std::int64_t t = 0; t < offsets[at(g) + 1] - offsets[at(g)]; ++t) {
      const std::int64_t k = begin[at(g)] + t;
      sum += value(a[at(row * kColumns + k)]) * value(b[at(col * kColumns + k)]) *
             sa[at(k / 128 * 8 + row)] * sb[at(k / 128 * kN + col)];
    }
    expected[at(i)] = d[at(i)] + sum;
  }
  GemmArguments args;
  args.tokens = kTokens;
  args.a = a.data();
  args.lda = kColumns;
  args.b = b.data();
  args.ldb = kColumns;
  args.a_scale = sa.data();
  args.b_scale = sb.data();
  args.d = d.data();
  args.groups.offsets = offsets.data();
  ASSERT_EQ(tests::run_gemm(plan_of(desc).get(), args), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(d, expected);
}

}  // namespace
}  // namespace octile::test
