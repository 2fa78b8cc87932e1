// Structs of other versions, and exceptions, which must not cross the boundary.
#include "runtime/api/boundary.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace octile::api {
namespace {

// A struct that has grown. Callers of the first version know only `first`.
struct Grown {
  std::size_t struct_size;
  std::int64_t first;
  std::int64_t second;
};
struct GrownV1 {
  std::size_t struct_size;
  std::int64_t first;
};
struct GrownV3 {
  Grown known;
  std::int64_t third;
};

TEST(ReadStruct, AnOlderCallersTailIsZero) {
  // The bytes behind `caller` are not part of the caller's struct and must not be read.
  struct {
    GrownV1 caller;
    std::int64_t next;
  } memory = {{sizeof(GrownV1), 5}, 99};
  Grown read = {1, 2, 3};
  const auto* user = reinterpret_cast<const Grown*>(&memory.caller);
  ASSERT_TRUE(read_struct("args", user, read, sizeof(GrownV1)));
  EXPECT_EQ(read.first, 5);
  EXPECT_EQ(read.second, 0);
}

TEST(ReadStruct, ANewerCallersZeroTailIsAccepted) {
  GrownV3 newer = {{sizeof(GrownV3), 5, 6}, 0};
  Grown read = {};
  ASSERT_TRUE(read_struct("args", &newer.known, read, sizeof(GrownV1)));
  EXPECT_EQ(read.second, 6);
  newer.third = 1;
  const Status refused = read_struct("args", &newer.known, read, sizeof(GrownV1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

TEST(ReadStruct, SmallerThanTheFirstVersionIsRefused) {
  Grown user = {sizeof(GrownV1) - 1, 5, 6};
  Grown read = {1, 2, 3};
  ASSERT_FALSE(read_struct("args", &user, read, sizeof(GrownV1)));
  EXPECT_EQ(read.first, 2) << "nothing is written where it is refused";
}

TEST(Call, ExceptionsBecomeStatuses) {
  EXPECT_EQ(call([]() -> Status { throw std::bad_alloc(); }), OCTILE_OUT_OF_MEMORY);
  EXPECT_NE(std::string(last_error()), "");
  EXPECT_EQ(call([]() -> Status { throw std::runtime_error("a defect"); }), OCTILE_INTERNAL);
  EXPECT_EQ(std::string(last_error()), "a defect");
  EXPECT_EQ(call([]() -> Status { throw 7; }), OCTILE_INTERNAL);
  EXPECT_EQ(call([]() -> Status { return {}; }), OCTILE_OK);
}

}  // namespace
}  // namespace octile::api
