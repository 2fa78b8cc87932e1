// The forms that represent a matrix unit are kernels that a device may have, and have what the cost
// model chooses there.
#include "runtime/engine/unit_forms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "generator/gemm/candidates.h"
#include "generator/gemm/constraints.h"
#include "runtime/engine/unit_call.h"

namespace octile {
namespace {

using ::testing::IsSupersetOf;

std::vector<UnitForm> forms_of(const char* device) {
  std::vector<UnitForm> all;
  for (const UnitTests& tests : unit_tests(*find_device(device)))
    all.insert(all.end(), tests.forms.begin(), tests.forms.end());
  return all;
}

TEST(UnitForms, AreKernelsOfTheirDevice) {
  for (const DeviceSpec& device : known_devices()) {
    for (const UnitTests& tests : unit_tests(device)) {
      ASSERT_EQ(tests.device.units, std::vector{tests.unit});
      for (const UnitForm& form : tests.forms) {
        const GemmProblem problem = problem_of(form);
        const GemmConfig config = config_of(form, tests.device);
        EXPECT_EQ(config.unit, tests.unit);
        const auto tokens = static_cast<std::int64_t>(form.sums_tokens ? form.k : form.m);
        EXPECT_EQ(rejection_reason(config, problem, tokens, tests.device), std::nullopt)
            << to_text(problem) << " " << to_text(config);
      }
    }
  }
}

// Nothing that a kernel's body differs by is without a form.
TEST(UnitForms, HaveWhatKernelsDifferBy) {
  std::set<std::string> d, a_scales;
  std::set<int> slots, consumers, splits, clusters;
  std::set<Scheme> schemes;
  std::set<Grouping> groupings;
  bool adds = false, has_bias = false, has_word = false, has_batch = false, has_e5m2 = false;
  for (const UnitForm& form : forms_of("b200")) {
    const GemmProblem p = problem_of(form);
    const GemmConfig c = config_of(form, *find_device("b200"));
    d.insert(std::string(name_of(p.d.dtype)));
    a_scales.insert(std::string(name_of(p.a.scale)));
    slots.insert(c.in_flight);
    consumers.insert(c.consumer_warpgroups);
    splits.insert(c.splits);
    clusters.insert(c.cluster_m);
    schemes.insert(scheme_of(p));
    groupings.insert(p.grouping);
    adds = adds || p.accumulate;
    has_bias = has_bias || p.bias;
    has_word = has_word || has_sentry(p);
    has_batch = has_batch || is_batched(p);
    has_e5m2 = has_e5m2 || p.a.dtype == DType::kE5M2;
  }
  EXPECT_THAT(d, IsSupersetOf({"fp32", "bf16", "fp16", "e4m3"}));
  EXPECT_THAT(a_scales, IsSupersetOf({"f32", "pow2", "ue8m0x4", "e8m0"}));
  EXPECT_THAT(slots, IsSupersetOf({1, 2, 4}));
  EXPECT_THAT(consumers, IsSupersetOf({1, 2, 3}));
  EXPECT_THAT(splits, IsSupersetOf({1, 4}));
  EXPECT_THAT(clusters, IsSupersetOf({1, 2}));
  EXPECT_EQ(schemes.size(), 5U);
  EXPECT_THAT(groupings, IsSupersetOf({Grouping::kNone, Grouping::kContiguous, Grouping::kMasked}));
  EXPECT_TRUE(adds && has_bias && has_word && has_batch && has_e5m2);
}

// Rings wrap: a thread block has more K-blocks than its ring has stages and its sums have slots.
TEST(UnitForms, HaveMoreWorkThanStages) {
  for (const UnitForm& form : forms_of("b200")) {
    if (form.config.empty()) continue;
    const GemmConfig c = config_of(form, *find_device("b200"));
    const GemmProblem p = problem_of(form);
    const auto blocks = [](std::size_t count, int of) {
      return (static_cast<std::int64_t>(count) + of - 1) / of;
    };
    const std::int64_t rows =
        static_cast<std::int64_t>(form.m) * std::max<std::int64_t>(p.groups, 1);
    const std::int64_t tiles =
        blocks(static_cast<std::size_t>(rows), c.block_m) * blocks(form.n, c.block_n);
    const std::int64_t clusters = form.sm_limit / cluster_size(c);
    const std::int64_t own = tiles / clusters * blocks(form.k, 128 * c.splits);
    EXPECT_GT(own, c.stages) << to_text(p) << " " << to_text(c);
    EXPECT_GT(tiles, clusters) << to_text(p) << " " << to_text(c);
  }
}

}  // namespace
}  // namespace octile
