// What the GPU tests of the quantise family share: one library, device copies of a case, and the
// comparison of a run with the host reference, guard zones included.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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
#include "runtime/families/fixed_kernel.h"
#include "runtime/reference/parallel.h"
#include "tests/gpu/session.h"
#include "tests/support/expect_outputs.h"
#include "tests/support/quantize_cells.h"

namespace octile {

using tests::Fill;
using tests::Placement;
using tests::QuantizeCase;

struct LibraryDeleter {
  void operator()(octile_library* library) const { octile_library_destroy(library); }
};
struct PlanDeleter {
  void operator()(octile_plan* plan) const { octile_plan_destroy(plan); }
};
using OwnedLibrary = std::unique_ptr<octile_library, LibraryDeleter>;
using Plan = std::unique_ptr<octile_plan, PlanDeleter>;

class QuantizeGpuFixture : public ::testing::Test {
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
    static const OwnedLibrary made = [] {
      octile_library_options options{};
      options.struct_size = sizeof(options);
      options.disable_cache = 1;  // the kernels of this build, not of an earlier one
      octile_library* handle = nullptr;
      octile_library_create(&options, &handle);
      return OwnedLibrary(handle);
    }();
    return made.get();
  }

  // Compiles the cells' kernels on every core, for the shapes the tests use; one after the other
  // they would take most of the tests' time.
  static void compile_all(const std::vector<QuantizeProblem>& cells) {
    if (!Driver::open() || library() == nullptr) return;
    std::vector<std::string> problems;
    for (const QuantizeProblem& p : cells) problems.push_back(to_text(Problem(p)));
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
  void run(octile_plan* plan, const QuantizeArguments& args) {
    ASSERT_EQ(octile_plan_prepare(plan, args.rows, args.rows, OCTILE_PREPARE_DEFAULT), OCTILE_OK)
        << octile_last_error();
    ASSERT_EQ(tests::run_quantize(plan, args), OCTILE_OK) << octile_last_error();
  }

  DeviceBuffer upload_values(const std::vector<float>& values) {
    std::vector<char> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return upload(bytes);
  }
  void download_values(const DeviceBuffer& buffer, std::vector<float>& values) {
    std::vector<char> bytes(values.size() * sizeof(float));
    download(buffer, bytes);
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }

  template <typename T>
  DeviceBuffer upload_value(T value) {
    std::vector<char> bytes(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    return upload(bytes);
  }

  // Device copies of a case, and the arguments that speak of them.
  struct OnDevice {
    std::array<DeviceBuffer, 3> more;
    DeviceBuffer x, x_scale, tap, bias_gradient, rstd, q, scale, q_transposed, scale_transposed,
        workspace, encode_scale, amax;
    QuantizeArguments args;
  };

  OnDevice place(octile_plan* plan, const QuantizeCase& c) {
    OnDevice d;
    const auto at = [](const DeviceBuffer& buffer, std::int64_t offset) {
      return static_cast<char*>(buffer.pointer()) + offset;
    };
    d.args.rows = c.rows;
    d.x = upload(c.x);
    d.args.x = at(d.x, c.x_offset);
    d.args.ldx = c.ldx;
    const std::array<const void**, 3> more{&d.args.fused.x1, &d.args.fused.x2, &d.args.fused.x3};
    const std::array<std::int64_t*, 3> more_ld{&d.args.fused.ldx1, &d.args.fused.ldx2,
                                               &d.args.fused.ldx3};
    for (std::size_t i = 0; i < more.size(); ++i) {
      if (c.more[i].empty()) continue;
      d.more[i] = upload(c.more[i]);
      *more[i] = at(d.more[i], c.x_offset);
      *more_ld[i] = c.more_ld[i];
    }
    if (is_fp8(c.problem.x.dtype) && !c.x_scale.empty()) {
      d.x_scale = upload(c.x_scale);
      d.args.source_scales.x_scale = d.x_scale.pointer();
      d.args.source_scales.x_scale_ld = c.x_scale_ld;
    }
    if (!c.tap.empty()) {
      d.tap = upload_values(c.tap);
      d.args.fused.tap = static_cast<float*>(d.tap.pointer());
    }
    if (!c.bias_gradient.empty()) {
      d.bias_gradient = upload_values(c.bias_gradient);
      d.args.fused.bias_gradient = static_cast<float*>(d.bias_gradient.pointer());
    }
    if (!c.rstd.empty()) {
      d.rstd = upload_values(c.rstd);
      d.args.fused.rstd = static_cast<float*>(d.rstd.pointer());
    }
    if (c.row.wanted) {
      d.q = upload(c.row.q);
      d.scale = upload(c.row.scale);
      d.args.q = at(d.q, c.row.offset);
      d.args.ldq = c.row.ld;
      if (is_fp8(c.problem.q.dtype)) d.args.scale = at(d.scale, QuantizeCase::kGuard);
      d.args.scale_ld = c.row.scale_ld;
    }
    if (c.transposed.wanted) {
      d.q_transposed = upload(c.transposed.q);
      d.scale_transposed = upload(c.transposed.scale);
      d.args.q_transposed = at(d.q_transposed, c.transposed.offset);
      d.args.scale_transposed = at(d.scale_transposed, QuantizeCase::kGuard);
    }
    if (c.problem.policy == ScalePolicy::kDelayed) {
      d.encode_scale = upload_value(c.encode_scale);
      d.args.delayed.encode_scale = static_cast<const float*>(d.encode_scale.pointer());
    }
    if (c.keeps_amax()) {
      d.amax = upload_value(c.amax);
      d.args.monitor.amax = static_cast<float*>(d.amax.pointer());
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

  // What a run left in the outputs of the case.
  void fetch(const OnDevice& d, QuantizeCase& c) {
    if (c.row.wanted) {
      download(d.q, c.row.q);
      download(d.scale, c.row.scale);
    }
    if (c.transposed.wanted) {
      download(d.q_transposed, c.transposed.q);
      download(d.scale_transposed, c.transposed.scale);
    }
    if (c.keeps_amax()) {
      std::vector<float> amax(1);
      download_values(d.amax, amax);
      c.amax = amax.front();
    }
    if (!c.tap.empty()) download_values(d.tap, c.tap);
    if (!c.bias_gradient.empty()) download_values(d.bias_gradient, c.bias_gradient);
    if (!c.rstd.empty()) download_values(d.rstd, c.rstd);
  }

  void compare(octile_plan* plan, const QuantizeProblem& problem, const Placement& at, Fill fill) {
    compare(plan, problem, at, fill, [&](const QuantizeArguments& args) { run(plan, args); });
  }
  // `how`: in place of the plan's kernel.
  template <typename Run>
  void compare(octile_plan* plan, const QuantizeProblem& problem, const Placement& at, Fill fill,
               const Run& how) {
    SCOPED_TRACE(tests::describe(problem, at, fill));
    QuantizeCase expected = tests::make_case(problem, at, fill);
    QuantizeCase actual = expected;
    const OnDevice d = place(plan, actual);
    how(d.args);
    if (HasFatalFailure()) return;
    fetch(d, actual);
    const Status status = expected.run_reference();
    ASSERT_TRUE(status.has_value()) << status.error().message;
    tests::expect_same_outputs(actual, expected);
    ++comparisons_;
  }

  // By a kernel of a stated configuration.
  void compare_as(const QuantizeConfig& config, const QuantizeProblem& problem, const Placement& at,
                  std::initializer_list<Fill> fills) {
    tests::GpuSession* const session = tests::GpuSession::get();
    ASSERT_NE(session, nullptr) << tests::GpuSession::why();
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    auto built = session->internals().engine.build(problem, config, session->device());
    ASSERT_TRUE(built.has_value()) << built.error().message;
    const auto kernel = FixedKernel<QuantizeProblem>::load(
        session->internals(), driver_, 0, session->device(), problem, config, std::move(*built));
    ASSERT_TRUE(kernel.has_value()) << kernel.error().message;
    for (const Fill fill : fills) {
      compare(plan.get(), problem, at, fill, [&](const QuantizeArguments& args) {
        const Status ran = kernel->run(args, nullptr);
        ASSERT_TRUE(ran.has_value()) << ran.error().message;
      });
    }
  }

  // body(i) for i below count, on several threads: most of a comparison is the host's input,
  // reference, copies and compilation.
  template <typename Body>
  void for_each_on_threads(std::size_t count, const Body& body) {
    constexpr int kThreads = 8;
    reference::parallel_for(static_cast<std::int64_t>(count), 1, kThreads,
                            [&](std::int64_t begin, std::int64_t end) {
                              auto guard = ContextGuard::enter(*driver_, context_->get());
                              ASSERT_TRUE(guard.has_value()) << guard.error().message;
                              for (std::int64_t i = begin; i < end && !HasFatalFailure(); ++i) {
                                body(static_cast<std::size_t>(i));
                              }
                            });
  }

  // body(problem) for every cell the support matrix takes, or for those that cover it; the counts
  // are printed.
  template <typename Body>
  void for_each_cell(std::int64_t cols, const Body& body, bool covering = false) {
    const auto all = tests::all_quantize_problems(cols);
    const auto cells = tests::quantize_cells(cols);
    const auto chosen = covering ? tests::covering_quantize_cells(cols) : cells;
    for_each_on_threads(chosen.size(), [&](std::size_t i) { body(chosen[i]); });
    fmt::print("cols {}: {} cells run, {} skipped, {} refused\n", cols, chosen.size(),
               cells.size() - chosen.size(), all.size() - cells.size());
    EXPECT_GT(chosen.size(), 0U);
  }
  template <typename Body>
  void for_each_covering_cell(std::int64_t cols, const Body& body) {
    for_each_cell(cols, body, true);
  }

  // ---- packed tensors too large for a case: one panel, repeated

  struct Packed {
    DeviceBuffer x, x_scale, q, scale;  // x_scale: of FP8 x; scale: of FP8 q
  };

  // Empty where the device has not that much memory.
  DeviceBuffer allocate(std::int64_t bytes) {
    auto buffer = DeviceBuffer::allocate(driver_, static_cast<std::size_t>(bytes));
    return buffer ? std::move(*buffer) : DeviceBuffer();
  }
  // Copies of `panel`, one behind the other.
  DeviceBuffer repeated(const std::vector<char>& panel, std::size_t copies) {
    DeviceBuffer buffer = allocate(std::ssize(panel) * static_cast<std::int64_t>(copies));
    if (buffer.pointer() == nullptr) return buffer;
    for (std::size_t p = 0; p < copies; ++p) {
      EXPECT_TRUE(buffer.upload(panel.data(), panel.size(), nullptr, p * panel.size()));
    }
    return buffer;
  }
  // Copies of `panel`, which has so many rows, side by side.
  DeviceBuffer side_by_side(const std::vector<char>& panel, std::size_t rows, std::size_t copies) {
    DeviceBuffer buffer = allocate(std::ssize(panel) * static_cast<std::int64_t>(copies));
    if (buffer.pointer() == nullptr) return buffer;
    const std::size_t width = panel.size() / rows;
    std::vector<char> wide(panel.size() * copies);
    for (std::size_t i = 0; i < rows * copies; ++i) {
      std::copy_n(panel.data() + i / copies * width, width, wide.data() + i * width);
    }
    EXPECT_TRUE(buffer.upload(wide.data(), wide.size(), nullptr));
    return buffer;
  }

  // One call, of a problem with one output.
  void run_packed(const QuantizeProblem& problem, std::int64_t rows, const Packed& on) {
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    QuantizeArguments args;
    args.rows = rows;
    args.x = on.x.pointer();
    args.source_scales.x_scale = on.x_scale.pointer();
    const bool transposed = has_transposed(problem.output);
    (transposed ? args.q_transposed : args.q) = on.q.pointer();
    (transposed ? args.scale_transposed : args.scale) = on.scale.pointer();
    run(plan.get(), args);
  }
  // The same, and that the named ones of the output's panels are what the reference makes of one.
  void compare_panels(const QuantizeProblem& problem, std::int64_t rows, const Packed& on,
                      QuantizeCase& panel, std::initializer_list<std::size_t> panels) {
    run_packed(problem, rows, on);
    if (HasFatalFailure()) return;
    const Status status = panel.run_reference();
    ASSERT_TRUE(status.has_value()) << status.error().message;
    const std::vector<char>& guarded = panel.row.wanted ? panel.row.q : panel.transposed.q;
    const std::vector<char> expected(guarded.begin() + QuantizeCase::kGuard,
                                     guarded.end() - QuantizeCase::kGuard);
    std::vector<char> actual(expected.size());
    for (const std::size_t p : panels) {
      download(on.q, actual, p * actual.size());
      EXPECT_EQ(tests::first_difference(actual, expected), "") << "panel " << p;
    }
  }

  void TearDown() override { fmt::print("{} comparisons\n", comparisons_.load()); }

  std::shared_ptr<const Driver> driver_;
  std::optional<PrimaryContext> context_;
  std::optional<ContextGuard> guard_;
  std::atomic<int> comparisons_ = 0;
};

}  // namespace octile
