// The default rows of quantisers: none is dead, the last of each template takes everything, and a
// reader learns which row chose a tile.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <span>
#include <string>
#include <vector>

#include "generator/families.h"
#include "generator/quantize/tile_rules.h"
#include "tests/support/quantize_cells.h"

namespace octile {
namespace {

using ::testing::HasSubstr;

const DeviceSpec& h100() { return *find_device("h100"); }

QuantizeProblem quantizer(const std::string& fields) {
  return std::get<QuantizeProblem>(*parse_problem("quantize rows=? " + fields));
}

std::vector<std::span<const TileRule>> all_rules() {
  return {warp_tile_rules(), cta_tile_rules(), row_rules(),      norm_rules(),
          range_rules(),     scales_rules(),   transpose_rules()};
}

std::vector<QuantizeProblem> all_cells(std::int64_t cols) {
  std::vector<QuantizeProblem> cells = tests::quantize_cells(cols);
  for (const auto& more :
       {tests::fused_quantize_cells(cols), tests::grouped_source_cells(cols),
        tests::supported(tests::all_grouped_problems(cols)), tests::amax_cells(cols),
        tests::via_cells(cols), tests::pieces_cells(), tests::row_message_cells(cols)}) {
    cells.insert(cells.end(), more.begin(), more.end());
  }
  // Callers' expressions, of which the cells above have few.
  for (const char* source :
       {"mul(x0,x1)", "add(x0,mul(x1,x2))", "add(add(x0,x1),add(x2,x3))", "div(x0,x1)",
        "mul(x0,x1);mul(x0,x2)", "x0;x1", "silu_mul", "dsilu_mul", "rmsnorm"}) {
    for (const char* type : {"q=e4m3:tensor", "q=e4m3:row", "q=e4m3:1x128", "q=e4m3:1x128:ue8m0x4",
                             "q=e4m3:128x128", "q=e4m3:1x32:e8m0", "q=e4m3:32x32:e8m0"}) {
      for (const char* more :
           {"", " dbias=1", " tap=1", " tap=1 dbias=1", " group=contiguous", " group=masked"}) {
        for (const char* out : {"row", "col", "both"}) {
          for (const char* x : {"bf16", "fp32"}) {
            const auto problem =
                parse_problem(fmt::format("quantize rows=? cols={} x={} {} out={} src={}{}", cols,
                                          x, type, out, source, more));
            if (problem && check_supported(*problem)) {
              cells.push_back(std::get<QuantizeProblem>(*problem));
            }
          }
        }
      }
    }
  }
  for (const char* more : {"x=bf16 q=e4m3:1x128 out=row src=gelu_tanh",
                           "x=e4m3:1x128 q=e4m3:1x32:e8m0 out=both group=contiguous"}) {
    cells.push_back(quantizer(fmt::format("cols={} {}", cols, more)));
  }
  return cells;
}

// A row that no cell reaches would say something about tiles that is never looked at.
TEST(TileRules, EveryRowServesACell) {
  std::set<const TileRule*> used;
  std::set<const ResidencyRow*> resident;
  for (const std::int64_t cols : {256, 7168, 32768}) {
    for (const QuantizeProblem& cell : all_cells(cols)) {
      for (const std::int64_t rows : {1, 16, 32, 64, 128, 256, 1024, 16384}) {
        const TileRule& rule = default_rule(cell, rows, h100());
        used.insert(&rule);
        const FieldValues values = residency_values(cell);
        if (rule.tile.warps == 0 || rule.tile.kind == TileKind::kPatch) {
          resident.insert(&residency_of(rule.tile.kind, values));
        }
        if (may_take_halves_together(cell)) {
          resident.insert(&residency_of(TileKind::kPatch, values));
          resident.insert(&residency_of(TileKind::kHalves, values));
        }
      }
    }
  }
  for (const auto& rules : all_rules()) {
    for (const TileRule& rule : rules) EXPECT_TRUE(used.contains(&rule)) << rule.name;
  }
  for (const ResidencyRow& row : residency_rows()) {
    EXPECT_TRUE(resident.contains(&row)) << static_cast<int>(row.kind) << " " << row.pattern;
  }
}

TEST(TileRules, TheLastRowTakesEverything) {
  for (const auto& rules : all_rules()) {
    const TileRule& last = rules.back();
    EXPECT_EQ(last.pattern, "") << last.name;
    EXPECT_EQ(last.needs, nullptr) << last.name;
    EXPECT_FALSE(last.bounds.knows_rows) << last.name;
    EXPECT_EQ(last.bounds.tiles.rows, 0) << last.name;
    for (const TileRule& rule : rules) EXPECT_FALSE(rule.reason.empty()) << rule.name;
  }
}

TEST(TileRules, TheChosenRowIsNamedWithItsReason) {
  const std::string text =
      default_reason(quantizer("cols=7168 x=bf16 q=e4m3:1x128 out=row"), 64, h100());
  EXPECT_THAT(text, HasSubstr("the default row 'one_row': a warp of one row has as many loads"));
  EXPECT_THAT(text, HasSubstr("; 32 warps an SM: a row has one address; measured on an h200"));
  EXPECT_THAT(default_reason(quantizer("cols=7168 x=bf16 q=e4m3:1x128 out=both"), 16384, h100()),
              HasSubstr("'staged'"));
  const Problem gemm =
      *parse_problem("gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
  EXPECT_EQ(default_reason(gemm, 64, h100()), "the cost model");
}

// Bounds count tiles of an SM: twice as many SMs take the row of a tensor with twice as many rows.
TEST(TileRules, ACardThatNobodyMeasuredTakesTheRowOfItsSms) {
  DeviceSpec large = h100();
  large.sm_count *= 2;
  for (const char* fields :
       {"cols=7168 x=bf16 q=e4m3:1x128 out=row", "cols=7168 x=bf16 q=e4m3:128x128 out=row",
        "cols=7168 x=bf16 q=e4m3:1x128 out=col"}) {
    const QuantizeProblem p = quantizer(fields);
    for (const std::int64_t rows : {256, 512, 1024, 4096}) {
      EXPECT_EQ(&default_rule(p, 2 * rows, large), &default_rule(p, rows, h100()))
          << fields << " " << rows;
    }
  }
}

}  // namespace
}  // namespace octile
