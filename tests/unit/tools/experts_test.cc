// The step of experts on the host executor: the GEMMs of groups read the layout that the quantisers
// write, and a check of the results tells right from wrong, also of experts without rows.
#include "tools/bench/experts.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "generator/quantize/layout.h"
#include "runtime/prove/gemm/tensor_arguments.h"
#include "tools/models/source.h"
#include "tools/models/workload.h"
#include "tools/peers/quantizing.h"

namespace octile::tools {
namespace {

constexpr std::int64_t kN = 160, kK = 272;  // no whole blocks of 128
const std::vector<std::int64_t> kCounts{130, 0, 57, 0};

// A tensor of the step: both copies, of `count` matrices one behind the other.
struct Copies {
  HostTensor rowwise, transposed;
};

class ExpertStep : public ::testing::Test {
 protected:
  static std::int64_t experts() { return static_cast<std::int64_t>(kCounts.size()); }
  static std::int64_t rows() { return offsets_.back(); }

  ExpertStep() : library_(std::move(*LibraryHandle::create(1))) {
    x_ = quantise(recipe().activation, rows(), kK, 1, 1);
    w_ = quantise(recipe().weight, kN, kK, experts(), 2);
    dy_ = quantise(recipe().gradient, rows(), kN, 1, 3);
  }

  static const Recipe& recipe() { return *find_recipe("blockwise_hybrid"); }

  static HostTensor empty(const QuantizeProblem& problem, std::int64_t rows, std::int64_t groups,
                          std::int64_t count, bool transposed) {
    const auto layout = quantized_layout(problem, rows, groups, transposed).value();
    const auto bytes = [&](const ArrayShape& a) {
      return std::vector<std::uint8_t>(static_cast<std::size_t>(a.bytes() * count));
    };
    return {problem.q, count * (transposed ? problem.cols : rows), transposed ? rows : problem.cols,
            bytes(layout.data), bytes(layout.scales)};
  }

  // Rows are in groups unless there are several matrices, as in LayerStep.
  Copies quantise(const TensorType& type, std::int64_t rows, std::int64_t cols, std::int64_t count,
                  std::uint64_t seed) {
    QuantizeProblem problem = quantize_problem(cols, type);
    problem.output = QuantizeOutput::kBoth;
    if (count == 1) problem.grouping = Grouping::kContiguous;
    const std::int64_t groups = count == 1 ? experts() : 0;
    Copies to{empty(problem, rows, groups, count, false),
              empty(problem, rows, groups, count, true)};
    const auto x = random_matrix(count * rows, cols, seed);
    const auto plan = PlanHandle::create(library_, "host", Problem(problem));
    EXPECT_TRUE(plan);
    const octile_quantize_groups rows_of{sizeof(octile_quantize_groups), experts(), offsets_.data(),
                                         nullptr};
    const auto matrix = [&](std::vector<std::uint8_t>& all, std::int64_t i) {
      return all.data() + i * static_cast<std::int64_t>(all.size()) / count;
    };
    for (std::int64_t i = 0; i < count; ++i) {
      octile_quantize_args args{};
      args.rows = rows;
      args.x = x.data() + i * rows * cols;
      args.q = matrix(to.rowwise.data, i);
      args.scale = matrix(to.rowwise.scales, i);
      args.q_transposed = matrix(to.transposed.data, i);
      args.scale_transposed = matrix(to.transposed.scales, i);
      args.groups = groups > 0 ? &rows_of : nullptr;
      const Status ok = plan->run(args, nullptr);
      EXPECT_TRUE(ok) << ok.error().message;
    }
    return to;
  }

  // Multiplies on the host, breaks byte `wrong_at` of D and checks it.
  GemmCheck check(Pass pass, const HostTensor& a, const HostTensor& b,
                  std::ptrdiff_t wrong_at = -1) {
    GemmProblem problem = gemm_problem(recipe(), pass, kDynamic, kN, kK);
    problem.grouping = Grouping::kContiguous;
    problem.groups = experts();
    std::vector<std::uint8_t> d(static_cast<std::size_t>(matrices_of(problem, rows()).d_rows *
                                                         problem.n * size_of(problem.d.dtype)),
                                kAddendByte);
    GemmArguments args = gemm_args(a, b, d.data());
    args.tokens = rows();
    args.groups.offsets = offsets_.data();
    const auto plan = PlanHandle::create(library_, "host", Problem(problem));
    EXPECT_TRUE(plan);
    const Status ok = plan->run(args.call(), nullptr);
    EXPECT_TRUE(ok) << ok.error().message;
    if (wrong_at >= 0) *(d.end() - 1 - wrong_at) ^= 0x20;
    const auto result =
        check_gemm(problem, a, b, d.data(), {nullptr, addend_of(problem), rows(), offsets_.data()});
    EXPECT_TRUE(result) << result.error().message;
    return *result;
  }

  inline static const std::vector<std::int32_t> offsets_ = offsets_of(kCounts);
  LibraryHandle library_;
  Copies x_, w_, dy_;
};

TEST_F(ExpertStep, EachPassReadsWhatWasQuantised) {
  EXPECT_TRUE(check(Pass::kFprop, x_.rowwise, w_.rowwise).ok);
  EXPECT_TRUE(check(Pass::kDgrad, dy_.rowwise, w_.transposed).ok);
  EXPECT_TRUE(check(Pass::kWgrad, dy_.transposed, x_.transposed).ok);
}

// The last expert has no rows, so its dW keeps every bit.
TEST_F(ExpertStep, TheCheckSeesAWrongElement) {
  EXPECT_FALSE(check(Pass::kFprop, x_.rowwise, w_.rowwise, 0).ok);
  EXPECT_FALSE(check(Pass::kWgrad, dy_.transposed, x_.transposed, 0).ok);
}

TEST(ExpertRank, HoldsItsShareAndReceivesEveryRow) {
  const auto file = find_model("deepseek-v3");
  ASSERT_TRUE(file);
  const auto rank = rank_of(*file, "deepseek-v3", 8, 8192);
  ASSERT_TRUE(rank) << rank.error().message;
  EXPECT_EQ(rank->model, "deepseek-v3");
  EXPECT_EQ(rank->experts, 32);
  EXPECT_EQ(rank->rows, 65536);
  EXPECT_EQ(rank->gate_up_shape().n, 4096);
  EXPECT_EQ(rank->down_shape().k, 2048);
  EXPECT_EQ(rank->down_shape().experts, 32);
}

TEST(ExpertRank, RefusesALayerThatIsNoMultipleOf16) {
  Model model{.name = "f.json", .origin = "f.json"};
  model.weights = {{.n = plain(64), .k = plain(32), .groups = 8, .per_token = 2},
                   {.n = plain(32), .k = plain(24), .groups = 8, .per_token = 2}};
  const auto rank = rank_of(model, "f.json", 8, 64);
  ASSERT_FALSE(rank);
  EXPECT_EQ(rank.error().message,
            "experts.down.k is 24; allowed are positive multiples of 16: each dimension is the "
            "sum's in one of the GEMMs");
}

}  // namespace
}  // namespace octile::tools
