#include "runtime/prove/build_order.h"

#include <gtest/gtest.h>

namespace octile::tuner {
namespace {

TEST(BuildOrder, WhatIsNeededNowPrecedesWhatIsExpected) {
  BuildOrder order;
  for (const char* key : {"a", "b", "c"}) order.expect(key);
  order.need("d");
  order.need("b");
  EXPECT_TRUE(order.waits("b"));
  for (const char* key : {"d", "b", "a", "c"}) EXPECT_EQ(order.next(), key);
  EXPECT_FALSE(order.waits("b"));
  EXPECT_EQ(order.next(), std::nullopt);
}

TEST(BuildOrder, NothingBeginsTwice) {
  BuildOrder order;
  order.need("a");
  order.need("a");
  order.expect("a");
  EXPECT_EQ(order.next(), "a");
  EXPECT_EQ(order.next(), std::nullopt);
}

}  // namespace
}  // namespace octile::tuner
