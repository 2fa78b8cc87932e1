// A JSON value is printed byte for byte as nlohmann prints it, and a text is read as it was
// written.
#include "cache/json.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

namespace octile {
namespace {

using Theirs = nlohmann::ordered_json;

std::string dump_theirs(const Theirs& value, bool ascii, int indent = -1) {
  return value.dump(indent, ' ', ascii, Theirs::error_handler_t::replace);
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

using Random = std::mt19937_64;

std::string random_text(Random& random) {
  constexpr std::array<const char*, 8> kParts{
      "a", "Z", "\"", "\\", "\n", "\xc3\xa4", "\xf0\x9f\x98\x80", "7"};
  std::string text;
  for (std::size_t i = random() % 5; i > 0; --i) text += kParts[random() % kParts.size()];
  return text;
}

Theirs random_value(Random& random, int depth) {
  switch (random() % (depth > 0 ? 8 : 6)) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 0;
    case 2:
      return static_cast<std::int64_t>(random());
    case 3:
      return random() >> (random() % 64);
    case 4:
      return std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 200) - 100);
    case 5:
      return random_text(random);
    case 6: {
      Theirs all = Theirs::array();
      for (std::size_t i = random() % 4; i > 0; --i) all.push_back(random_value(random, depth - 1));
      return all;
    }
    default: {
      Theirs all = Theirs::object();
      for (std::size_t i = random() % 4; i > 0; --i)
        all[random_text(random)] = random_value(random, depth - 1);
      return all;
    }
  }
}

TEST(Json, ReadsAndPrintsRandomValuesAsNlohmannDoes) {
  Random random(20261128);
  for (int i = 0; i < 2000; ++i) {
    const Theirs theirs = random_value(random, 4);
    const auto read = parse_json(theirs.dump(), 5);
    ASSERT_TRUE(read) << theirs.dump();
    for (const bool ascii : {false, true}) {
      const auto print = [&](std::size_t indent) {
        return ascii ? read->dump_ascii(indent) : read->dump(indent);
      };
      EXPECT_EQ(print(0), dump_theirs(theirs, ascii));
      EXPECT_EQ(print(2), dump_theirs(theirs, ascii, 2));
      EXPECT_EQ(print(5), dump_theirs(theirs, ascii, 5));
    }
    EXPECT_EQ(parse_json(read->dump_ascii(1), 5), *read);
    Json sorted = *read;
    sorted.sort_members();
    EXPECT_EQ(sorted.dump(), nlohmann::json(nlohmann::json::parse(theirs.dump())).dump());
  }
}

TEST(Json, IsComposedOfLists) {
  const std::vector<std::string> names{"x", "y"};
  Json json{{"a", 1}, {"list", Json::array({1, "two", nullptr})}, {"in", {{"b", true}}}};
  json.add("names", names).set("a", 2.5).set("new", Json::array());
  EXPECT_EQ(json.dump(),
            R"({"a":2.5,"list":[1,"two",null],"in":{"b":true},"names":["x","y"],"new":[]})");
  json.at("in").set("b", false);
  json.at("list").at(1) = Json{{"c", 0}};
  EXPECT_EQ(json.at("in").at("b").boolean(), false);
  EXPECT_EQ(json.at("list").at(1).dump(), R"({"c":0})");
  EXPECT_EQ(json.size(), 5U);
  EXPECT_EQ(json.at("list").size(), 3U);
  EXPECT_TRUE(json.at("new").empty());
  EXPECT_TRUE(json.contains("new"));
  EXPECT_FALSE(json.contains("old"));
  EXPECT_TRUE(json.at("list").at(2).is_null());
  EXPECT_THROW((void)json.at("old"), std::out_of_range);
  EXPECT_THROW((void)json.at(0), std::out_of_range);
  EXPECT_THROW((void)json.at("list").at(3), std::out_of_range);
}

TEST(Json, IsEqualByValue) {
  EXPECT_EQ(Json(1), Json(std::uint64_t{1}));
  EXPECT_EQ(Json(1), Json(1.0));
  EXPECT_NE(Json(1), Json(true));
  EXPECT_NE(Json(0), Json());
  EXPECT_NE(Json(std::numeric_limits<std::int64_t>::max()),
            Json(std::numeric_limits<std::int64_t>::max() - 1));
  EXPECT_NE(Json(std::nan("")), Json(std::nan("")));
  EXPECT_EQ(Json("a"), "a");
  EXPECT_NE(Json("a"), Json::array({"a"}));
  EXPECT_EQ((Json{{"a", Json::array({1, 2})}}), (Json{{"a", Json::array({1.0, 2})}}));
  EXPECT_NE((Json{{"a", 1}, {"b", 2}}), (Json{{"b", 2}, {"a", 1}}));
}

TEST(Json, ReadsNumbersThatPythonWrites) {
  const auto read = parse_json(R"([Infinity, {"NaN": -Infinity}, "Infinity", NaN])", 2);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->at(0).number(), HUGE_VAL);
  EXPECT_EQ(read->at(1).at("NaN").number(), -HUGE_VAL);
  EXPECT_EQ(read->at(2), "Infinity");
  EXPECT_TRUE(std::isnan(*read->at(3).number()));
  EXPECT_EQ(read->dump(), R"([null,{"NaN":null},"Infinity",null])");
}

TEST(Json, NamesTheMistake) {
  using Kind = JsonMistake::Kind;
  for (const char* text : {"", "{", "[1,", "[1 2]", "{\"a\" 1}", "nul", "\"\xff\"", "[1]x", "01"}) {
    const auto read = parse_json(text, 4);
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().kind, Kind::kSyntax) << text;
    try {
      const Theirs accepted = Theirs::parse(text);
      ADD_FAILURE() << accepted.dump();
    } catch (const Theirs::parse_error& error) {
      EXPECT_EQ(read.error().byte, error.byte) << text;
    }
  }
  EXPECT_EQ(parse_json("{NaN: 1}", 4).error().byte, 4U);
  EXPECT_EQ(parse_json("[1e999]", 4).error().kind, Kind::kNumber);
  EXPECT_TRUE(parse_json("[[[[]]]]", 4));
  EXPECT_EQ(parse_json("[[[[[]]]]]", 4).error().kind, Kind::kTooDeep);
  EXPECT_TRUE(parse_json(R"({"a":{"b":1},"b":2})", 4));
  for (const char* text : {R"({"a":{"b":1,"c":{},"b":2}})", R"({"b":1,"c":[{"a":1}],"b":2, x)"}) {
    EXPECT_EQ(parse_json(text, 4).error().kind, Kind::kTwice);
    EXPECT_EQ(parse_json(text, 4).error().key, "b");
  }
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
