#include "runtime/prove/build_order.h"

#include <gtest/gtest.h>

namespace octile::tuner {
namespace {

TEST(BuildOrder, WhatIsNeededSoonerBeginsFirst) {
  BuildOrder order;
  for (const char* key : {"x", "y", "b"}) order.ask(key, Need::kLater);
  for (const char* key : {"a", "b", "c"}) order.ask(key, Need::kNext);
  order.ask("d", Need::kNow);
  order.ask("b", Need::kNow);
  EXPECT_TRUE(order.waits("b"));
  for (const char* key : {"d", "b", "a", "c", "x", "y"}) EXPECT_EQ(order.next(), key);
  EXPECT_FALSE(order.waits("b"));
  EXPECT_EQ(order.next(), std::nullopt);
}

TEST(BuildOrder, NothingBeginsTwice) {
  BuildOrder order;
  for (const Need need : {Need::kLater, Need::kNow, Need::kNow, Need::kNext, Need::kLater})
    order.ask("a", need);
  EXPECT_EQ(order.next(), "a");
  EXPECT_EQ(order.next(), std::nullopt);
}

}  // namespace
}  // namespace octile::tuner
