// Every supported quantise cell on a GPU, through the C API, bit for bit against the host
// reference: shapes with tails, every class of input, strided and misaligned tensors, guard zones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "octile/octile.h"
#include "runtime/driver/buffer.h"
#include "runtime/driver/context.h"
#include "runtime/reference/parallel.h"
#include "runtime/reference/scale_update.h"
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
    ASSERT_NE(library(), nullptr) << octile_last_error();
  }

  // One for all tests, so that each kernel is compiled once.
  static octile_library* library() {
    static const Library made = [] {
      octile_library_options options{};
      options.struct_size = sizeof(options);
      options.disable_cache = 1;  // the kernels of this build, not of an earlier one
      octile_library* handle = nullptr;
      octile_library_create(&options, &handle);
      return Library(handle);
    }();
    return made.get();
  }

  // Compiles the cells' kernels on every core, for the shapes the tests use; one after the other
  // they would take most of the tests' time.
  static void SetUpTestSuite() {
    if (!Driver::open() || library() == nullptr) return;
    std::vector<std::string> problems;
    for (const std::int64_t cols : {1, 300, 7168, 65536}) {
      for (const QuantizeProblem& p : tests::quantize_cells(cols)) {
        problems.push_back(to_text(Problem(p)));
      }
    }
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t i = next++; i < problems.size(); i = next++) {
        octile_plan* plan = nullptr;
        // What fails here fails again, and is told, in a test.
        if (octile_plan_create(library(), "cuda:0", problems[i].c_str(), &plan) != OCTILE_OK)
          return;
        octile_plan_prepare(plan, 1, 1024, OCTILE_PREPARE_DEFAULT);
        octile_plan_destroy(plan);
      }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
      threads.emplace_back(work);
    }
    for (std::thread& thread : threads) thread.join();
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
    EXPECT_EQ(octile_plan_create(library(), "cuda:0", to_text(Problem(problem)).c_str(), &plan),
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

  template <typename T>
  DeviceBuffer upload_value(T value) {
    std::vector<char> bytes(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    return upload(bytes);
  }

  // Device copies of a case, and the arguments that speak of them.
  struct OnDevice {
    DeviceBuffer x, q, scale, q_transposed, scale_transposed, workspace, encode, amax;
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
    if (c.problem.policy == ScalePolicy::kDelayed) {
      d.encode = upload_value(c.encode);
      d.args.encode = static_cast<const float*>(d.encode.pointer());
    }
    if (c.keeps_amax()) {
      d.amax = upload_value(c.amax);
      d.args.amax = static_cast<float*>(d.amax.pointer());
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
    if (actual.keeps_amax()) {
      std::vector<char> bytes(sizeof actual.amax);
      download(d.amax, bytes);
      std::memcpy(&actual.amax, bytes.data(), bytes.size());
    }
    const Status status = expected.run_reference();
    ASSERT_TRUE(status.has_value()) << status.error().message;
    EXPECT_EQ(actual.amax, expected.amax);
    EXPECT_TRUE(actual.row.q == expected.row.q);
    EXPECT_TRUE(actual.row.scale == expected.row.scale);
    EXPECT_TRUE(actual.transposed.q == expected.transposed.q);
    EXPECT_TRUE(actual.transposed.scale == expected.transposed.scale);
    ++comparisons_;
  }

  // body(problem) for every cell the support matrix takes, or for those that cover it; the counts
  // are printed.
  template <typename Body>
  void for_each_cell(std::int64_t cols, const Body& body, bool covering = false) {
    const auto all = tests::all_quantize_problems(cols);
    const auto cells = tests::quantize_cells(cols);
    const auto chosen = covering ? tests::covering_quantize_cells(cols) : cells;
    // On several threads: most of a comparison is the host's input, reference and copies.
    constexpr int kThreads = 8;
    reference::parallel_for(static_cast<std::int64_t>(chosen.size()), 1, kThreads,
                            [&](std::int64_t begin, std::int64_t end) {
                              auto guard = ContextGuard::enter(*driver_, context_->get());
                              ASSERT_TRUE(guard.has_value()) << guard.error().message;
                              for (std::int64_t i = begin; i < end && !HasFatalFailure(); ++i) {
                                body(chosen[static_cast<std::size_t>(i)]);
                              }
                            });
    fmt::print("cols {}: {} cells run, {} skipped, {} refused\n", cols, chosen.size(),
               cells.size() - chosen.size(), all.size() - cells.size());
    EXPECT_GT(chosen.size(), 0U);
  }
  template <typename Body>
  void for_each_covering_cell(std::int64_t cols, const Body& body) {
    for_each_cell(cols, body, true);
  }

  // That the panels of q named, each of `bytes`, hold the codes of one.
  void expect_panels(const DeviceBuffer& q, const tests::CaseOutput& one, std::int64_t bytes,
                     std::initializer_list<std::size_t> panels) {
    const char* first = one.q.data() + one.offset;
    const std::vector<char> expected(first, first + bytes);
    std::vector<char> actual(expected.size());
    for (const std::size_t p : panels) {
      download(q, actual, p * actual.size());
      EXPECT_TRUE(actual == expected) << "panel " << p;
    }
  }

  void TearDown() override { fmt::print("{} comparisons\n", comparisons_.load()); }

  std::shared_ptr<const Driver> driver_;
  std::optional<PrimaryContext> context_;
  std::optional<ContextGuard> guard_;
  std::atomic<int> comparisons_ = 0;
};

constexpr Placement kShapes[] = {{1, 1}, {1, 16}, {65, 96}, {993, 512}, {1024, 1}, {303, 300}};

TEST_F(QuantizeGpu, EveryCellEqualsTheReference) {
  for (const Placement& shape : kShapes) {
    for_each_cell(shape.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, shape, Fill::kNormal);
      compare(plan.get(), problem, shape, Fill::kMixed);
    });
  }
}

TEST_F(QuantizeGpu, EveryInputEqualsTheReference) {
  for (const Placement& shape : kShapes) {
    for_each_covering_cell(shape.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      for (const auto& [fill, name] : tests::kFills) compare(plan.get(), problem, shape, fill);
    });
  }
}

TEST_F(QuantizeGpu, LargeShapesEqualTheReference) {
  for (const Placement& shape : {Placement{256, 65536}, Placement{1024, 7168}}) {
    for_each_covering_cell(shape.cols, [&](const QuantizeProblem& problem) {
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
  for_each_covering_cell(264, [&](QuantizeProblem problem) {
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
    expect_panels(*q, panel.row, kPanelRows * kCols, {0, 146, kPanels - 1});
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
  expect_panels(*q, panel.transposed, kRows * kPanelCols, {0, 63, kPanels - 1});
}

// Every kernel, first passes included, leaves everything alone where the flag is set.
TEST_F(QuantizeGpu, ASetSkipFlagLeavesEverythingAlone) {
  const DeviceBuffer set = upload_value(std::uint32_t{1});
  for_each_covering_cell(300, [&](const QuantizeProblem& problem) {
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    const QuantizeCase before = tests::make_case(problem, {130, 300}, Fill::kNormal);
    QuantizeCase after = before;
    OnDevice d = place(plan.get(), before);
    d.args.skip = static_cast<const std::uint32_t*>(set.pointer());
    run(plan.get(), d.args);
    if (HasFatalFailure()) return;
    if (after.row.wanted) {
      download(d.q, after.row.q);
      download(d.scale, after.row.scale);
    }
    if (after.transposed.wanted) {
      download(d.q_transposed, after.transposed.q);
      download(d.scale_transposed, after.transposed.scale);
    }
    EXPECT_TRUE(tests::same_outputs(after, before)) << to_text(Problem(problem));
  });
}

// Many tensors in one launch, several steps, every choice of amax, against the host.
TEST_F(QuantizeGpu, ScaleUpdatesEqualTheReference) {
  constexpr std::size_t kTensors = 1000, kLength = 16;
  for (const DType fp8 : {DType::kE4M3, DType::kE5M2}) {
    for (const ScaleFormat format : {ScaleFormat::kF32, ScaleFormat::kF32Pow2}) {
      QuantizeProblem problem;
      problem.cols = 128;
      problem.q = {fp8, Granularity::kPerTensor, format};
      problem.policy = ScalePolicy::kDelayed;
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 1, OCTILE_PREPARE_DEFAULT), OCTILE_OK)
          << octile_last_error();
      for (const octile_amax_choice choice :
           {OCTILE_AMAX_LARGEST, OCTILE_AMAX_LATEST, OCTILE_AMAX_AVERAGE}) {
        std::vector<char> history =
            tests::make_input(DType::kFP32, kTensors * kLength, Fill::kMixed, 11);
        for (std::size_t i = 3; i < history.size(); i += 4) history[i] &= 0x7f;  // magnitudes
        std::vector<char> encode(kTensors * 4);
        std::fill_n(reinterpret_cast<float*>(encode.data()), kTensors, 1.0F);
        const DeviceBuffer on_history = upload(history), on_encode = upload(encode);
        octile_scale_update_args args{};
        args.struct_size = sizeof args;
        args.history = static_cast<float*>(on_history.pointer());
        args.encode = static_cast<float*>(on_encode.pointer());
        args.tensors = kTensors;
        args.length = kLength;
        args.choice = choice;
        args.margin = 1;
        args.average_share = 0.3F;
        for (int step = 0; step < 3; ++step) {
          ASSERT_EQ(octile_scale_update_run(plan.get(), &args, nullptr), OCTILE_OK)
              << octile_last_error();
          reference::update_scales(
              problem,
              {reinterpret_cast<float*>(history.data()), reinterpret_cast<float*>(encode.data()),
               kTensors, kLength, static_cast<reference::AmaxChoice>(choice), 1, 0.3F});
        }
        std::vector<char> got_history(history.size()), got_encode(encode.size());
        download(on_history, got_history);
        download(on_encode, got_encode);
        EXPECT_TRUE(got_history == history) << choice;
        EXPECT_TRUE(got_encode == encode) << choice;
        ++comparisons_;
      }
    }
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
