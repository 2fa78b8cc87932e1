// A JSON value is printed byte for byte as nlohmann prints it, and a text is read as it was
// written.
#include "cache/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace octile {
namespace {

using Theirs = nlohmann::ordered_json;

std::string dump_theirs(const Theirs& value, bool ascii) {
  return value.dump(-1, ' ', ascii, Theirs::error_handler_t::replace);
}

template <typename Value>
void expect_same(const Value& value) {
  EXPECT_EQ(Json(value).dump(), dump_theirs(value, false));
  EXPECT_EQ(Json(value).dump_ascii(), dump_theirs(value, true));
}

TEST(Json, PrintsScalarsAsNlohmannDoes) {
  expect_same(nullptr);
  expect_same(true);
  expect_same(false);
  for (const int value : {0, 1, -1, 1234567890}) expect_same(value);
  expect_same(std::numeric_limits<std::int64_t>::min());
  expect_same(std::numeric_limits<std::int64_t>::max());
  expect_same(std::numeric_limits<std::uint64_t>::max());
  for (const double value :
       {0.0, -0.0, 1.0, 0.1, 1.0 / 3, 1e15, 1e16, 1e300, -2.5e-7, 5e-324, 1e-5, 123456.789,
        std::numeric_limits<double>::max(), std::nan(""), -HUGE_VAL}) {
    expect_same(value);
  }
  for (const char* text : {"", "a", "quote \" backslash \\ slash /", "\x01\x1f\x7f\b\f\n\r\t",
                           "\xc3\xa4", "\xf0\x9f\x98\x80", "not \xff UTF-8", "cut \xe2\x82"}) {
    expect_same(text);
    expect_same(std::string(text));
    EXPECT_EQ(Json(std::string_view(text)).dump(), dump_theirs(text, false));
  }
  expect_same(std::string("a\0b", 3));
}

TEST(Json, PrintsMembersInTheOrderOfInsertion) {
  Json list = Json::array();
  list.push_back(2).push_back(nullptr).push_back(Json::array()).push_back(Json::object());
  const Json json = Json::object().add("z", "\xff").add("a\n", std::move(list)).add("m", 0.5);
  const Theirs theirs{
      {"z", "\xff"}, {"a\n", {2, nullptr, Theirs::array(), Theirs::object()}}, {"m", 0.5}};
  EXPECT_EQ(json.dump(), dump_theirs(theirs, false));
  EXPECT_EQ(json.dump_ascii(), dump_theirs(theirs, true));
}

TEST(Json, ACopyIsAValueOfItsOwn) {
  Json first = Json::object().add("list", Json::array().push_back("text")).add("one", 1);
  const std::string text = first.dump();
  const Json copy = first;
  first.add("more", true);
  EXPECT_EQ(copy.dump(), text);
  EXPECT_NE(first.dump(), text);
  Json moved = std::move(first);
  first = copy;
  EXPECT_EQ(first.dump(), text);
  moved = Json();
  EXPECT_EQ(moved.dump(), "null");
  EXPECT_EQ(copy.dump(), text);
}

TEST(Json, AnswersByType) {
  const Json text("7"), number(7), real(7.5), large(std::uint64_t{1} << 63);
  EXPECT_EQ(*text.string(), "7");
  EXPECT_EQ(text.integer(), std::nullopt);
  EXPECT_EQ(text.number(), std::nullopt);
  EXPECT_EQ(number.string(), nullptr);
  EXPECT_EQ(number.integer(), 7);
  EXPECT_EQ(number.number(), 7.0);
  EXPECT_EQ(real.integer(), std::nullopt);
  EXPECT_EQ(real.number(), 7.5);
  EXPECT_EQ(large.integer(), std::nullopt);
  EXPECT_EQ(large.number(), 0x1p63);
  EXPECT_EQ(Json(true).integer(), std::nullopt);
  EXPECT_EQ(text.begin(), text.end());
  EXPECT_EQ(text.find("7"), nullptr);
}

TEST(Json, ReadsWhatItPrints) {
  for (const char* text :
       {"{}", R"({"b":[1,-2,18446744073709551615,0.5,1e+300,true,false,null,"\u0001\"ä"],"a":{}})",
        R"({"a":[[],{},[{"b":-0.0}]]})"}) {
    const auto read = parse_object(text, "text");
    ASSERT_TRUE(read) << read.error();
    EXPECT_EQ(read->dump(), text);
  }
}

TEST(Json, TheLastMemberOfANameCounts) {
  const auto read = parse_object(R"({"a":1,"b":2,"a":3})", "text");
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(read->find("a")->integer(), 3);
  EXPECT_EQ(read->items().size(), 3U);
  EXPECT_EQ(read->find("c"), nullptr);
}

TEST(Json, RefusesWhatIsNoObjectOrTooDeep) {
  for (const char* text : {"", "{", "[]", "1", "null", "{}x", R"({"a":1e999})", R"({"a":NaN})"}) {
    const auto read = parse_object(text, "text");
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error(), "text: not a JSON object");
  }
  const auto nested = [](std::size_t depth) {
    return R"({"a":)" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  EXPECT_TRUE(parse_object(nested(kMaxJsonDepth), "text"));
  const auto deep = parse_object(nested(kMaxJsonDepth + 1), "text");
  ASSERT_FALSE(deep);
  EXPECT_EQ(deep.error(), "text: values nest more than 8 deep");
}

}  // namespace
}  // namespace octile
