// Structs of other versions, and exceptions, which must not cross the boundary.
#include "runtime/api/boundary.h"

#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

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

}  // namespace

template <>
struct FirstSize<Grown> : std::integral_constant<std::size_t, sizeof(GrownV1)> {};

namespace {

TEST(ReadStruct, AnOlderCallersTailIsZero) {
  // The bytes behind `caller` are not part of the caller's struct and must not be read.
  struct {
    GrownV1 caller;
    std::int64_t next;
  } memory = {{sizeof(GrownV1), 5}, 99};
  Grown read = {1, 2, 3};
  const auto* user = reinterpret_cast<const Grown*>(&memory.caller);
  ASSERT_TRUE(read_struct("args", user, read));
  EXPECT_EQ(read.first, 5);
  EXPECT_EQ(read.second, 0);
}

TEST(ReadStruct, ANewerCallersZeroTailIsAccepted) {
  GrownV3 newer = {{sizeof(GrownV3), 5, 6}, 0};
  Grown read = {};
  ASSERT_TRUE(read_struct("args", &newer.known, read));
  EXPECT_EQ(read.second, 6);
  newer.third = 1;
  const Status refused = read_struct("args", &newer.known, read);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

TEST(ReadStruct, SmallerThanTheFirstVersionIsRefused) {
  Grown user = {sizeof(GrownV1) - 1, 5, 6};
  Grown read = {1, 2, 3};
  ASSERT_FALSE(read_struct("args", &user, read));
  EXPECT_EQ(read.first, 2) << "nothing is written where it is refused";
}

TEST(ReadStruct, AReservedFieldIsZero) {
  octile_prepare_options user = {};
  user.struct_size = sizeof(user);
  octile_prepare_options read = {};
  EXPECT_TRUE(read_struct("options", &user, read));
  user.reserved = 5;
  const Status refused = read_struct("options", &user, read);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "options->reserved is 5; allowed: 0");
}

TEST(ReadStruct, AMisalignedOneIsRefusedUnread) {
  alignas(Grown) unsigned char memory[sizeof(Grown) + 8] = {};
  const Grown user = {sizeof(Grown), 5, 6};
  for (std::size_t offset = 1; offset < alignof(Grown); ++offset) {
    std::memcpy(memory + offset, &user, sizeof user);
    Grown read = {1, 2, 3};
    const auto* misaligned = reinterpret_cast<const Grown*>(memory + offset);
    const Status refused = read_struct("args", misaligned, read);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().message.find("allowed: a multiple of 8"), std::string::npos);
    EXPECT_EQ(read.first, 2);
    EXPECT_FALSE(write_struct("args", user, reinterpret_cast<Grown*>(memory + offset)));
  }
}

TEST(LastError, KeepsTheBeginningOfALongSentence) {
  const std::string longest(kMaxSentenceBytes, 'x');
  report(OCTILE_INTERNAL, longest);
  EXPECT_EQ(last_error(), longest);
  EXPECT_EQ(report({ErrorCode::kInternal, std::string(std::size_t{200} << 20, 'x')}),
            OCTILE_INTERNAL);
  const std::string cut = last_error();
  EXPECT_EQ(cut.size(), kMaxSentenceBytes);
  EXPECT_TRUE(cut.ends_with("x ..."));
}

TEST(LastError, IsTheThreadsOwn) {
  report(OCTILE_INTERNAL, "mine");
  std::string before;
  std::string after;
  std::thread([&] {
    before = last_error();
    report(OCTILE_INTERNAL, "its own");
    after = last_error();
  }).join();
  EXPECT_EQ(before, "");
  EXPECT_EQ(after, "its own");
  EXPECT_STREQ(last_error(), "mine");
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
