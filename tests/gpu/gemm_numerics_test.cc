// Tests what a GEMM makes of special values, and how exact it is.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/prove/gemm/tolerance.h"
#include "tests/gpu/gemm_case.h"

namespace octile::tests {
namespace {

constexpr std::array<std::int64_t, 6> kAdversarialM{1, 16, 64, 200, 1024, 4097};
constexpr std::array<std::int64_t, 5> kErrorK{128, 512, 2048, 7168, 16384};

// Every scaling for all of K with each of its intervals.
std::vector<GemmProblem> problems_scaled_at_end() {
  std::vector<GemmProblem> all;
  for (const Granularity granularity : {Granularity::kPerRow, Granularity::kPerTensor}) {
    for (const int promote : {128, 256, 512, kPromoteNone})
      all.push_back(scaled_at_end(granularity, promote));
  }
  return all;
}

class GemmNumerics : public GpuTest {
 protected:
  static void SetUpTestSuite() {
    std::vector<PlannedGemm> planned;
    for (const std::int64_t m : kAdversarialM) planned.push_back({{}, {m, 768, 1152}});
    for (const int promote : {32, 64, 128}) {
      GemmProblem recipe;
      recipe.promote = promote;
      for (const std::int64_t k : kErrorK) planned.push_back({recipe, {2048, 512, k}});
    }
    for (const GemmProblem& recipe : problems_scaled_at_end()) {
      for (const std::int64_t k : kErrorK) planned.push_back({recipe, {2048, 512, k}});
      for (const std::int64_t m : kAdversarialM) planned.push_back({recipe, {m, 768, 1152}});
    }
    compile_plans(planned);
  }
  std::vector<float> fetch_output(GemmCase& c) {
    std::vector<std::uint16_t> raw(c.d().bytes() / 2);
    EXPECT_TRUE(c.d().download(raw.data(), raw.size() * 2, gpu().stream()));
    gpu().synchronize();
    std::vector<float> out;
    for (std::int64_t row = 0; row < c.shape().m; ++row) {
      for (std::int64_t col = 0; col < c.shape().n; ++col) {
        const auto at = static_cast<std::size_t>(GemmCase::kGuardBytes / 2 + row * c.ldd() + col);
        out.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(raw[at]) << 16));
      }
    }
    return out;
  }
};

void print_error(const std::string& interval, CodeMode code_mode, std::int64_t k,
                 const Verdict& v) {
  std::printf("promote %s %s k %5lld: max |D-R|/S %.3e, c %.3f\n", interval.c_str(),
              code_mode == CodeMode::kQuantised ? "quantised" : "uniform  ",
              static_cast<long long>(k), static_cast<double>(v.worst_rel),
              static_cast<double>(v.worst_c));
}

// A NaN in one element of A reaches its row and no other; one of B its column.
TEST_F(GemmNumerics, NanStaysInItsRowAndColumn) {
  const GemmShape shape{150, 264, 400};
  GemmCase c(gpu(), {}, shape, 41);
  const std::uint8_t nan = 0x7F;
  const std::int64_t row = 97;
  const std::int64_t col = 201;
  ASSERT_TRUE(c.a().upload(&nan, 1, gpu().stream(), static_cast<std::size_t>(row * c.lda() + 399)));
  ASSERT_TRUE(c.b().upload(&nan, 1, gpu().stream(), static_cast<std::size_t>(col * c.ldb() + 5)));
  c.run_plan(gpu().stream());
  const std::vector<float> out = fetch_output(c);
  for (std::int64_t i = 0; i < shape.m; ++i) {
    for (std::int64_t j = 0; j < shape.n; ++j) {
      const bool expected = i == row || j == col;
      ASSERT_EQ(std::isnan(out[static_cast<std::size_t>(i * shape.n + j)]), expected)
          << "(" << i << ", " << j << ")";
    }
  }
}

// An E5M2 infinity makes its row infinite or NaN and leaves every other finite.
TEST_F(GemmNumerics, InfinityStaysInItsRow) {
  GemmProblem recipe;
  recipe.a.dtype = DType::kE5M2;
  const GemmShape shape{150, 264, 400};
  GemmCase c(gpu(), recipe, shape, 42);
  const std::uint8_t infinity = 0x7C;
  ASSERT_TRUE(
      c.a().upload(&infinity, 1, gpu().stream(), static_cast<std::size_t>(63 * c.lda() + 130)));
  c.run_plan(gpu().stream());
  const std::vector<float> out = fetch_output(c);
  for (std::int64_t i = 0; i < shape.m; ++i) {
    for (std::int64_t j = 0; j < shape.n; ++j) {
      ASSERT_EQ(!std::isfinite(out[static_cast<std::size_t>(i * shape.n + j)]), i == 63)
          << "(" << i << ", " << j << ")";
    }
  }
}

// Scales over 2^+-60 stay inside the tolerance, which is relative to the sum of magnitudes.
TEST_F(GemmNumerics, ScalesOverManyBinades) {
  GemmCase c(gpu(), {}, {256, 512, 2048}, 43, {}, CodeMode::kQuantised, 30);
  c.run_plan(gpu().stream());
  c.judge(reference::tolerance_c(128));
}

// The operands have one product that dwarfs the others of its block, sums that cancel, and sums
// that cannot. The token counts choose kernels of every kind. The scales of A and B together are
// close to each other, or spread over 2^+-60.
TEST_F(GemmNumerics, AdversarialOperands) {
  std::uint64_t seed = 45;
  for (const CodeMode mode :
       {CodeMode::kOneHuge, CodeMode::kAllEqual, CodeMode::kAlternating, CodeMode::kUniform}) {
    for (const int spread : {0, 30}) {
      for (const std::int64_t m : kAdversarialM) {
        GemmCase c(gpu(), {}, {m, 768, 1152}, ++seed, {}, mode, spread);
        c.run_plan(gpu().stream());
        c.judge(reference::tolerance_c(128));
        if (HasFailure()) {
          FAIL() << "mode " << static_cast<int>(mode) << ", spread " << spread << ", " << m;
        }
      }
    }
  }
}

// max |D - R| / sum |a*b*scales| and the c it takes, per K and interval, for values as a quantiser
// writes them and for uniform codes (products over eleven decades): the published table.
TEST_F(GemmNumerics, ErrorPerK) {
  for (const int promote : {32, 64, 128}) {
    for (const CodeMode code_mode : {CodeMode::kQuantised, CodeMode::kUniform}) {
      for (const std::int64_t k : kErrorK) {
        GemmProblem recipe;
        recipe.promote = promote;
        GemmCase c(gpu(), recipe, {2048, 512, k}, static_cast<std::uint64_t>(44 + k), {},
                   code_mode);
        c.run_plan(gpu().stream());
        const Verdict v = c.judge(reference::tolerance_c(promote, c.shape().k));
        print_error(promote_text(promote), code_mode, k, v);
      }
    }
  }
}

// The same for the intervals of scales that serve all of K. Longer intervals truncate more often.
TEST_F(GemmNumerics, ErrorPerKOfLongIntervals) {
  for (const GemmProblem& recipe : problems_scaled_at_end()) {
    for (const CodeMode code_mode : {CodeMode::kQuantised, CodeMode::kUniform}) {
      for (const std::int64_t k : kErrorK) {
        GemmCase c(gpu(), recipe, {2048, 512, k}, static_cast<std::uint64_t>(45 + k), {},
                   code_mode);
        c.run_plan(gpu().stream());
        const Verdict v = c.judge(reference::tolerance_c(recipe.promote, c.shape().k));
        const char* scaling = recipe.a.granularity == Granularity::kPerRow ? " row" : " tensor";
        print_error(promote_text(recipe.promote) + scaling, code_mode, k, v);
      }
    }
  }
}

TEST_F(GemmNumerics, AdversarialOperandsOfLongIntervals) {
  std::uint64_t seed = 145;
  for (const GemmProblem& recipe : problems_scaled_at_end()) {
    for (const CodeMode mode :
         {CodeMode::kOneHuge, CodeMode::kAllEqual, CodeMode::kAlternating, CodeMode::kUniform}) {
      for (const std::int64_t m : kAdversarialM) {
        GemmCase c(gpu(), recipe, {m, 768, 1152}, ++seed, {}, mode, 30);
        c.run_plan(gpu().stream());
        c.judge(reference::tolerance_c(recipe.promote, c.shape().k));
        if (HasFailure()) FAIL() << to_text(recipe) << ", mode " << static_cast<int>(mode);
      }
    }
  }
}

// Without splits of K, a problem of either scaling gives the bits of the other if all scales are
// the same, and so does every tile.
TEST_F(GemmNumerics, ScalingsAndTilesAgreeInEveryBit) {
  const GemmShape shape{333, 520, 2000};
  for (const int promote : {128, 256, 512, kPromoteNone}) {
    std::vector<std::vector<float>> results;
    for (const Granularity granularity : {Granularity::kPerRow, Granularity::kPerTensor}) {
      for (const char* tile : {"tile=128x96x128 stages=4 wg=2", "tile=64x64x128 stages=5 wg=1"}) {
        auto config = parse_gemm_config(tile);
        ASSERT_TRUE(config) << tile;
        config->promote = promote;
        GemmCase c(gpu(), scaled_at_end(granularity, promote), shape, 46);
        const std::vector<float> scales(520, 0.75F);
        for (DeviceBuffer* buffer : {&c.a_scale(), &c.b_scale()}) {
          const std::size_t count = buffer == &c.a_scale() ? 333 : 520;
          ASSERT_TRUE(buffer->upload(scales.data(), count * 4, gpu().stream(), 0));
        }
        c.run_config(*config, gpu().stream());
        c.judge(reference::tolerance_c(promote, c.shape().k));
        results.push_back(fetch_output(c));
      }
    }
    for (const auto& result : results) EXPECT_EQ(result, results.front()) << promote;
  }
}

}  // namespace
}  // namespace octile::tests
