// Groups of rows through the C API: host runs against the reference.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/api_handles.h"
#include "tests/support/quantize_group_case.h"

namespace octile::test {
namespace {

const std::string kGroupsStart = "quantize rows=? cols=140 x=bf16 ";

TEST(GroupCalls, RunsOnTheHostEqualTheReference) {
  const LibraryHandle library{""};
  for (const char* text :
       {"q=e4m3:1x128 out=both group=contiguous", "q=e4m3:tensor out=both group=contiguous",
        "q=e4m3:tensor out=row policy=delayed group=contiguous", "q=e5m2:1x32 out=row group=masked",
        "q=e4m3:row out=row group=masked",
        "q=e4m3:1x32 out=col group=contiguous scales=swizzled"}) {
    SCOPED_TRACE(text);
    const auto problem = std::get<QuantizeProblem>(parse_problem(kGroupsStart + text).value());
    tests::GroupCase expected =
        tests::make_group_case(problem, 140, {"some", {3, 0, 130, 5}}, tests::Fill::kMixed);
    tests::GroupCase actual = expected;
    QuantizeArguments a;
    actual.fill(a);
    const PlanHandle plan = make_plan(library, "host", kGroupsStart + text);
    ASSERT_EQ(run_quantize(plan.get(), a), OCTILE_OK) << octile_last_error();
    ASSERT_TRUE(expected.run_reference());
    EXPECT_TRUE(tests::same_outputs(actual, expected));
  }
}

TEST(GroupCalls, NoGroupIsNothingToDo) {
  const LibraryHandle library{""};
  QuantizeArguments a;
  a.rows = 20;
  const PlanHandle plan =
      make_plan(library, "host", kGroupsStart + "q=e4m3:1x128 out=row group=contiguous");
  EXPECT_EQ(run_quantize(plan.get(), a), OCTILE_OK) << octile_last_error();
}

}  // namespace
}  // namespace octile::test
