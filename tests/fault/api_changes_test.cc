// Contents of flat ranges are not compared.
#include <gtest/gtest.h>

#include "tests/support/api_handles.h"

namespace octile::test {
namespace {

TEST(Changes, FlatRangesAreRefused) {
  const LibraryHandle library{""};
  octile_plan* plan = nullptr;
  const char* const problem =
      "quantize rows=? cols=272 x=bf16 q=e4m3:1x128 out=row shard=cast skip=unchanged";
  expect_refused(octile_plan_create(library.get(), "host", problem, &plan), OCTILE_UNSUPPORTED, {});
  EXPECT_EQ(plan, nullptr);
}

}  // namespace
}  // namespace octile::test
