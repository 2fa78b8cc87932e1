// The reader of tests/cells/gemm.txt.
#include "tests/support/gemm_cells.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "generator/families.h"

namespace octile::tests {
namespace {

const std::string kKernel =
    "- | gemm m=? n=64 k=128 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 "
    "promote=128 | tile=64x32x128 stages=3 wg=1";

TEST(GemmCells, ErrorsNameLineAndColumn) {
  const std::string before = "# a comment\n\n" + kKernel + "\n";
  for (const auto& [row, says] : {
           std::pair("- | gemm m=?", "gemm.txt:4:5: a row of 2 cells"),
           std::pair("- | gemm m=? | tile=64x32x128 | x", "gemm.txt:4:33: a row of 4 cells"),
           std::pair(" | gemm m=? | tile=64x32x128", "gemm.txt:4:2: no name"),
           std::pair("- | gemm m=? kk=3 | tile=64x32x128", "gemm.txt:4:5: "),
           std::pair("- | quantize rows=? cols=8 x=bf16 q=e4m3:1x128 out=row | -",
                     "gemm.txt:4:5: the problem is not a GEMM"),
       }) {
    const auto cells = parse_gemm_cells(before + row);
    ASSERT_FALSE(cells.has_value()) << row;
    EXPECT_THAT(cells.error().message, ::testing::HasSubstr(says));
  }
  const auto wrong_tile = parse_gemm_cells(kKernel + " tiles=3");
  ASSERT_FALSE(wrong_tile.has_value());
  EXPECT_THAT(wrong_tile.error().message, ::testing::StartsWith("gemm.txt:1:80: "));
}

TEST(GemmCells, ANameIsOfOneKernel) {
  const std::string named = "items" + kKernel.substr(1);
  EXPECT_EQ(parse_gemm_cells(kKernel + "\n" + named).value().back().name, "items");
  const auto twice = parse_gemm_cells(named + "\n" + named);
  ASSERT_FALSE(twice.has_value());
  EXPECT_EQ(twice.error().message, "gemm.txt:2:1: the name items is there twice");
  EXPECT_THROW(gemm_cell("nothing"), std::out_of_range);
}

// A kernel that is there twice would be compiled twice.
TEST(GemmCells, EveryRowIsAnotherKernel) {
  const auto cells = gemm_cells().value();
  std::set<std::pair<std::string, std::string>> texts;
  for (const GemmCell& cell : cells) {
    const auto& [problem, config] = cell.kernel;
    EXPECT_TRUE(texts.emplace(to_text(problem), to_text(config)).second) << to_text(problem);
  }
  EXPECT_GE(texts.size(), 200U);
}

}  // namespace
}  // namespace octile::tests
