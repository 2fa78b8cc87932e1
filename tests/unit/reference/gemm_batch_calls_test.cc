// Batches of GEMMs through the C API: host runs on layouts made by hand.
#include <gtest/gtest.h>

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
constexpr std::int64_t kHeads = 3;
constexpr std::int64_t kTokens = 7;
constexpr std::int64_t kPaddedTokens = 8;
constexpr float kUntouched = -77;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

float value(std::uint8_t code) { return reference::from_fp8(code, DType::kE4M3); }

octile_gemm_desc heads_desc(octile_granularity of_b) {
  octile_gemm_desc desc = e4m3_desc(kN, kK, OCTILE_SCALE_1X128, of_b);
  desc.batch = kHeads;
  return desc;
}

// Says where element (row, column) of matrix h lies, in A, B or D or in their scales.
struct Layout {
  std::int64_t row = 0, head = 0;
  std::int64_t operator()(std::int64_t h, std::int64_t r, std::int64_t c = 0) const {
    return h * head + r * row + c;
  }
};

class GemmBatchApi : public GemmPlanTest {
 protected:
  // Runs a plan on these layouts and compares D with the sums. Scales of A are indexed by K-block
  // and row, those of B by block of columns and K-block, or likewise by K-block and row.
  void expect_products(const octile_gemm_desc& desc, GemmArguments args, const Layout& a,
                       const Layout& a_scale, const Layout& b, const Layout& b_scale,
                       const Layout& d) {
    constexpr std::int64_t kRoom = kHeads * 256 * 160;
    const auto va = integer_codes(kRoom, 1), vb = integer_codes(kRoom, 2);
    const auto sa = binary_scales(4096, 3), sb = binary_scales(4096, 4);
    std::vector<float> actual(at(kRoom), kUntouched), expected = actual;
    const bool rows_of_b = desc.b_granularity == OCTILE_SCALE_1X128;
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t r = 0; r < kTokens; ++r) {
        for (std::int64_t c = 0; c < kN; ++c) {
          float sum = 0;
          for (std::int64_t k = 0; k < kK; ++k) {
            const float of_b =
                sb[at(rows_of_b ? b_scale(h, k / 128, c) : b_scale(h, c / 128, k / 128))];
            sum += value(va[at(a(h, r, k))]) * value(vb[at(b(h, c, k))]) *
                   sa[at(a_scale(h, k / 128, r))] * of_b;
          }
          expected[at(d(h, r, c))] = sum;
        }
      }
    }
    args.tokens = kTokens;
    args.a = va.data();
    args.b = vb.data();
    args.a_scale = sa.data();
    args.b_scale = sb.data();
    args.d = actual.data();
    ASSERT_EQ(tests::run_gemm(plan_of(desc).get(), args), OCTILE_OK) << octile_last_error();
    EXPECT_EQ(actual, expected);
  }
};

TEST_F(GemmBatchApi, ZeroStridesAreThoseOfPackedMatrices) {
  expect_products(heads_desc(OCTILE_SCALE_128X128), {}, {kK, kTokens * kK},
                  {kPaddedTokens, kBlocks * kPaddedTokens}, {kK, kN * kK}, {4, 2 * 4},
                  {kN, kTokens * kN});
  expect_products(heads_desc(OCTILE_SCALE_1X128), {}, {kK, kTokens * kK},
                  {kPaddedTokens, kBlocks * kPaddedTokens}, {kK, kN * kK}, {kN, kBlocks * kN},
                  {kN, kTokens * kN});
}

// A and D are [tokens][heads][dim], and B's 1x128 scales are [K-blocks][heads][n].
TEST_F(GemmBatchApi, HeadsLieSideBySideInTheRowsOfTokens) {
  GemmArguments args;
  args.lda = kHeads * kK;
  args.batch.a_stride = kK;
  args.batch.a_scale_stride = kBlocks * kPaddedTokens;
  args.ldd = kHeads * kN + 8;
  args.batch.d_stride = kN;
  args.b_scale_ld = kHeads * kN;
  args.batch.b_scale_stride = kN;
  expect_products(heads_desc(OCTILE_SCALE_1X128), args, {kHeads * kK, kK},
                  {kPaddedTokens, kBlocks * kPaddedTokens}, {kK, kN * kK}, {kHeads * kN, kN},
                  {kHeads * kN + 8, kN});
}

TEST_F(GemmBatchApi, OneBServesAllGemms) {
  GemmArguments args;
  args.batch.b_stride = args.batch.b_scale_stride = OCTILE_BATCH_SHARED;
  args.batch.d_stride = kTokens * kN + 12;
  expect_products(heads_desc(OCTILE_SCALE_128X128), args, {kK, kTokens * kK},
                  {kPaddedTokens, kBlocks * kPaddedTokens}, {kK, 0}, {4, 0},
                  {kN, kTokens * kN + 12});
}

// The transposed copies of three ranks as one operand, in panels of two K-blocks each, the second
// of which is filled up. B lies in one piece, but for its scales.
TEST_F(GemmBatchApi, ASumReadsPanels) {
  constexpr std::int64_t kRows = 8, kLd = kHeads * kK;
  octile_gemm_desc desc = e4m3_desc(kN, OCTILE_DYNAMIC, OCTILE_SCALE_1X128, OCTILE_SCALE_1X128);
  desc.m = kRows;
  desc.batch = kHeads;
  desc.sums_batch = 1;
  const auto a = integer_codes(kHeads * kRows * kK, 1), b = integer_codes(kN * kLd, 2);
  const auto sa = binary_scales(kHeads * kBlocks * kRows, 3);
  const auto sb = binary_scales(kHeads * kBlocks * kN, 4);
  std::vector<float> actual(at(kRows * kN), kUntouched), expected = actual;
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kN; ++c) {
      float sum = 0;
      for (std::int64_t h = 0; h < kHeads; ++h) {
        for (std::int64_t k = 0; k < kK; ++k) {
          const std::int64_t block = h * kBlocks + k / 128;
          sum += value(a[at((h * kRows + r) * kK + k)]) * value(b[at(c * kLd + h * kK + k)]) *
                 sa[at(block * kRows + r)] * sb[at(block * kN + c)];
        }
      }
      expected[at(r * kN + c)] = sum;
    }
  }
  GemmArguments args;
  args.tokens = kK;
  args.a = a.data();
  args.a_scale = sa.data();
  args.b = b.data();
  args.b_scale = sb.data();
  args.d = actual.data();
  args.ldb = kLd;
  args.batch.b_stride = kK;
  const auto plan = plan_of(desc);
  ASSERT_EQ(tests::run_gemm(plan.get(), args), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(actual, expected);
}

}  // namespace
}  // namespace octile::test
