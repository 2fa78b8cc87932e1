// The text of the quantise templates, run on the host thread by thread (device_emulation.h) and
// compared bit for bit with the reference: indexing, tails, misaligned tensors, padding and the
// classes of input, for a covering set of numerics and configurations. The wrappers are the host's
// here and check that no access leaves the tensor.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "generator/quantize_config.h"
#include "runtime/reference/quantize.h"
#include "tests/support/device_emulation.h"
#include "tests/support/quantize_case.h"
#include "tests/unit/quantize_variants.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OCTILE_NO_FIBERS 1
#endif

namespace octile {
namespace {

using tests::Fill;
using tests::Placement;

struct Variant {
  const char* name = "";
  QuantizeProblem problem;
  QuantizeConfig config;
  void (*kernel)(const quantize::Args) = nullptr;
};

Variant variant(const char* name, DType x, TensorType q, float epsilon,
                const QuantizeConfig& config, void (*kernel)(const quantize::Args)) {
  QuantizeProblem problem;
  problem.x = x;
  problem.q = q;
  problem.amax_epsilon = epsilon;
  return {name, problem, config, kernel};
}

std::vector<Variant> variants() {
  return {
      variant("row_bf16_e4m3", DType::kBF16, {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32},
              0.0F, row_bf16_e4m3::kConfig, row_bf16_e4m3::kernel_row_bf16_e4m3),
      variant("row_bf16_e4m3_short", DType::kBF16,
              {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32}, 0.0F,
              row_bf16_e4m3_short::kConfig, row_bf16_e4m3_short::kernel_row_bf16_e4m3_short),
      variant("row_bf16_e5m2_epsilon", DType::kBF16,
              {DType::kE5M2, Granularity::k1x128, ScaleFormat::kF32}, 0.5F,
              row_bf16_e5m2_epsilon::kConfig, row_bf16_e5m2_epsilon::kernel_row_bf16_e5m2_epsilon),
      variant("row_bf16_e4m3_pow2_wide", DType::kBF16,
              {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32Pow2}, 0.0F,
              row_bf16_e4m3_pow2_wide::kConfig,
              row_bf16_e4m3_pow2_wide::kernel_row_bf16_e4m3_pow2_wide),
      variant("row_fp16_e5m2_pow2", DType::kFP16,
              {DType::kE5M2, Granularity::k1x128, ScaleFormat::kF32Pow2}, 0.0F,
              row_fp16_e5m2_pow2::kConfig, row_fp16_e5m2_pow2::kernel_row_fp16_e5m2_pow2),
      variant("row_fp16_e4m3_tall", DType::kFP16,
              {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32}, 0.0F,
              row_fp16_e4m3_tall::kConfig, row_fp16_e4m3_tall::kernel_row_fp16_e4m3_tall),
      variant("row_fp32_e4m3", DType::kFP32, {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32},
              0.0F, row_fp32_e4m3::kConfig, row_fp32_e4m3::kernel_row_fp32_e4m3),
      variant("row_fp32_e5m2_pow2_wide", DType::kFP32,
              {DType::kE5M2, Granularity::k1x128, ScaleFormat::kF32Pow2}, 0.0F,
              row_fp32_e5m2_pow2_wide::kConfig,
              row_fp32_e5m2_pow2_wide::kernel_row_fp32_e5m2_pow2_wide),
      variant("square_bf16_e4m3", DType::kBF16,
              {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32}, 0.0F,
              square_bf16_e4m3::kConfig, square_bf16_e4m3::kernel_square_bf16_e4m3),
      variant("square_bf16_e5m2_pow2_1024", DType::kBF16,
              {DType::kE5M2, Granularity::k128x128, ScaleFormat::kF32Pow2}, 0.0F,
              square_bf16_e5m2_pow2_1024::kConfig,
              square_bf16_e5m2_pow2_1024::kernel_square_bf16_e5m2_pow2_1024),
      variant("square_fp16_e4m3_512", DType::kFP16,
              {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32}, 0.0F,
              square_fp16_e4m3_512::kConfig, square_fp16_e4m3_512::kernel_square_fp16_e4m3_512),
      variant("square_fp32_e5m2", DType::kFP32,
              {DType::kE5M2, Granularity::k128x128, ScaleFormat::kF32}, 0.0F,
              square_fp32_e5m2::kConfig, square_fp32_e5m2::kernel_square_fp32_e5m2),
      variant("square_fp32_e4m3_epsilon", DType::kFP32,
              {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32}, 0.5F,
              square_fp32_e4m3_epsilon::kConfig,
              square_fp32_e4m3_epsilon::kernel_square_fp32_e4m3_epsilon),
  };
}

// ---- one comparison -----------------------------------------------------------------------------

void run(const Variant& v, const QuantizeKernelArgs& args) {
  QuantizeProblem problem = v.problem;
  problem.cols = args.cols;
  const int x_bytes = size_of(problem.x);
  emulation::watched_x = {static_cast<const char*>(args.x), args.rows, args.cols * x_bytes,
                          args.ldx * x_bytes};
  emulation::watched_q = {static_cast<const char*>(args.q), args.rows, args.cols, args.ldq};
  const auto blocks = launch_blocks(problem, v.config, args.rows);
  ASSERT_TRUE(blocks.has_value()) << blocks.error().message;
  const auto device_args = std::bit_cast<quantize::Args>(args);
  for (std::int64_t b = 0; b < *blocks; ++b) {
    emulation::run_block(static_cast<unsigned>(b), v.config.threads,
                         [&] { v.kernel(device_args); });
  }
}

void compare(const Variant& v, const Placement& at, Fill fill) {
  SCOPED_TRACE(v.name + (": " + tests::describe(v.problem, at, fill)));
  tests::QuantizeCase expected = tests::make_case(v.problem, at, fill);
  tests::QuantizeCase actual = expected;
  run(v, {actual.x.data() + actual.x_offset, actual.q.data() + actual.q_offset,
          reinterpret_cast<float*>(actual.scale.data() + actual.scale_offset), actual.rows,
          actual.problem.cols, actual.ldx, actual.ldq, actual.scale_ld});
  const Status status = expected.run_reference(1);
  ASSERT_TRUE(status.has_value()) << status.error().message;
  EXPECT_TRUE(actual.q == expected.q);
  EXPECT_TRUE(actual.scale == expected.scale);
}

class QuantizeEmulation : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef OCTILE_NO_FIBERS
    GTEST_SKIP() << "this sanitizer does not follow ucontext switches";
#endif
    emulation::stray_accesses = 0;
    emulation::misaligned_accesses = 0;
  }
  void TearDown() override {
    EXPECT_EQ(emulation::stray_accesses, 0) << "accesses outside the elements of a tensor";
    EXPECT_EQ(emulation::misaligned_accesses, 0);
  }
};

TEST_F(QuantizeEmulation, EveryInputEqualsTheReference) {
  for (const Variant& v : variants()) {
    for (const auto& [fill, name] : tests::kFills) compare(v, {9, 300}, fill);
  }
}

TEST_F(QuantizeEmulation, EveryShapeEqualsTheReference) {
  const Placement shapes[] = {{1, 1}, {1, 16}, {3, 128}, {65, 96}, {130, 264}, {12, 1040}};
  for (const Variant& v : variants()) {
    for (const Placement& shape : shapes) {
      compare(v, shape, Fill::kNormal);
      compare(v, shape, Fill::kMixed);
    }
  }
}

TEST_F(QuantizeEmulation, StridedAndMisalignedTensorsEqualTheReference) {
  for (const Variant& v : variants()) {
    for (const Placement& at : tests::kPlacements) {
      compare(v, at, Fill::kNormal);
      compare(v, at, Fill::kMixed);
    }
    compare(v, {9, 264, 8, 8, 0, 0, -1}, Fill::kNormal);
  }
}

TEST_F(QuantizeEmulation, NothingIsLaunchedForAnEmptyTensor) {
  for (const Variant& v : variants()) {
    QuantizeProblem problem = v.problem;
    problem.cols = 128;
    EXPECT_EQ(launch_blocks(problem, v.config, 0).value(), 0);
    problem.cols = 0;
    EXPECT_EQ(launch_blocks(problem, v.config, 128).value(), 0);
  }
}

// An address range of which only the touched pages take memory.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes)
      : bytes_(bytes),
        base_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() {
    if (valid()) munmap(base_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  bool valid() const { return base_ != MAP_FAILED; }
  char* data() const { return static_cast<char*>(base_); }

 private:
  std::size_t bytes_;
  void* base_;
};

// Rows 2^31 + 16 elements apart: every offset past the first row is beyond 32 bits.
TEST_F(QuantizeEmulation, OffsetsBeyond32Bits) {
  constexpr std::int64_t kLd = (std::int64_t{1} << 31) + 16;
  constexpr std::int64_t kRows = 3, kCols = 200;
  for (const Variant& v : variants()) {
    SCOPED_TRACE(v.name);
    const SparseMemory x(static_cast<std::size_t>(kRows * kLd * size_of(v.problem.x)));
    const SparseMemory q(kRows * kLd), expected(kRows * kLd);
    if (!x.valid() || !q.valid() || !expected.valid()) GTEST_SKIP() << "no address space";
    const std::vector<char> row = tests::make_input(v.problem.x, kCols, Fill::kNormal, 7);
    for (std::int64_t r = 0; r < kRows; ++r) {
      std::memcpy(x.data() + r * kLd * size_of(v.problem.x), row.data(), row.size());
    }
    std::vector<float> scale(16, -1.0F), scale_expected = scale;
    run(v, {x.data(), q.data(), scale.data(), kRows, kCols, kLd, kLd, 4});
    QuantizeProblem problem = v.problem;
    problem.cols = kCols;
    reference::QuantizeArgs args;
    args.rows = kRows;
    args.x = x.data();
    args.ldx = kLd;
    args.q = expected.data();
    args.ldq = kLd;
    args.scale = scale_expected.data();
    args.scale_ld = 4;
    const Status status = reference::quantize(problem, args, 1);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    for (std::int64_t r = 0; r < kRows; ++r) {
      EXPECT_EQ(std::memcmp(q.data() + r * kLd, expected.data() + r * kLd, kCols + 16), 0);
    }
    EXPECT_EQ(scale, scale_expected);
  }
}

// Tile indices beyond 32 bits take the 64-bit division.
TEST(QuantizeTile, SplitsIndicesOfAnySize) {
  for (const u64 columns : {u64{1}, u64{28}, u64{1} << 33}) {
    for (const u64 index :
         {u64{0}, u64{27}, u64{28}, (u64{1} << 32) - 1, u64{1} << 32, (u64{1} << 40) + 17}) {
      const quantize::Tile tile = quantize::tile_at(index, columns);
      EXPECT_EQ(static_cast<u64>(tile.row), index / columns);
      EXPECT_EQ(static_cast<u64>(tile.col), index % columns);
    }
  }
}

}  // namespace
}  // namespace octile
