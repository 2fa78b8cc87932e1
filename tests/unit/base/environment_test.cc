// Texts of settings, and the names that were meant.
#include "runtime/base/environment.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "generator/core/nearest.h"

namespace octile {
namespace {

TEST(Environment, SwitchesTakeTheUsualWords) {
  for (const char* on : {"1", "true", "yes", "on", "ON", "True"}) EXPECT_EQ(parse_switch(on), true);
  for (const char* off : {"0", "false", "no", "off", "OFF", "No"})
    EXPECT_EQ(parse_switch(off), false);
  for (const char* bad : {"", "2", "y", "enable", " on", "-1"})
    EXPECT_EQ(parse_switch(bad), std::nullopt) << bad;
}

TEST(Environment, BytesTakeUnits) {
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("64K"), 65536);
  EXPECT_EQ(parse_bytes("5G"), std::int64_t{5} << 30);
  EXPECT_EQ(parse_bytes("8388607T"), std::int64_t{8388607} << 40);
  for (const char* bad : {"", "G", "-1", "5g", "5GB", "1.5G", "8388608T", "9223372036854775808"})
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
}

TEST(Environment, TuningTakesASwitchOrPreparesAndTheirSeconds) {
  EXPECT_EQ(parse_tuning("off"), (TuningSetting{false, false, std::nullopt}));
  EXPECT_EQ(parse_tuning("1"), TuningSetting{});
  EXPECT_EQ(parse_tuning("Prepare"), (TuningSetting{true, true, std::nullopt}));
  EXPECT_EQ(parse_tuning("prepare:2.5"), (TuningSetting{true, true, 2.5}));
  for (const char* text : {"off", "on", "prepare", "prepare:30", "prepare:2.5"})
    EXPECT_EQ(to_text(*parse_tuning(text)), text);
  for (const char* bad : {"", "prepared", "prepare:", "prepare:0", "prepare:-1", "prepare:nan",
                          "prepare:inf", "prepare:5s", "prepare 5", "prepare:1e300"})
    EXPECT_EQ(parse_tuning(bad), std::nullopt) << bad;
}

TEST(Nearest, CountsLettersAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("list", "lsit"), 1U);
  EXPECT_EQ(edit_distance("compile", "compil"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
}

TEST(Nearest, NamesOnlyWhatIsNear) {
  const std::vector<std::string_view> verbs{"path", "config", "list", "show", "verify", "why"};
  EXPECT_EQ(nearest("lits", verbs), "list");
  EXPECT_EQ(nearest("conf", verbs), "config");
  EXPECT_EQ(nearest("verfy", verbs), "verify");
  EXPECT_EQ(nearest("bogus", verbs), std::nullopt);
  EXPECT_EQ(nearest("", verbs), std::nullopt);
  EXPECT_EQ(nearest(std::string(100000, 'l'), verbs), std::nullopt);
  EXPECT_EQ(did_you_mean("shwo", verbs), "; did you mean 'show'?");
  EXPECT_EQ(did_you_mean("bogus", verbs), "");
}

TEST(Nearest, KnowsTheVariables) {
  EXPECT_EQ(nearest_variable("OCTILE_CACHEDIR"), "OCTILE_CACHE_DIR");
  EXPECT_EQ(nearest_variable("OCTILE_TUNE"), std::nullopt);
  EXPECT_EQ(nearest_variable("OCTILE_TUNNING"), "OCTILE_TUNING");
  EXPECT_EQ(nearest_variable("OCTILE_X"), std::nullopt);
}

}  // namespace
}  // namespace octile
