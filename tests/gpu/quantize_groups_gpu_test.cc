// Groups of rows, swizzled scales and the count of infinities and NaNs on a GPU,
// through the C API, bit for bit against the host reference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "octile/octile.h"
#include "tests/gpu/mirror.h"
#include "tests/gpu/session.h"
#include "tests/support/expect_outputs.h"
#include "tests/support/quantize_cells.h"
#include "tests/support/quantize_group_case.h"

namespace octile {
namespace {

using tests::Fill;
using tests::GroupCase;
using tests::GroupSizes;
using tests::Mirror;
using tests::QuantizeCase;

struct PlanDeleter {
  void operator()(octile_plan* plan) const { octile_plan_destroy(plan); }
};
using PlanPointer = std::unique_ptr<octile_plan, PlanDeleter>;

PlanPointer make_plan(const QuantizeProblem& problem) {
  octile_plan* plan = nullptr;
  octile_library* const library = tests::GpuSession::get()->library();
  EXPECT_EQ(octile_plan_create(library, "cuda:0", to_text(Problem(problem)).c_str(), &plan),
            OCTILE_OK)
      << octile_last_error();
  return PlanPointer(plan);
}

// Cells that cover those of `all` that are supported; counted.
std::vector<QuantizeProblem> cells_of(const std::vector<QuantizeProblem>& all) {
  const auto supported = tests::supported(all);
  auto cells = tests::covering(supported);
  tests::count_cases(cells.size(), 0);
  fmt::print("{} cells cover {}; {} are refused\n", cells.size(), supported.size(),
             all.size() - supported.size());
  return cells;
}

class QuantizeGroupsGpu : public tests::GpuTest {
 protected:
  // body(problem) for each, on every core.
  template <typename Body>
  void for_each_of(const std::vector<QuantizeProblem>& cells, const Body& body) {
    gpu().for_each_on_cores(cells.size(), [&](std::size_t i) { body(cells[i]); });
  }

  // Prepares, brings a poisoned workspace, runs.
  void run(const QuantizeProblem& problem, QuantizeArguments& args) {
    octile_plan* const plan = plan_of(problem);
    ASSERT_NE(plan, nullptr);
    ASSERT_EQ(octile_plan_prepare(plan, args.rows, args.rows, OCTILE_PREPARE_DEFAULT), OCTILE_OK)
        << octile_last_error();
    std::size_t bytes = 0;
    ASSERT_EQ(octile_plan_workspace_size(plan, args.rows, &bytes), OCTILE_OK);
    if (problem.grouping == Grouping::kStacked)
      bytes *= static_cast<std::size_t>(args.groups.group_count);
    DeviceBuffer workspace = gpu().allocate(bytes);
    if (bytes > 0) {
      ASSERT_TRUE(workspace.fill(0xA5, gpu().stream()));
    }
    args.workspace = workspace.pointer();
    args.workspace_bytes = bytes;
    ASSERT_EQ(tests::run_quantize(plan, args, gpu().stream()), OCTILE_OK) << octile_last_error();
    if (bytes > 0) gpu().synchronize();  // before the workspace goes
    ++runs_;
  }

  void compare(const QuantizeProblem& problem, std::int64_t cols, const GroupSizes& sizes,
               Fill fill, std::int64_t pad = 0) {
    GroupCase expected = tests::make_group_case(problem, cols, sizes, fill, pad);
    SCOPED_TRACE(tests::describe(expected, sizes, fill));
    GroupCase actual = expected;
    QuantizeArguments args;
    actual.fill(args);
    Mirror mirror;
    mirror.add(actual.x);
    for (auto& input : actual.more) mirror.add(input);
    mirror.add(actual.x_scale);
    mirror.add(actual.row_factor);
    mirror.add(actual.offsets);
    mirror.add(actual.counts);
    mirror.add(actual.row);
    mirror.add(actual.transposed);
    mirror.add(actual.encode_scale);
    mirror.add(actual.amax);
    mirror.add(&actual.nonfinite, sizeof actual.nonfinite);
    mirror.translate(args);
    run(expected.problem, args);
    if (HasFatalFailure()) return;
    const Status status = expected.run_reference(1);  // beside the kernel
    ASSERT_TRUE(status.has_value()) << status.error().message;
    mirror.fetch();
    tests::expect_same_outputs(actual, expected);
    EXPECT_EQ(actual.nonfinite, expected.nonfinite);
  }

  void TearDown() override {
    fmt::print("{} runs\n", runs_.load());
    plans_.clear();
    tests::GpuTest::TearDown();
  }

 private:
  octile_plan* plan_of(const QuantizeProblem& problem) {
    const std::scoped_lock lock(mutex_);
    PlanPointer& plan = plans_[to_text(Problem(problem))];
    if (plan == nullptr) plan = make_plan(problem);
    return plan.get();
  }

  std::mutex mutex_;
  std::map<std::string, PlanPointer> plans_;
  std::atomic<int> runs_ = 0;
};

TEST_F(QuantizeGroupsGpu, EveryGroupingEqualsTheReference) {
  for_each_of(cells_of(tests::all_grouped_problems(140)), [&](const QuantizeProblem& problem) {
    for (const GroupSizes& sizes : tests::few_groups()) {
      compare(problem, 140, sizes, Fill::kNormal);
      compare(problem, 140, sizes, Fill::kMixed);
      compare(problem, 33, sizes, Fill::kInfinities, 7);
    }
  });
}

TEST_F(QuantizeGroupsGpu, GroupsOfAComputedSourceEqualTheReference) {
  const auto cells = tests::grouped_source_cells(140);
  tests::count_cases(cells.size(), 0);
  for_each_of(cells, [&](const QuantizeProblem& problem) {
    for (const GroupSizes& sizes : tests::few_groups()) {
      compare(problem, 140, sizes, Fill::kNormal);
      // A source of two halves has an even number of columns.
      const std::int64_t few = problem.source == "dsilu_mul" ? 34 : 33;
      compare(problem, few, sizes, Fill::kInfinities, 7);
    }
  });
}

TEST_F(QuantizeGroupsGpu, ManyGroupsEqualTheReference) {
  for_each_of(cells_of(tests::all_grouped_problems(264)), [&](const QuantizeProblem& problem) {
    for (const GroupSizes& sizes : tests::many_groups(60)) {
      compare(problem, 264, sizes, Fill::kMixed);
    }
  });
}

// 8192 tokens of 32 experts, as they come in training.
TEST_F(QuantizeGroupsGpu, LargeGroupsEqualTheReference) {
  GroupSizes sizes{"32 large", {}};
  for (int g = 0; g < 32; ++g) sizes.rows.push_back(g % 7 == 3 ? 0 : 128 + 37 * (g % 9));
  auto cells = tests::covering_layouts(tests::all_grouped_problems(7168));
  std::erase_if(cells, [](const QuantizeProblem& p) { return p.x.dtype != DType::kBF16; });
  tests::count_cases(cells.size(), 0);
  for_each_of(
      cells, [&](const QuantizeProblem& problem) { compare(problem, 7168, sizes, Fill::kNormal); });
}

// A case of each for compute-sanitizer: groups, stacked tensors and weighted sources.
TEST_F(QuantizeGroupsGpu, SanitizerCases) {
  auto cells = tests::covering_layouts(tests::all_grouped_problems(140));
  std::ranges::copy(tests::grouped_source_cells(140), std::back_inserter(cells));
  tests::count_cases(cells.size(), 0);
  const GroupSizes sizes = tests::few_groups().front();
  for_each_of(cells,
              [&](const QuantizeProblem& problem) { compare(problem, 140, sizes, Fill::kMixed); });
}

// ---- infinities and NaNs ----

TEST_F(QuantizeGroupsGpu, InfinitiesAndNaNsAreCountedOnce) {
  auto cells = tests::covering_quantize_cells(300);
  std::erase_if(cells, [](const QuantizeProblem& p) {  // inverses count nothing
    return p.operation != QuantizeOperation::kQuantize;
  });
  tests::count_cases(cells.size(), 0);
  for_each_of(cells, [&](const QuantizeProblem& problem) {
    for (const Fill fill : {Fill::kNormal, Fill::kOneNaN, Fill::kMixed}) {
      SCOPED_TRACE(tests::describe(problem, {130, 300}, fill));
      QuantizeCase c = tests::make_case(problem, {130, 300}, fill);
      QuantizeCase expected = c;
      QuantizeArguments args;
      c.fill(args);
      Mirror mirror;
      mirror.add(c.x);
      mirror.add(c.x_scale);
      mirror.add(c.row);
      mirror.add(c.transposed);
      mirror.add(&c.encode_scale, sizeof c.encode_scale);
      mirror.add(&c.amax, sizeof c.amax);
      mirror.add(&c.nonfinite, sizeof c.nonfinite);
      mirror.translate(args);
      run(c.problem, args);
      if (HasFatalFailure()) return;
      mirror.fetch();
      ASSERT_TRUE(expected.run_reference(1));
      EXPECT_EQ(c.nonfinite, expected.nonfinite);
      tests::expect_same_outputs(c, expected);
    }
  });
}

}  // namespace
}  // namespace octile
