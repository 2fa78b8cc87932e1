// Groups of rows, flat ranges, swizzled scales and the count of infinities and NaNs on a GPU,
// through the C API, bit for bit against the host reference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "octile/octile.h"
#include "tests/gpu/session.h"
#include "tests/support/expect_outputs.h"
#include "tests/support/quantize_cells.h"
#include "tests/support/quantize_group_case.h"
#include "tests/support/quantize_shard_case.h"

namespace octile {
namespace {

using tests::Fill;
using tests::GroupCase;
using tests::GroupSizes;
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

std::vector<QuantizeProblem> cells_of(const std::vector<QuantizeProblem>& all) {
  const auto supported = tests::supported(all);
  auto cells = tests::covering(supported);
  fmt::print("{} cells run, {} skipped, {} refused\n", cells.size(),
             supported.size() - cells.size(), all.size() - supported.size());
  return cells;
}

// Host memory and its copy on the device: pointers into the one become pointers into the other.
class Mirror {
 public:
  void add(void* host, std::size_t bytes) {
    if (bytes == 0) return;
    copies_.push_back({static_cast<char*>(host), bytes, session().allocate(bytes)});
    ASSERT_TRUE(copies_.back().device.upload(host, bytes, session().stream()));
  }
  template <typename T>
  void add(std::vector<T>& values) {
    add(values.data(), values.size() * sizeof(T));
  }
  void add(tests::CaseOutput& output) {
    add(output.q);
    add(output.scale);
  }
  void translate(QuantizeArguments& args) const {
    translate_bytes(args.x);
    translate_bytes(args.fused.x1);
    translate_bytes(args.source_scales.x_scale);
    translate_bytes(args.q);
    translate_bytes(args.scale);
    translate_bytes(args.q_transposed);
    translate_bytes(args.scale_transposed);
    translate(args.groups.offsets);
    translate(args.groups.counts);
    translate(args.delayed.encode_scale);
    translate(args.monitor.amax);
    translate(args.shard.amax);
    translate(args.monitor.nonfinite);
  }
  void fetch() const {
    for (const Copy& copy : copies_) {
      ASSERT_TRUE(copy.device.download(copy.host, copy.bytes, session().stream()));
    }
    session().synchronize();
  }

 private:
  struct Copy {
    char* host = nullptr;
    std::size_t bytes = 0;
    DeviceBuffer device;
  };
  static tests::GpuSession& session() { return *tests::GpuSession::get(); }

  template <typename T>
  void translate(T*& pointer) const {
    if (pointer == nullptr) return;
    const auto* p = reinterpret_cast<const char*>(pointer);
    // The end of one copy, which an empty range begins at, may be where another begins.
    for (const std::size_t past_end : {std::size_t{0}, std::size_t{1}}) {
      for (const Copy& copy : copies_) {
        if (p < copy.host || p >= copy.host + copy.bytes + past_end) continue;
        pointer = reinterpret_cast<T*>(static_cast<char*>(copy.device.pointer()) + (p - copy.host));
        return;
      }
    }
    ADD_FAILURE() << "a pointer into nothing that was mirrored";
  }
  template <typename T>
  void translate_bytes(T*& pointer) const {  // void pointers
    auto* p = static_cast<const char*>(pointer);
    translate(p);
    pointer = const_cast<char*>(p);
  }

  std::vector<Copy> copies_;
};

class QuantizeGroupsGpu : public tests::GpuTest {
 protected:
  // Compiles every kernel on every core.
  static void SetUpTestSuite() {
    if (tests::GpuSession::get() == nullptr) return;
    std::vector<std::string> problems;
    for (const std::int64_t cols : {140, 7168}) {
      for (const auto& all :
           {tests::all_grouped_problems(cols), tests::all_sharded_problems(cols)}) {
        for (const auto& p : tests::covering(tests::supported(all))) {
          problems.push_back(to_text(Problem(p)));
        }
      }
    }
    for (const auto& p : tests::covering_quantize_cells(300)) {
      problems.push_back(to_text(Problem(p)));
    }
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t i = next++; i < problems.size(); i = next++) {
        octile_plan* plan = nullptr;
        octile_library* const library = tests::GpuSession::get()->library();
        // What fails here fails again, and is told, in a test.
        if (octile_plan_create(library, "cuda:0", problems[i].c_str(), &plan) != OCTILE_OK) return;
        octile_plan_prepare(plan, 1, 512, OCTILE_PREPARE_DEFAULT);
        octile_plan_destroy(plan);
      }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
      threads.emplace_back(work);
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Prepares, brings a poisoned workspace, runs.
  void run(const QuantizeProblem& problem, QuantizeArguments& args) {
    PlanPointer& plan = plans_[to_text(Problem(problem))];
    if (plan == nullptr) plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    ASSERT_EQ(octile_plan_prepare(plan.get(), args.rows, args.rows, OCTILE_PREPARE_DEFAULT),
              OCTILE_OK)
        << octile_last_error();
    std::size_t bytes = 0;
    ASSERT_EQ(octile_plan_workspace_size(plan.get(), args.rows, &bytes), OCTILE_OK);
    DeviceBuffer workspace = gpu().allocate(bytes);
    if (bytes > 0) {
      ASSERT_TRUE(workspace.fill(0xA5, gpu().stream()));
    }
    args.workspace = workspace.pointer();
    args.workspace_bytes = bytes;
    ASSERT_EQ(tests::run_quantize(plan.get(), args, gpu().stream()), OCTILE_OK)
        << octile_last_error();
    gpu().synchronize();
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
    mirror.fetch();
    // Threads for each of many small groups would cost more than their work.
    const Status status = expected.run_reference(sizes.rows.size() > 100 ? 1 : 0);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    tests::expect_same_outputs(actual, expected);
    EXPECT_EQ(actual.nonfinite, expected.nonfinite);
  }

  void TearDown() override {
    fmt::print("{} runs\n", runs_);
    plans_.clear();
    tests::GpuTest::TearDown();
  }

 private:
  std::map<std::string, PlanPointer> plans_;
  int runs_ = 0;
};

TEST_F(QuantizeGroupsGpu, EveryGroupingEqualsTheReference) {
  for (const QuantizeProblem& problem : cells_of(tests::all_grouped_problems(140))) {
    for (const GroupSizes& sizes : tests::few_groups()) {
      compare(problem, 140, sizes, Fill::kNormal);
      compare(problem, 140, sizes, Fill::kMixed);
      compare(problem, 33, sizes, Fill::kInfinities, 7);
      if (HasFailure()) return;
    }
  }
}

TEST_F(QuantizeGroupsGpu, GroupsOfAComputedSourceEqualTheReference) {
  for (const QuantizeProblem& problem : tests::grouped_source_cells(140)) {
    for (const GroupSizes& sizes : tests::few_groups()) {
      compare(problem, 140, sizes, Fill::kNormal);
      compare(problem, 33, sizes, Fill::kInfinities, 7);
      if (HasFailure()) return;
    }
  }
}

TEST_F(QuantizeGroupsGpu, ManyGroupsEqualTheReference) {
  for (const QuantizeProblem& problem : cells_of(tests::all_grouped_problems(264))) {
    for (const GroupSizes& sizes : tests::many_groups(60)) {
      compare(problem, 264, sizes, Fill::kMixed);
    }
    if (HasFailure()) return;
  }
}

// 8192 tokens of 32 experts, as they come in training.
TEST_F(QuantizeGroupsGpu, LargeGroupsEqualTheReference) {
  GroupSizes sizes{"32 large", {}};
  for (int g = 0; g < 32; ++g) sizes.rows.push_back(g % 7 == 3 ? 0 : 128 + 37 * (g % 9));
  for (const QuantizeProblem& problem :
       tests::covering_layouts(tests::all_grouped_problems(7168))) {
    if (problem.x.dtype != DType::kBF16) continue;
    compare(problem, 7168, sizes, Fill::kNormal);
    if (HasFailure()) return;
  }
}

// ---- flat ranges ----

TEST_F(QuantizeGroupsGpu, EverySplitHasTheBitsOfTheWhole) {
  const auto cells = cells_of(tests::all_sharded_problems(300));
  for (const QuantizeProblem& cast : cells) {
    if (cast.shard != ShardStep::kCast) continue;
    for (const tests::ShardShape& shape : tests::kShardShapes) {
      for (const Fill fill : {Fill::kNormal, Fill::kMixed, Fill::kZeros}) {
        QuantizeCase whole = tests::whole_case(cast, shape, fill);
        SCOPED_TRACE(tests::describe(whole.problem, {shape.rows, shape.cols}, fill));
        std::vector<char> q = whole.row.q, scale = whole.row.scale;
        std::vector<float> maxima(
            static_cast<std::size_t>(tests::maxima_of(whole.problem, shape.rows)), 0.0F);
        std::uint64_t met = 0;
        Mirror mirror;
        mirror.add(whole.x);
        mirror.add(q);
        mirror.add(scale);
        mirror.add(maxima);
        mirror.add(&met, sizeof met);
        const auto shards = tests::random_split(shape.rows * shape.cols, shape.shards, 11);
        for (const ShardStep step : {ShardStep::kAmax, ShardStep::kCast}) {
          QuantizeProblem problem = whole.problem;
          problem.shard = step;
          for (const tests::Shard& shard : shards) {
            QuantizeArguments args;
            args.rows = shape.rows;
            args.shard.start = shard.start;
            args.shard.length = shard.length;
            args.x = whole.x.data() + shard.start * size_of(problem.x.dtype);
            args.shard.amax = maxima.data();
            args.monitor.nonfinite = &met;
            args.q = q.data() + QuantizeCase::kGuard + shard.start;
            args.scale = scale.data() + QuantizeCase::kGuard;
            mirror.translate(args);
            run(problem, args);
            if (HasFatalFailure()) return;
          }
        }
        mirror.fetch();
        const std::uint64_t before = whole.nonfinite;
        ASSERT_TRUE(whole.run_reference());
        EXPECT_EQ(tests::first_difference(q, whole.row.q), "");
        EXPECT_EQ(tests::first_difference(scale, whole.row.scale), "");
        EXPECT_EQ(met, 2 * (whole.nonfinite - before));  // each step counts what it reads
        if (HasFailure()) return;
      }
    }
  }
}

// ---- infinities and NaNs ----

TEST_F(QuantizeGroupsGpu, InfinitiesAndNaNsAreCountedOnce) {
  for (const QuantizeProblem& problem : tests::covering_quantize_cells(300)) {
    if (problem.operation != QuantizeOperation::kQuantize) continue;  // inverses count nothing
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
      ASSERT_TRUE(expected.run_reference());
      EXPECT_EQ(c.nonfinite, expected.nonfinite);
      tests::expect_same_outputs(c, expected);
    }
  }
}

}  // namespace
}  // namespace octile
