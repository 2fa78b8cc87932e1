// Every supported quantise cell on a GPU, through the C API, bit for bit against the host
// reference: shapes with tails, every class of input, strided and misaligned tensors, guard zones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "octile/octile.h"
#include "runtime/driver/buffer.h"
#include "runtime/driver/context.h"
#include "tests/support/quantize_case.h"
#include "tests/support/quantize_cells.h"

namespace octile {
namespace {

using tests::Fill;
using tests::Placement;
using tests::QuantizeCase;

struct LibraryDeleter {
  void operator()(octile_library* library) const { octile_library_destroy(library); }
};
struct PlanDeleter {
  void operator()(octile_plan* plan) const { octile_plan_destroy(plan); }
};
using Library = std::unique_ptr<octile_library, LibraryDeleter>;
using Plan = std::unique_ptr<octile_plan, PlanDeleter>;

class QuantizeGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    auto driver = Driver::open();
    if (!driver) GTEST_SKIP() << driver.error().message;
    driver_ = *driver;
    auto context = PrimaryContext::retain(driver_, 0);
    ASSERT_TRUE(context.has_value()) << context.error().message;
    context_.emplace(std::move(*context));
    auto guard = ContextGuard::enter(*driver_, context_->get());
    ASSERT_TRUE(guard.has_value()) << guard.error().message;
    guard_.emplace(std::move(*guard));
    octile_library_options options{};
    options.struct_size = sizeof(options);
    options.disable_cache = 1;  // the kernels of this build, not of an earlier one
    octile_library* library = nullptr;
    ASSERT_EQ(octile_library_create(&options, &library), OCTILE_OK) << octile_last_error();
    library_.reset(library);
  }

  DeviceBuffer upload(const std::vector<char>& bytes) {
    auto buffer = DeviceBuffer::allocate(driver_, bytes.size());
    EXPECT_TRUE(buffer.has_value()) << buffer.error().message;
    if (!buffer) return {};
    const Status copied = buffer->upload(bytes.data(), bytes.size(), nullptr);
    EXPECT_TRUE(copied.has_value()) << copied.error().message;
    return std::move(*buffer);
  }

  void download(const DeviceBuffer& buffer, std::vector<char>& bytes, std::size_t offset = 0) {
    const Status copied = buffer.download(bytes.data(), bytes.size(), nullptr, offset);
    ASSERT_TRUE(copied.has_value()) << copied.error().message;
    ASSERT_EQ(driver_->api().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }

  Plan make_plan(const QuantizeProblem& problem) {
    octile_plan* plan = nullptr;
    EXPECT_EQ(
        octile_plan_create(library_.get(), "cuda:0", to_text(Problem(problem)).c_str(), &plan),
        OCTILE_OK)
        << octile_last_error();
    return Plan(plan);
  }

  // Prepares the plan for the row count and runs it once.
  void run(octile_plan* plan, const octile_quantize_args& args) {
    ASSERT_EQ(octile_plan_prepare(plan, args.rows, args.rows, OCTILE_PREPARE_DEFAULT), OCTILE_OK)
        << octile_last_error();
    ASSERT_EQ(octile_quantize_run(plan, &args, nullptr), OCTILE_OK) << octile_last_error();
  }

  // Device copies of a case, and the arguments that speak of them.
  struct OnDevice {
    DeviceBuffer x, q, scale, q_transposed, scale_transposed, workspace;
    octile_quantize_args args{};
  };

  OnDevice place(octile_plan* plan, const QuantizeCase& c) {
    OnDevice d;
    const auto at = [](const DeviceBuffer& buffer, std::int64_t offset) {
      return static_cast<char*>(buffer.pointer()) + offset;
    };
    d.args.struct_size = sizeof d.args;
    d.args.rows = c.rows;
    d.x = upload(c.x);
    d.args.x = at(d.x, c.x_offset);
    d.args.ldx = c.ldx;
    if (c.row.wanted) {
      d.q = upload(c.row.q);
      d.scale = upload(c.row.scale);
      d.args.q = at(d.q, c.row.offset);
      d.args.ldq = c.row.ld;
      d.args.scale = at(d.scale, QuantizeCase::kGuard);
      d.args.scale_ld = c.row.scale_ld;
    }
    if (c.transposed.wanted) {
      d.q_transposed = upload(c.transposed.q);
      d.scale_transposed = upload(c.transposed.scale);
      d.args.q_transposed = at(d.q_transposed, c.transposed.offset);
      d.args.scale_transposed = at(d.scale_transposed, QuantizeCase::kGuard);
    }
    std::size_t bytes = 0;
    EXPECT_EQ(octile_plan_workspace_size(plan, c.rows, &bytes), OCTILE_OK) << octile_last_error();
    if (bytes > 0) {
      // Whatever a workspace holds before, nothing may depend on it.
      d.workspace = upload(std::vector<char>(bytes, QuantizeCase::kPoison));
      d.args.workspace = d.workspace.pointer();
      d.args.workspace_bytes = bytes;
    }
    return d;
  }

  void compare(octile_plan* plan, const QuantizeProblem& problem, const Placement& at, Fill fill) {
    SCOPED_TRACE(tests::describe(problem, at, fill));
    QuantizeCase expected = tests::make_case(problem, at, fill);
    QuantizeCase actual = expected;
    const OnDevice d = place(plan, actual);
    run(plan, d.args);
    if (HasFatalFailure()) return;
    if (actual.row.wanted) {
      download(d.q, actual.row.q);
      download(d.scale, actual.row.scale);
    }
    if (actual.transposed.wanted) {
      download(d.q_transposed, actual.transposed.q);
      download(d.scale_transposed, actual.transposed.scale);
    }
    const Status status = expected.run_reference();
    ASSERT_TRUE(status.has_value()) << status.error().message;
    EXPECT_TRUE(actual.row.q == expected.row.q);
    EXPECT_TRUE(actual.row.scale == expected.row.scale);
    EXPECT_TRUE(actual.transposed.q == expected.transposed.q);
    EXPECT_TRUE(actual.transposed.scale == expected.transposed.scale);
    ++comparisons_;
  }

  // body(problem) for every cell the support matrix takes; the counts are printed.
  template <typename Body>
  void for_each_cell(std::int64_t cols, const Body& body) {
    const auto all = tests::all_quantize_problems(cols);
    const auto cells = tests::quantize_cells(cols);
    for (const QuantizeProblem& problem : cells) {
      body(problem);
      if (HasFatalFailure()) return;
    }
    fmt::print("cols {}: {} cells run, 0 skipped, {} refused\n", cols, cells.size(),
               all.size() - cells.size());
    EXPECT_GT(cells.size(), 0U);
  }

  void TearDown() override { fmt::print("{} comparisons\n", comparisons_); }

  std::shared_ptr<const Driver> driver_;
  std::optional<PrimaryContext> context_;
  std::optional<ContextGuard> guard_;
  Library library_;
  int comparisons_ = 0;
};

TEST_F(QuantizeGpu, SmallShapesOfEveryInputEqualTheReference) {
  const Placement shapes[] = {{1, 1}, {1, 16}, {65, 96}, {993, 512}, {1024, 1}, {303, 300}};
  for (const Placement& shape : shapes) {
    for_each_cell(shape.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      for (const auto& [fill, name] : tests::kFills) compare(plan.get(), problem, shape, fill);
    });
  }
}

TEST_F(QuantizeGpu, LargeShapesEqualTheReference) {
  for (const Placement& shape : {Placement{256, 65536}, Placement{4096, 7168}}) {
    for_each_cell(shape.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, shape, Fill::kMixed);
    });
  }
}

TEST_F(QuantizeGpu, StridedAndMisalignedTensorsEqualTheReference) {
  for (const Placement& at : tests::kPlacements) {
    for_each_cell(at.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, at, Fill::kNormal);
      compare(plan.get(), problem, at, Fill::kMixed);
    });
  }
}

TEST_F(QuantizeGpu, EmptyTensorsTouchNothing) {
  for (const Placement& at : {Placement{0, 128}, Placement{128, 0}}) {
    for_each_cell(at.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, at, Fill::kNormal);
    });
  }
}

TEST_F(QuantizeGpu, AnAmaxEpsilonIsHonoured) {
  for_each_cell(264, [&](QuantizeProblem problem) {
    problem.amax_epsilon = 2.5F;  // above some blocks' amax, below others'
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    compare(plan.get(), problem, {130, 264}, Fill::kNormal);
    compare(plan.get(), problem, {130, 264}, Fill::kZeros);
  });
}

// More than 2^31 elements: one panel of 1024 rows repeated, so that each panel of the output is
// known from one panel's reference.
TEST_F(QuantizeGpu, MoreThanTwoToThe31Elements) {
  constexpr std::int64_t kPanelRows = 1024, kPanels = 293, kCols = 7168;
  constexpr std::int64_t kRows = kPanelRows * kPanels;
  static_assert(kRows * kCols > (std::int64_t{1} << 31));
  for (const Granularity granularity :
       {Granularity::k1x128, Granularity::k128x128, Granularity::kPerRow}) {
    QuantizeProblem problem;
    problem.q.granularity = granularity;
    QuantizeCase panel = tests::make_case(problem, {kPanelRows, kCols}, Fill::kMixed);
    problem.cols = kCols;
    SCOPED_TRACE(to_text(Problem(problem)));
    auto x = DeviceBuffer::allocate(driver_, static_cast<std::size_t>(kRows * kCols * 2));
    auto q = DeviceBuffer::allocate(driver_, static_cast<std::size_t>(kRows * kCols));
    auto scale = DeviceBuffer::allocate(driver_, static_cast<std::size_t>(kRows * kCols / 128 * 4));
    if (!x || !q || !scale) GTEST_SKIP() << "the device has not the 6.5 GB this test takes";
    for (std::size_t p = 0; p < kPanels; ++p) {
      ASSERT_TRUE(x->upload(panel.x.data(), panel.x.size(), nullptr, p * panel.x.size()));
    }
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    octile_quantize_args args{};
    args.struct_size = sizeof(args);
    args.rows = kRows;
    args.x = x->pointer();
    args.q = q->pointer();
    args.scale = scale->pointer();
    run(plan.get(), args);
    if (HasFatalFailure()) return;
    const Status status = panel.run_reference();
    ASSERT_TRUE(status.has_value()) << status.error().message;
    const char* first = panel.row.q.data() + panel.row.offset;
    const std::vector<char> expected(first, first + kPanelRows * kCols);
    std::vector<char> actual(expected.size());
    for (const std::size_t p : {std::size_t{0}, std::size_t{146}, std::size_t{kPanels - 1}}) {
      download(*q, actual, p * actual.size());
      EXPECT_TRUE(actual == expected) << "panel " << p;
    }
  }
}

// The transposed copy of more than 2^31 elements: 16384 columns, each a row of 131088 codes.
TEST_F(QuantizeGpu, MoreThanTwoToThe31ElementsTransposed) {
  constexpr std::int64_t kPanelCols = 128, kPanels = 128, kRows = 131088;
  constexpr std::int64_t kCols = kPanelCols * kPanels;
  static_assert(kRows * kCols > (std::int64_t{1} << 31));
  QuantizeProblem problem;
  problem.output = QuantizeOutput::kTransposed;
  QuantizeCase panel = tests::make_case(problem, {kRows, kPanelCols}, Fill::kNormal);
  problem.cols = kCols;
  auto x = DeviceBuffer::allocate(driver_, static_cast<std::size_t>(kRows * kCols * 2));
  auto q = DeviceBuffer::allocate(driver_, static_cast<std::size_t>(kRows * kCols));
  auto scale = DeviceBuffer::allocate(driver_, static_cast<std::size_t>(kRows * kCols / 32));
  if (!x || !q || !scale) GTEST_SKIP() << "the device has not the 6.5 GB this test takes";
  std::vector<char> wide(static_cast<std::size_t>(kRows * kCols * 2));
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t p = 0; p < kPanels; ++p) {
      std::copy_n(panel.x.data() + r * kPanelCols * 2, kPanelCols * 2,
                  wide.data() + (r * kCols + p * kPanelCols) * 2);
    }
  }
  ASSERT_TRUE(x->upload(wide.data(), wide.size(), nullptr));
  const Plan plan = make_plan(problem);
  ASSERT_NE(plan, nullptr);
  octile_quantize_args args{};
  args.struct_size = sizeof(args);
  args.rows = kRows;
  args.x = x->pointer();
  args.q_transposed = q->pointer();
  args.scale_transposed = scale->pointer();
  run(plan.get(), args);
  if (HasFatalFailure()) return;
  const Status status = panel.run_reference();
  ASSERT_TRUE(status.has_value()) << status.error().message;
  const char* first = panel.transposed.q.data() + panel.transposed.offset;
  const std::vector<char> expected(first, first + kRows * kPanelCols);
  std::vector<char> actual(expected.size());
  for (const std::size_t p : {std::size_t{0}, std::size_t{63}, std::size_t{kPanels - 1}}) {
    download(*q, actual, p * actual.size());
    EXPECT_TRUE(actual == expected) << "panel " << p;
  }
}

// The same workspace rules run after run: nothing is read before it is written.
TEST_F(QuantizeGpu, TheFirstPassIsOrderedBeforeTheCast) {
  for (const Granularity granularity : {Granularity::kPerTensor, Granularity::kPerRow}) {
    QuantizeProblem problem;
    problem.q.granularity = granularity;
    problem.output = QuantizeOutput::kBoth;
    problem.cols = 4096;
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    for (int i = 0; i < 8; ++i) compare(plan.get(), problem, {2048, 4096}, Fill::kOutlier);
  }
}

}  // namespace
}  // namespace octile
