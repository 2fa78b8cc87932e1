// Configurations as text: which ones are read, and which sentence refuses the others.
#include "generator/core/text_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "generator/gemm/config.h"
#include "generator/quantize/config.h"

namespace octile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(ConfigText, FieldsAreSetInTheirOrder) {
  std::vector<std::pair<std::string, std::string>> fields;
  const auto set = [&](std::string_view name, std::string_view value) {
    fields.emplace_back(name, value);
    return true;
  };
  EXPECT_TRUE(parse_fields("  a=1 b==x  c= ", set, "some", "a, b"));
  EXPECT_THAT(fields, ElementsAre(Pair("a", "1"), Pair("b", "=x"), Pair("c", "")));
}

TEST(ConfigText, TheFirstFieldNotSetIsNamed) {
  const auto set = [](std::string_view name, std::string_view) { return name == "a"; };
  for (const char* text : {"a=1 b=2 c=3", "a=1 b=2", "b=2"}) {
    const Status refused = parse_fields(text, set, "some", "a=N");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused.error().message, "some field 'b=2' is not one of a=N");
  }
  EXPECT_EQ(parse_fields("a", set, "some", "a=N").error().message,
            "some field 'a' is not one of a=N");
}

TEST(ConfigText, ExtentsAreAsManyAsAsked) {
  int a = 0, b = 0;
  EXPECT_TRUE(parse_extents("12x-3", {&a, &b}));
  EXPECT_EQ(a, 12);
  EXPECT_EQ(b, -3);
  for (const char* text : {"", "1", "1x", "x1", "1x2x3", "1x2 ", "1xb", "1x99999999999"})
    EXPECT_FALSE(parse_extents(text, {&a, &b})) << text;
}

TEST(ConfigText, EachFamilyNamesItsFields) {
  const auto gemm = parse_gemm_config("tile=128x128");
  ASSERT_FALSE(gemm);
  EXPECT_THAT(gemm.error().message,
              HasSubstr("GEMM configuration field 'tile=128x128' is not one of tile=MxNxK, "));
  for (const char* raster : {"raster=n", "raster=16m", "raster=n16", "raster=8 n"})
    EXPECT_FALSE(parse_gemm_config(raster)) << raster;
  const auto quantize = parse_quantize_config("tile=8x256 raster=diagonal");
  ASSERT_FALSE(quantize);
  EXPECT_THAT(quantize.error().message,
              HasSubstr("quantise configuration field 'raster=diagonal' is not one of "
                        "tile=ROWSxCOLS, "));
}

TEST(ConfigText, ARasterIsOfRowsOrOfColumns) {
  EXPECT_EQ(parse_gemm_config("raster=12")->raster, (Raster{12, false}));
  EXPECT_EQ(parse_gemm_config("raster=12n")->raster, (Raster{12, true}));
  EXPECT_EQ(to_text(Raster{8, false}), "8");
  EXPECT_EQ(to_text(Raster{16, true}), "16n");
}

}  // namespace
}  // namespace octile
