// Code that the GPU tests of the quantise family share: device copies of a case, and the comparison
// of a run with the host reference, guard zones included.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "octile/octile.h"
#include "runtime/driver/buffer.h"
#include "runtime/prove/fixed_kernel.h"
#include "tests/gpu/session.h"
#include "tests/support/expect_outputs.h"
#include "tests/support/quantize_cells.h"

namespace octile {

using tests::Fill;
using tests::Placement;
using tests::QuantizeCase;

struct PlanDeleter {
  void operator()(octile_plan* plan) const { octile_plan_destroy(plan); }
};
using Plan = std::unique_ptr<octile_plan, PlanDeleter>;

class QuantizeGpuFixture : public tests::GpuTest {
 protected:
  const std::shared_ptr<const Driver>& driver() { return gpu().driver(); }
  // Returns a worker's own stream, and on other threads the legacy default stream.
  static CUstream stream() { return tests::GpuSession::worker_stream(); }
  // Returns the threads of one host reference: 1 on a worker, whose neighbours use the other cores.
  static int reference_threads() { return tests::GpuSession::is_worker() ? 1 : 0; }

  DeviceBuffer upload(const std::vector<char>& bytes) {
    auto buffer = DeviceBuffer::allocate(driver(), bytes.size());
    EXPECT_TRUE(buffer.has_value()) << buffer.error().message;
    if (!buffer) return {};
    const Status copied = buffer->upload(bytes.data(), bytes.size(), stream());
    EXPECT_TRUE(copied.has_value()) << copied.error().message;
    return std::move(*buffer);
  }

  void download(const DeviceBuffer& buffer, std::vector<char>& bytes, std::size_t offset = 0) {
    const Status copied = buffer.download(bytes.data(), bytes.size(), stream(), offset);
    ASSERT_TRUE(copied.has_value()) << copied.error().message;
    ASSERT_EQ(driver()->api().cuStreamSynchronize(stream()), CUDA_SUCCESS);
  }

  Plan make_plan(const QuantizeProblem& problem) {
    octile_plan* plan = nullptr;
    EXPECT_EQ(
        octile_plan_create(gpu().library(), "cuda:0", to_text(Problem(problem)).c_str(), &plan),
        OCTILE_OK)
        << octile_last_error();
    return Plan(plan);
  }

  // Prepares the plan for the row count and runs it once.
  void run(octile_plan* plan, const QuantizeArguments& args) {
    ASSERT_EQ(octile_plan_prepare(plan, args.rows, args.rows, OCTILE_PREPARE_DEFAULT), OCTILE_OK)
        << octile_last_error();
    ASSERT_EQ(tests::run_quantize(plan, args, stream()), OCTILE_OK) << octile_last_error();
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

  // Device copies of a case, and arguments that point to them.
  struct OnDevice {
    std::array<DeviceBuffer, 3> more;
    DeviceBuffer x, x_scale, index, tap, bias_gradient, rstd, q, scale, q_transposed,
        scale_transposed, workspace, encode_scale, amax;
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
    if (!c.index.empty()) {
      std::vector<char> bytes(c.index.size() * sizeof c.index[0]);
      std::memcpy(bytes.data(), c.index.data(), bytes.size());
      d.index = upload(bytes);
      d.args.gather.index = static_cast<const std::int32_t*>(d.index.pointer());
      d.args.gather.x_rows = c.rows;
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
      auto* const rows = static_cast<float*>(d.rstd.pointer());
      if (c.problem.weighted) {
        d.args.fused.row_factor = rows;
      } else {
        d.args.fused.rstd = rows;
      }
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
    if (c.delayed() || c.records_scale()) {
      d.encode_scale = upload_value(c.encode_scale);
      auto* const scale = static_cast<float*>(d.encode_scale.pointer());
      d.args.delayed.encode_scale = c.delayed() ? scale : nullptr;
      d.args.monitor.encode_scale = c.delayed() ? nullptr : scale;
    }
    if (c.keeps_amax()) {
      d.amax = upload_value(c.amax);
      d.args.monitor.amax = static_cast<float*>(d.amax.pointer());
    }
    std::size_t bytes = 0;
    EXPECT_EQ(octile_plan_workspace_size(plan, c.rows, &bytes), OCTILE_OK) << octile_last_error();
    if (bytes > 0) {
      // No result may depend on the old contents of a workspace.
      d.workspace = upload(std::vector<char>(bytes, QuantizeCase::kPoison));
      d.args.workspace = d.workspace.pointer();
      d.args.workspace_bytes = bytes;
    }
    return d;
  }

  // Copies the outputs of a run into the case.
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
    if (c.records_scale()) {
      std::vector<float> scale(1);
      download_values(d.encode_scale, scale);
      c.encode_scale = scale.front();
    }
    if (!c.tap.empty()) download_values(d.tap, c.tap);
    if (!c.bias_gradient.empty()) download_values(d.bias_gradient, c.bias_gradient);
    if (!c.rstd.empty()) download_values(d.rstd, c.rstd);
  }

  void compare(octile_plan* plan, const QuantizeProblem& problem, const Placement& at, Fill fill) {
    compare(plan, problem, at, fill, [&](const QuantizeArguments& args) { run(plan, args); });
  }
  // Calls `how` in place of the plan's kernel.
  template <typename Run>
  void compare(octile_plan* plan, const QuantizeProblem& problem, const Placement& at, Fill fill,
               const Run& how) {
    SCOPED_TRACE(tests::describe(problem, at, fill));
    QuantizeCase expected = tests::make_case(problem, at, fill);
    QuantizeCase actual = expected;
    const OnDevice d = place(plan, actual);
    how(d.args);
    if (HasFatalFailure()) return;
    const Status status = expected.run_reference(reference_threads());  // beside the kernel
    ASSERT_TRUE(status.has_value()) << status.error().message;
    fetch(d, actual);
    tests::expect_same_outputs(actual, expected);
    ++comparisons_;
  }

  // Runs one case several times, each time with outputs and a workspace of poison, and compares
  // every run with one reference.
  void compare_often(const QuantizeProblem& problem, const Placement& at, Fill fill, int times) {
    SCOPED_TRACE(tests::describe(problem, at, fill));
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    const QuantizeCase fresh = tests::make_case(problem, at, fill);
    QuantizeCase expected = fresh;
    const Status status = expected.run_reference(reference_threads());
    ASSERT_TRUE(status.has_value()) << status.error().message;
    for (int i = 0; i < times; ++i) {
      QuantizeCase actual = fresh;
      const OnDevice d = place(plan.get(), actual);
      run(plan.get(), d.args);
      if (HasFatalFailure()) return;
      fetch(d, actual);
      tests::expect_same_outputs(actual, expected);
      ++comparisons_;
    }
  }

  // Compares a kernel of a stated configuration.
  void compare_as(const QuantizeConfig& config, const QuantizeProblem& problem, const Placement& at,
                  std::initializer_list<Fill> fills) {
    compare_as(gpu().device(), config, problem, at, fills);
  }
  // Compares the kernel that is emitted for `device`, of whose architecture the GPU is.
  void compare_as(const DeviceSpec& device, const QuantizeConfig& config,
                  const QuantizeProblem& problem, const Placement& at,
                  std::initializer_list<Fill> fills) {
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    auto built = gpu().internals().engine.build(problem, config, device);
    ASSERT_TRUE(built.has_value()) << built.error().message;
    const auto kernel = FixedKernel<QuantizeProblem>::load(gpu().internals(), driver(), 0, device,
                                                           problem, config, std::move(*built));
    ASSERT_TRUE(kernel.has_value()) << kernel.error().message;
    for (const Fill fill : fills) {
      compare(plan.get(), problem, at, fill, [&](const QuantizeArguments& args) {
        const Status ran = kernel->run(args, stream());
        ASSERT_TRUE(ran.has_value()) << ran.error().message;
      });
    }
  }

  // Calls body(problem), on every core, for every cell the support matrix takes with --all, else
  // for the cells that cover them. Prints the counts.
  template <typename Body>
  void for_each_cell(std::int64_t cols, const Body& body) {
    const auto all = tests::quantize_cells(cols);
    const auto cells = tests::choose_cases(all, tests::covering_quantize_cells(cols));
    for_each_of(cells, body);
    fmt::print("cols {}: {} cells run, {} skipped, {} refused\n", cols, cells.size(),
               all.size() - cells.size(), tests::all_quantize_problems(cols).size() - all.size());
  }
  // Calls body(problem), on every core, for the covering cells alone.
  template <typename Body>
  void for_each_covering_cell(std::int64_t cols, const Body& body) {
    const auto cells = tests::covering_quantize_cells(cols);
    tests::count_cases(cells.size(), 0);
    for_each_of(cells, body);
  }
  // Calls body(case) for each, on every core.
  template <typename Case, typename Body>
  void for_each_of(const std::vector<Case>& cases, const Body& body) {
    EXPECT_GT(cases.size(), 0U);
    gpu().for_each_on_cores(cases.size(), [&](std::size_t i) { body(cases[i]); });
  }

  // ---- packed tensors too large for a case: one panel, repeated

  struct Packed {
    DeviceBuffer x, x_scale, q, scale;  // x_scale: of FP8 x; scale: of FP8 q
  };

  // Returns an empty buffer if the device has too little memory.
  DeviceBuffer allocate(std::int64_t bytes) {
    auto buffer = DeviceBuffer::allocate(driver(), static_cast<std::size_t>(bytes));
    return buffer ? std::move(*buffer) : DeviceBuffer();
  }
  // Returns copies of `panel`, one behind the other.
  DeviceBuffer repeated(const std::vector<char>& panel, std::size_t copies) {
    return side_by_side(panel, 1, copies);
  }
  // Returns copies of `panel`, which has `rows` rows, side by side. The device makes them.
  DeviceBuffer side_by_side(const std::vector<char>& panel, std::int64_t rows,
                            std::size_t panel_copies) {
    auto copies = static_cast<std::int64_t>(panel_copies);
    DeviceBuffer wide = allocate(std::ssize(panel) * copies);
    if (wide.pointer() == nullptr) return wide;
    const DeviceBuffer one = upload(panel);
    const void* from = one.pointer();
    void* to = wide.pointer();
    std::int64_t width = std::ssize(panel) / rows;
    EXPECT_EQ(driver()->api().cuStreamSynchronize(stream()), CUDA_SUCCESS);
    gpu().launch("repeat_rows", 2048, 256, {&from, &rows, &width, &copies, &to});
    gpu().synchronize();
    return wide;
  }

  // Makes one call of a problem with one output.
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
  // Makes the call and compares the named panels of its output with the reference's panel.
  void compare_panels(const QuantizeProblem& problem, std::int64_t rows, const Packed& on,
                      QuantizeCase& panel, std::initializer_list<std::size_t> panels) {
    run_packed(problem, rows, on);
    if (HasFatalFailure()) return;
    const Status status = panel.run_reference(reference_threads());
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

  void TearDown() override {
    fmt::print("{} comparisons\n", comparisons_.load());
    tests::GpuTest::TearDown();
  }

  std::atomic<int> comparisons_ = 0;
};

}  // namespace octile
