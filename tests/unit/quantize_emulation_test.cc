// The text of the quantise templates, run on the host thread by thread (device_emulation.h) and
// compared bit for bit with the reference: indexing, tails, misaligned tensors, padding and the
// classes of input, for a covering set of numerics and configurations. The wrappers are the host's
// here and check that no access leaves the tensor.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "generator/layout.h"
#include "generator/quantize_config.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/quantize.h"
#include "tests/support/device_emulation.h"
#include "tests/unit/quantize_variants.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OCTILE_NO_FIBERS 1
#endif

namespace octile {
namespace {

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

// ---- inputs -------------------------------------------------------------------------------------

enum class Fill { kBits, kNormal, kSubnormal, kHuge, kMixed };
constexpr Fill kFills[] = {Fill::kBits, Fill::kNormal, Fill::kSubnormal, Fill::kHuge, Fill::kMixed};

float pick(Fill fill, std::mt19937& random) {
  std::normal_distribution<float> normal;
  const float limit = std::numeric_limits<float>::max();
  switch (fill) {
    case Fill::kNormal:
      return normal(random);
    case Fill::kSubnormal:
      return std::ldexp(normal(random), -128);
    case Fill::kHuge:
      return random() % 2 == 0 ? limit : -limit * 0.75F;
    default: {
      const float special[] = {0.0F, -0.0F, NAN, INFINITY, -INFINITY, limit, 1e-40F, 200.0F};
      return random() % 4 == 0 ? special[random() % 8] : normal(random);
    }
  }
}

void store_element(char* p, DType type, Fill fill, std::mt19937& random) {
  const auto bits = static_cast<std::uint32_t>(random());
  const float value = pick(fill, random);
  if (type == DType::kFP32) {
    const auto out = fill == Fill::kBits ? bits : std::bit_cast<std::uint32_t>(value);
    std::memcpy(p, &out, 4);
    return;
  }
  const auto narrow =
      type == DType::kBF16 ? reference::float_to_bf16(value) : reference::float_to_fp16(value);
  const auto out = fill == Fill::kBits ? static_cast<std::uint16_t>(bits) : narrow;
  std::memcpy(p, &out, 2);
}

// ---- one comparison -----------------------------------------------------------------------------

struct Shape {
  std::int64_t rows = 0, cols = 0;
  std::int64_t pad_x = 0, pad_q = 0;      // elements between rows
  std::int64_t shift_x = 0, shift_q = 0;  // elements by which the tensor starts late
  std::int64_t extra_scale_ld = 0;  // beyond the layout's stride; negative: as tight as allowed
};

constexpr std::int64_t kGuard = 64;
constexpr unsigned char kPoison = 0xA5;

struct Buffers {
  std::vector<char> x, q, scale;
};

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

std::int64_t scale_stride(const Variant& v, const Shape& s) {
  const auto layout = quantized_layout(v.problem.q, s.rows, s.cols);
  EXPECT_TRUE(layout.has_value());
  if (s.extra_scale_ld >= 0) return layout->scales.ld + s.extra_scale_ld;
  return v.problem.q.granularity == Granularity::k1x128 ? s.rows : ceil_div(s.cols, 128);
}

void compare(const Variant& v, const Shape& s, Fill fill) {
  SCOPED_TRACE(fmt::format("{} {}x{} pad {} {} shift {} {} scale_ld+{} fill {}", v.name, s.rows,
                           s.cols, s.pad_x, s.pad_q, s.shift_x, s.shift_q, s.extra_scale_ld,
                           static_cast<int>(fill)));
  const std::int64_t x_bytes = size_of(v.problem.x);
  const std::int64_t ldx = s.cols + s.pad_x, ldq = s.cols + s.pad_q;
  const std::int64_t scale_ld = scale_stride(v, s);
  const std::int64_t scale_rows = v.problem.q.granularity == Granularity::k1x128
                                      ? ceil_div(s.cols, 128)
                                      : ceil_div(s.rows, 128);
  // std::vector's storage is 16-byte aligned, and so is kGuard.
  std::vector<char> x(static_cast<std::size_t>(kGuard + (s.rows * ldx + s.shift_x) * x_bytes));
  std::mt19937 random(static_cast<unsigned>(s.rows * 131 + s.cols) + static_cast<unsigned>(fill));
  for (std::size_t i = 0; i + 4 <= x.size(); i += static_cast<std::size_t>(x_bytes)) {
    store_element(x.data() + i, v.problem.x, fill, random);
  }
  const auto outputs = [&](std::int64_t bytes) {
    return std::vector<char>(static_cast<std::size_t>(bytes + 2 * kGuard),
                             static_cast<char>(kPoison));
  };
  std::vector<char> q = outputs(s.rows * ldq + s.shift_q), q_expected = q;
  std::vector<char> scale = outputs(scale_rows * scale_ld * 4), scale_expected = scale;

  const char* const x0 = x.data() + s.shift_x * x_bytes;
  run(v, {x0, q.data() + kGuard + s.shift_q, reinterpret_cast<float*>(scale.data() + kGuard),
          s.rows, s.cols, ldx, ldq, scale_ld});
  QuantizeProblem problem = v.problem;
  problem.cols = s.cols;
  reference::QuantizeArgs args;
  args.rows = s.rows;
  args.x = x0;
  args.ldx = ldx;
  args.q = q_expected.data() + kGuard + s.shift_q;
  args.ldq = ldq;
  args.scale = scale_expected.data() + kGuard;
  args.scale_ld = scale_ld;
  const Status status = reference::quantize(problem, args, 1);
  ASSERT_TRUE(status.has_value()) << status.error().message;
  EXPECT_EQ(q, q_expected);
  EXPECT_EQ(scale, scale_expected);
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

TEST_F(QuantizeEmulation, EveryShapeAndInputEqualsTheReference) {
  const Shape shapes[] = {{1, 1}, {1, 16}, {3, 128}, {9, 300}, {65, 96}, {130, 264}, {12, 1040}};
  for (const Variant& v : variants()) {
    for (const Shape& s : shapes) {
      for (const Fill fill : kFills) compare(v, s, fill);
    }
  }
}

TEST_F(QuantizeEmulation, StridedAndMisalignedTensorsEqualTheReference) {
  const Shape shapes[] = {
      {9, 264, 8, 8, 0, 0, 0},    // whole vectors over padded rows
      {9, 264, 8, 8, 0, 0, 4},    // scales wider apart than their layout
      {9, 264, 8, 8, 0, 0, -1},   // no room for scale padding
      {9, 260, 12, 28, 0, 0, 0},  // aligned rows, ragged last vector
      {9, 256, 1, 0, 0, 0, 0},    // input rows drift off alignment
      {9, 256, 0, 3, 0, 0, 0},    // output rows do
      {9, 256, 0, 0, 1, 0, 0},    // the input starts one element late
      {9, 256, 0, 0, 0, 1, 0},    // the output does
  };
  for (const Variant& v : variants()) {
    for (const Shape& s : shapes) {
      compare(v, s, Fill::kNormal);
      compare(v, s, Fill::kMixed);
    }
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
    std::mt19937 random(7);
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kCols; ++c) {
        store_element(x.data() + (r * kLd + c) * size_of(v.problem.x), v.problem.x, Fill::kNormal,
                      random);
      }
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
