// Configurations in which the two copies of a tile have a thread block each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "generator/core/device_spec.h"
#include "generator/quantize/candidates.h"
#include "generator/quantize/config.h"
#include "generator/quantize/emit.h"
#include "generator/quantize/grid.h"
#include "generator/quantize/kernel_name.h"
#include "runtime/engine/engine.h"

namespace octile {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const DeviceSpec& h200() { return *find_device("h200"); }

QuantizeProblem both(Granularity granularity = Granularity::k1x128) {
  QuantizeProblem p;
  p.cols = 7168;
  p.q.granularity = granularity;
  p.output = QuantizeOutput::kBoth;
  return p;
}

QuantizeConfig apart(int rows, int cols, int threads) {
  return {.tile_rows = rows,
          .tile_cols = cols,
          .threads = threads,
          .blocks_per_sm = 1,
          .copies_apart = true};
}

std::string refusal(const QuantizeProblem& p, const QuantizeConfig& c) {
  const Status status = check_config(p, c, *find_device("h200"));
  return status ? "" : status.error().message;
}

TEST(QuantizeCopies, TextAndNameSayThatTheyAreApart) {
  const QuantizeConfig config = apart(128, 64, 256);
  EXPECT_EQ(to_text(config), "tile=128x64 threads=256 per_sm=1 copies=apart");
  EXPECT_EQ(parse_quantize_config(to_text(config)).value(), config);
  EXPECT_FALSE(parse_quantize_config("copies=together").value().copies_apart);
  EXPECT_FALSE(parse_quantize_config("copies=1"));
  EXPECT_THAT(kernel_name(both(), config), HasSubstr("_t128x64_w8_occ1_apart"));
}

TEST(QuantizeCopies, ApartTakeTwiceAsManyThreadBlocks) {
  for (const auto& [config, tiles] : {std::pair{apart(128, 64, 256), 112},  //
                                      std::pair{apart(16, 128, 128), 56}}) {
    QuantizeConfig together = config;
    together.copies_apart = false;
    EXPECT_EQ(launch_blocks(both(), together, 128).value(), tiles);
    EXPECT_EQ(launch_blocks(both(), config, 128).value(), 2 * tiles);
    EXPECT_EQ(launch_blocks(both(), config, 0).value(), 0);
  }
}

TEST(QuantizeCopies, RefusalsSayWhatMayNotBeApart) {
  const QuantizeConfig config = apart(128, 128, 256);
  EXPECT_EQ(refusal(both(), config), "");
  const auto changed = [](auto change) {
    QuantizeProblem p = both();
    change(p);
    return p;
  };
  for (const QuantizeProblem& p : {
           changed([](auto& p) { p.output = QuantizeOutput::kTransposed; }),
           changed([](auto& p) { p.source = "silu_mul"; }),
           changed([](auto& p) { p.grouping = Grouping::kContiguous; }),
           changed([](auto& p) { p.bias_gradient = true; }),
           changed([](auto& p) { p.x = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32}; }),
       }) {
    EXPECT_FALSE(may_write_copies_apart(p));
    EXPECT_THAT(refusal(p, config), HasSubstr("copies is apart; together is allowed"));
  }
  QuantizeProblem short_blocks = both();
  short_blocks.q = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
  QuantizeConfig ordered = config;
  ordered.orders_scales = true;
  EXPECT_THAT(refusal(short_blocks, ordered),
              HasSubstr("copies is apart; together is allowed with scales=ordered"));
}

TEST(QuantizeCopies, CandidatesHaveThemApartWhereTheyMayBe) {
  const auto is_apart = [](const QuantizeConfig& c) { return c.copies_apart; };
  EXPECT_TRUE(std::ranges::any_of(candidates(both(), 16, h200()).admitted, is_apart));
  QuantizeProblem one = both();
  one.output = QuantizeOutput::kTransposed;
  EXPECT_FALSE(std::ranges::any_of(candidates(one, 16, h200()).admitted, is_apart));
}

TEST(QuantizeCopies, DefaultsHaveThemApartIfAllBlocksAreResident) {
  const auto text = [](Granularity g, std::int64_t rows, std::int64_t cols) {
    QuantizeProblem p = both(g);
    p.cols = cols;
    return to_text(default_config(p, rows, h200()));
  };
  for (const Granularity g : {Granularity::k1x128, Granularity::k128x128}) {
    EXPECT_EQ(text(g, 16, 7168), "tile=16x128 threads=128 per_sm=4 copies=apart");
    EXPECT_EQ(text(g, 64, 7168), "tile=64x128 threads=256 per_sm=2 copies=apart");
    EXPECT_EQ(text(g, 64, 2048), "tile=128x64 threads=256 per_sm=2 copies=apart");
    EXPECT_EQ(text(g, 32, 18432), "tile=32x128 threads=256 per_sm=2");  // 288 blocks
    EXPECT_THAT(text(g, 512, 7168), Not(HasSubstr("apart")));
  }
  EXPECT_THAT(text(Granularity::kPerTensor, 128, 7168), Not(HasSubstr("apart")));
}

TEST(QuantizeCopies, EmittedSourceSaysSo) {
  const auto text = [](const QuantizeConfig& c) {
    return emit(both(), c, h200(), embedded_templates()).value().source;
  };
  QuantizeConfig config = apart(16, 128, 128);
  EXPECT_THAT(text(config), HasSubstr("kCopiesApart = true"));
  config.copies_apart = false;
  EXPECT_THAT(text(config), HasSubstr("kCopiesApart = false"));
}

}  // namespace
}  // namespace octile
