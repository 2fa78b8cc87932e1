// Fused sources on a GPU, through the C API: what the cast sees, the codes and the scales, bit for
// bit against the host reference, and what the cast sees against double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "generator/families.h"
#include "octile/octile.h"
#include "runtime/reference/cast.h"
#include "tests/gpu/quantize_gpu.h"

namespace octile {
namespace {

class QuantizeFusedGpu : public QuantizeGpuFixture {
 protected:
  // body(problem), on every core, for a cell of everything the sources are combined with.
  template <typename Body>
  void for_each_fused_cell(std::int64_t cols, const Body& body) {
    const auto cells = tests::fused_quantize_cells(cols);
    tests::count_cases(cells.size(), 0);
    for_each_of(cells, body);
    EXPECT_GT(cells.size(), 50U);
  }

  // compare_one(problem, placement), on every core, for every source at every placement with scales
  // of three granularities.
  template <typename Compare>
  void for_each_source(std::initializer_list<const char*> sources,
                       std::initializer_list<Placement> placements, const Compare& compare_one) {
    struct Case {
      Granularity granularity;
      const char* source;
      Placement at;
    };
    std::vector<Case> cases;
    for (const Granularity g : {Granularity::kPerTensor, Granularity::k1x128, Granularity::k1x32}) {
      for (const char* source : sources) {
        for (const Placement& at : placements) cases.push_back({g, source, at});
      }
    }
    tests::count_cases(cases.size(), 0);
    for_each_of(cases,
                [&](const Case& c) { compare_one(computed(c.granularity, c.source, c.at), c.at); });
  }

 private:
  // The values that are cast are compared as well if the rows are few.
  static QuantizeProblem computed(Granularity g, const char* source, const Placement& at) {
    QuantizeProblem problem;
    problem.cols = at.cols;
    problem.q = {DType::kE4M3, g, default_scale_format(g)};
    problem.source = source;
    problem.tap = at.rows < 100;
    return problem;
  }
};

TEST_F(QuantizeFusedGpu, EveryShapeEqualsTheReference) {
  for (const Placement& shape : {Placement{1, 2}, Placement{1, 16}, Placement{65, 96},
                                 Placement{993, 512}, Placement{303, 300}, Placement{130, 1030}}) {
    for_each_fused_cell(shape.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, shape, Fill::kNormal);
      compare(plan.get(), problem, shape, Fill::kMixed);
    });
  }
}

TEST_F(QuantizeFusedGpu, EveryInputEqualsTheReference) {
  for_each_fused_cell(300, [&](const QuantizeProblem& problem) {
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    for (const auto& [fill, name] : tests::kFills) compare(plan.get(), problem, {131, 300}, fill);
  });
}

TEST_F(QuantizeFusedGpu, StridedAndMisalignedTensorsEqualTheReference) {
  for (const Placement& at : tests::kPlacements) {
    for_each_fused_cell(at.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, at, Fill::kMixed);
    });
  }
}

TEST_F(QuantizeFusedGpu, LargeShapesEqualTheReference) {
  for_each_fused_cell(7168, [&](const QuantizeProblem& problem) {
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    compare(plan.get(), problem, {1024, 7168}, Fill::kNormal);
  });
}

// Two expressions, computed together if no scale's block covers both halves of the columns.
TEST_F(QuantizeFusedGpu, BothHalvesOfARowEqualTheReference) {
  for_each_source({"dsilu_mul", "dgelu_tanh_mul", "drelu_mul", "x0;exp(x1)"},
                  {{9, 256},
                   {1, 512},
                   {65, 1280},
                   {1030, 7168},
                   {9, 512, 8, 8, 0, 0, 4},
                   {9, 512, 1, 0, 1, 0, 0}},
                  [&](const QuantizeProblem& problem, const Placement& at) {
                    ASSERT_TRUE(takes_both_halves(problem));
                    const Plan plan = make_plan(problem);
                    ASSERT_NE(plan, nullptr);
                    compare(plan.get(), problem, at, Fill::kNormal);
                    compare(plan.get(), problem, at, Fill::kMixed);
                  });
}

// A part of the source comes from a table; warps go from tile to tile in the largest shape.
TEST_F(QuantizeFusedGpu, LookedUpValuesEqualTheReference) {
  for_each_source({"gelu", "gelu_tanh", "silu", "add(x0,exp(x0))"},
                  {{1, 16},
                   {65, 96},
                   {993, 512},
                   {4100, 4104},
                   {70, 520, 8, 8, 0, 0, 4},
                   {9, 520, 1, 0, 1, 0, 0}},
                  [&](const QuantizeProblem& problem, const Placement& at) {
                    compare_as({8, 256, 512, 1, false, true}, problem, at,
                               {Fill::kNormal, Fill::kMixed});
                  });
  QuantizeProblem problem;
  problem.cols = 7168;
  problem.source = "gelu_tanh";
  EXPECT_TRUE(default_config(problem, 2048, *find_device("h200")).looks_up);
  const Plan plan = make_plan(problem);
  ASSERT_NE(plan, nullptr);
  compare(plan.get(), problem, {2048, 7168}, Fill::kNormal);
}

TEST_F(QuantizeFusedGpu, EmptyTensorsTouchNothing) {
  for (const Placement& at : {Placement{0, 128}, Placement{128, 0}}) {
    for_each_fused_cell(at.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, at, Fill::kNormal);
    });
  }
}

// SwiGLU of packed experts: the rows of all groups are one tensor's.
TEST_F(QuantizeFusedGpu, ContiguousGroupsEqualTheReferenceOfOneTensor) {
  QuantizeProblem problem;
  problem.cols = 1030;
  problem.source = "silu_mul";
  problem.tap = true;
  QuantizeCase expected = tests::make_case(problem, {300, 1030}, Fill::kMixed);
  QuantizeCase actual = expected;
  problem.grouping = Grouping::kContiguous;
  const Plan plan = make_plan(problem);
  ASSERT_NE(plan, nullptr);
  OnDevice d = place(plan.get(), actual);
  const std::vector<std::int32_t> offsets{0, 1, 1, 130, 300};
  std::vector<char> bytes(offsets.size() * sizeof offsets.front());
  std::memcpy(bytes.data(), offsets.data(), bytes.size());
  const DeviceBuffer on_device = upload(bytes);
  d.args.groups.offsets = static_cast<const std::int32_t*>(on_device.pointer());
  d.args.groups.group_count = std::ssize(offsets) - 1;
  run(plan.get(), d.args);
  if (HasFatalFailure()) return;
  fetch(d, actual);
  ASSERT_TRUE(expected.run_reference());
  tests::expect_same_outputs(actual, expected);
}

// Functions of fp32 numbers of every exponent, on the device, against double: the bounds that
// docs/numerics.md states.
TEST_F(QuantizeFusedGpu, ElementaryFunctionsAreWithinAFewUlp) {
  struct Function {
    const char* source;
    double (*exact)(double);
    double ulps = 2;
    float first = -INFINITY, last = INFINITY;  // beyond, they keep their value there
  };
  for (const Function& f :
       {Function{"exp(x0)", std::exp}, Function{"tanh(x0)", std::tanh},
        Function{"sigmoid(x0)", [](double x) { return 1 / (1 + std::exp(-x)); }, 2, -87},
        Function{"normcdf(x0)", [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }, 6,
                 -12.9F},
        Function{"normpdf(x0)",
                 [](double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0)); }, 3,
                 -12.9F, 12.9F},
        Function{"rsqrt(x0)", [](double x) { return 1 / std::sqrt(x); }, 0}}) {
    QuantizeProblem problem;
    problem.cols = 4096;
    problem.x = {DType::kFP32};
    problem.source = f.source;
    problem.tap = true;
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    QuantizeCase c = tests::make_case(problem, {1024, 4096}, Fill::kBits);
    const OnDevice d = place(plan.get(), c);
    run(plan.get(), d.args);
    if (HasFatalFailure()) return;
    download_values(d.tap, c.tap);
    double most = 0;
    for (std::size_t i = 0; i < c.tap.size(); ++i) {
      float x = 0;
      std::memcpy(&x, c.x.data() + i * sizeof x, sizeof x);
      const auto exact = static_cast<float>(f.exact(x));
      if (!std::isfinite(x) || !std::isfinite(exact) || x < f.first || x > f.last) continue;
      const float next = std::nextafter(std::fabs(exact), INFINITY);
      const double ulp = static_cast<double>(next) - std::fabs(static_cast<double>(exact));
      most = std::max(most, std::fabs(static_cast<double>(c.tap[i]) - exact) / ulp);
    }
    fmt::print("{}: at most {} ulp\n", f.source, most);
    EXPECT_LE(most, f.ulps) << f.source;
    compare(plan.get(), problem, {1024, 4096}, Fill::kBits);  // and the host's bits
  }
}

}  // namespace
}  // namespace octile
