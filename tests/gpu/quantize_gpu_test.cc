// Every supported quantise cell on a GPU, through the C API, bit for bit against the host
// reference: shapes with tails, every class of input, strided and misaligned tensors, guard zones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "generator/families.h"
#include "octile/octile.h"
#include "runtime/prove/fixed_kernel.h"
#include "runtime/reference/quantize/reference_scale_update.h"
#include "tests/gpu/quantize_gpu.h"
#include "tests/gpu/session.h"

namespace octile {
namespace {

class QuantizeGpu : public QuantizeGpuFixture {};

// A cell of one tensor in memory. `turn` tells the cells of a test apart, so that each may have one
// of several configurations.
struct PlacedCell {
  QuantizeProblem problem;
  Placement at;
  std::size_t turn = 0;
};

using CellsOf = std::vector<QuantizeProblem> (*)(std::int64_t cols);

// Returns the cells of a table that are wanted, at these shapes and at every layout of kPlacements.
template <typename Wanted>
std::vector<PlacedCell> placed_cells(std::vector<Placement> places, CellsOf cells_of,
                                     const Wanted& wanted) {
  places.insert(places.end(), std::begin(tests::kPlacements), std::end(tests::kPlacements));
  std::vector<PlacedCell> cells;
  for (const Placement& at : places) {
    for (const QuantizeProblem& problem : cells_of(at.cols)) {
      if (wanted(problem)) cells.push_back({problem, at, cells.size()});
    }
  }
  tests::count_cases(cells.size(), 0);
  return cells;
}
template <typename Wanted>
std::vector<PlacedCell> placed_cells(std::vector<Placement> places, const Wanted& wanted) {
  return placed_cells(std::move(places), tests::covering_quantize_cells, wanted);
}

constexpr Placement kShapes[] = {{1, 1}, {1, 16}, {65, 96}, {993, 512}, {1024, 1}, {303, 300}};

TEST_F(QuantizeGpu, EveryCellEqualsTheReference) {
  for (const Placement& shape : kShapes) {
    for_each_cell(shape.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, shape, Fill::kNormal);
      compare(plan.get(), problem, shape, Fill::kMixed);
    });
  }
}

bool keeps_no_contents(const QuantizeProblem& p) { return !p.skip_unchanged; }

TEST_F(QuantizeGpu, MaximaOfTensorsEqualTheReference) {
  for (const Placement& shape :
       {Placement{1, 1}, Placement{65, 96}, Placement{303, 300}, Placement{993, 512},
        Placement{33, 257, 0, 0, 1}, Placement{4099, 7168}}) {
    for_each_of(tests::amax_cells(shape.cols), [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      for (const auto& [fill, name] : tests::kFills) compare(plan.get(), problem, shape, fill);
    });
  }
}

TEST_F(QuantizeGpu, EveryInputEqualsTheReference) {
  for (const Placement& shape : kShapes) {
    for_each_covering_cell(shape.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      for (const auto& [fill, name] : tests::kFills) compare(plan.get(), problem, shape, fill);
    });
  }
  for_each_of(placed_cells({{1, 136}, {16, 7168}, {130, 300}, {993, 512}}, tests::row_message_cells,
                           keeps_no_contents),
              [&](const PlacedCell& cell) {
                const Plan plan = make_plan(cell.problem);
                ASSERT_NE(plan, nullptr);
                for (const auto& [fill, name] : tests::kFills)
                  compare(plan.get(), cell.problem, cell.at, fill);
              });
}

// fp32 that is rounded to bf16 on the way, in every body and at every layout.
TEST_F(QuantizeGpu, Fp32ByWayOfBf16EqualsTheReference) {
  for_each_of(placed_cells({{1, 136}, {16, 7168}, {130, 300}, {993, 512}}, tests::via_cells,
                           keeps_no_contents),
              [&](const PlacedCell& cell) {
                const Plan plan = make_plan(cell.problem);
                ASSERT_NE(plan, nullptr);
                for (const Fill fill : {Fill::kNormal, Fill::kMixed, Fill::kInfinities}) {
                  compare(plan.get(), cell.problem, cell.at, fill);
                }
              });
}

TEST_F(QuantizeGpu, LargeShapesEqualTheReference) {
  for (const Placement& shape : {Placement{256, 65536}, Placement{1024, 7168}}) {
    for_each_covering_cell(shape.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, shape, Fill::kMixed);
    });
  }
}

TEST_F(QuantizeGpu, StridedAndMisalignedTensorsEqualTheReference) {
  for (const Placement& at : tests::kPlacements) {
    for_each_cell(at.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, at, Fill::kNormal);
      compare(plan.get(), problem, at, Fill::kMixed);
    });
  }
}

// Small shapes have narrow tiles; here they have those of large ones.
TEST_F(QuantizeGpu, WideTilesEqualTheReference) {
  for (const Placement& shape : {Placement{993, 512}, Placement{303, 300}}) {
    for_each_covering_cell(shape.cols, [&](const QuantizeProblem& problem) {
      if (!takes_half_width_tiles(problem)) return;
      compare_as(default_config(problem, kDynamic, gpu().device()), problem, shape, {Fill::kMixed});
    });
  }
}

// Tiles of fewer rows than a scale's block has, for tensors of fewer rows, as many and more.
TEST_F(QuantizeGpu, FewRowsEqualTheReference) {
  constexpr int kBlock = 128;  // rows and columns of a scale
  const auto compare_one = [&](const PlacedCell& cell) {
    const int lanes = kBlock / elements_per_vector(cell.problem);
    const int rows = std::array{16, 32, 64}.at(cell.turn % 3);
    const int vectors = std::array{4, 8, 2}.at(cell.turn / 3 % 3);
    const QuantizeConfig config{rows, kBlock, lanes * rows / vectors, 1};
    if (!check_config(cell.problem, config, *find_device("h200"))) return;
    compare_as(config, cell.problem, cell.at, {Fill::kNormal, Fill::kMixed, Fill::kInfinities});
  };
  for_each_of(placed_cells({{1, 136}, {33, 300}, {303, 256}, {1000, 128}}, takes_few_rows),
              compare_one);
}

// A tensor that a cluster holds, or holds in part, or whose vectors are not whole.
TEST_F(QuantizeGpu, WholeTensorsEqualTheReference) {
  const auto cells =
      placed_cells({{1, 136}, {1, 7168}, {16, 7168}, {33, 300}, {303, 1000}}, may_hold_tensor);
  EXPECT_GT(cells.size(), 20U);
  for_each_of(cells, [&](const PlacedCell& cell) {
    const QuantizeConfig config{.tile_rows = std::array{1, 2, 4}.at(cell.turn / 4 % 3),
                                .tile_cols = warp_columns(cell.problem),
                                .threads = 256,
                                .blocks_per_sm = 1,
                                .cluster = std::array{1, 2, 4, 8}.at(cell.turn % 4)};
    compare_as(config, cell.problem, cell.at, {Fill::kNormal, Fill::kMixed, Fill::kInfinities});
  });
}

// A tile's two copies by a thread block each, at tensors of fewer rows than a tile, as many and
// more.
TEST_F(QuantizeGpu, CopiesApartEqualTheReference) {
  const auto compare_one = [&](const PlacedCell& cell) {
    const std::int64_t rows = std::array{16, 64, 128, 1000}.at(cell.turn % 4);
    QuantizeConfig config = default_config(cell.problem, rows, gpu().device());
    config.orders_scales = false;
    config.copies_apart = true;
    compare_as(config, cell.problem, cell.at, {Fill::kNormal, Fill::kMixed, Fill::kInfinities});
  };
  for_each_of(placed_cells({{1, 136}, {33, 300}, {303, 256}, {1000, 128}}, may_write_copies_apart),
              compare_one);
}

// Scales that leave in each other's places and are put in order behind; those of tiles that lack
// neighbours, and of misaligned arrays, leave one by one.
TEST_F(QuantizeGpu, OrderedScalesEqualTheReference) {
  struct Case {
    QuantizeConfig config;
    QuantizeProblem problem;
    tests::OrderedPlacement at;
  };
  std::vector<Case> cases;
  QuantizeProblem problem;
  problem.q = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
  const auto add_all = [&](const QuantizeConfig& config) {
    for (const QuantizeOutput output : {QuantizeOutput::kTransposed, QuantizeOutput::kBoth}) {
      for (const tests::OrderedPlacement& o : {tests::OrderedPlacement{{128, 1024}, true, false},
                                               {{1024, 128}, false, true},
                                               {{1500, 1100, 0, 0, 0, 0, 12}, true, true},
                                               {{1500, 1100}, false, true},
                                               {{1100, 1100, 0, 0, 0, 0, 12}, true, false},
                                               {{260, 10300, 8, 8, 0, 0, 12}, true, false},
                                               {{9700, 200}, false, true},
                                               {{1100, 1100, 0, 0, 0, 0, 4}, false, false}}) {
        problem.output = output;
        problem.cols = o.at.cols;
        cases.push_back({config, problem, o});
      }
    }
  };
  add_all({128, 128, 256, 3, false, false, true});
  add_all({128, 128, 256, 3, true, false, true});
  problem.x = {DType::kFP32};
  add_all({128, 128, 512, 1, false, false, true});
  problem.x = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
  add_all({128, 128, 256, 3, false, false, true});
  for_each_of(cases, [&](const Case& c) {
    tests::expect_ordered(c.problem, c.at);
    compare_as(c.config, c.problem, c.at.at, {Fill::kNormal, Fill::kMixed});
  });
  problem.x = {DType::kBF16};
  problem.cols = 7168;
  problem.output = QuantizeOutput::kBoth;
  EXPECT_TRUE(default_config(problem, 4096, *find_device("h200")).orders_scales);
  compare_often(problem, {4096, 7168}, Fill::kMixed, 4);
}

// A thread block has the same columns of both halves, one after the other.
TEST_F(QuantizeGpu, HalvesWorkedTogetherEqualTheReference) {
  constexpr std::array kGranularities = {Granularity::kPerTensor, Granularity::kPerRow,
                                         Granularity::k1x128,     Granularity::k128x128,
                                         Granularity::k1x32,      Granularity::k32x32};
  gpu().for_each_on_cores(kGranularities.size() * 2, [&](std::size_t i) {
    const Granularity g = kGranularities[i / 2];
    QuantizeProblem problem;
    problem.q = {DType::kE4M3, g, default_scale_format(g)};
    problem.output = i % 2 == 0 ? QuantizeOutput::kTransposed : QuantizeOutput::kBoth;
    problem.source = "dsilu_mul";
    const auto compare_all = [&] {
      for (const Placement& at :
           {Placement{1, 256}, Placement{130, 512}, Placement{993, 768},
            Placement{300, 512, 8, 8, 0, 0, -1}, Placement{65, 512, 1, 0, 1, 0, 0}}) {
        problem.cols = at.cols;
        const QuantizeConfig config = default_config(problem, kDynamic, gpu().device());
        ASSERT_TRUE(config.halves_together);
        compare_as(config, problem, at, {Fill::kNormal, Fill::kMixed, Fill::kInfinities});
        if (HasFatalFailure()) return;
      }
    };
    compare_all();
    if (problem.output == QuantizeOutput::kBoth) {
      problem.tap = true;
      compare_all();
      problem.tap = false;
      problem.bias_gradient = true;
    } else {
      problem.x = {DType::kFP32};
      problem.source = "dgelu_tanh_mul";
    }
    compare_all();
  });
  QuantizeProblem problem;
  problem.q = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  problem.output = QuantizeOutput::kBoth;
  problem.source = "dsilu_mul";
  problem.cols = 7168;
  ASSERT_TRUE(default_config(problem, 2048, gpu().device()).halves_together);
  compare_often(problem, {2048, 7168}, Fill::kMixed, 4);
}

TEST_F(QuantizeGpu, EmptyTensorsTouchNothing) {
  for (const Placement& at : {Placement{0, 128}, Placement{128, 0}}) {
    for_each_cell(at.cols, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, at, Fill::kNormal);
    });
  }
}

TEST_F(QuantizeGpu, AnAmaxEpsilonIsHonoured) {
  for_each_covering_cell(264, [&](QuantizeProblem problem) {
    if (problem.operation != QuantizeOperation::kQuantize) return;  // they find no scales
    problem.amax_epsilon = 2.5F;  // above some blocks' amax, below others'
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    compare(plan.get(), problem, {130, 264}, Fill::kNormal);
    compare(plan.get(), problem, {130, 264}, Fill::kZeros);
  });
}

// More than 2^31 elements: one panel of 1024 rows repeated, so that each panel of the output is
// known from one panel's reference.
TEST_F(QuantizeGpu, MoreThanTwoToThe31Elements) {
  constexpr std::int64_t kPanelRows = 1024, kPanels = 293, kCols = 7168;
  constexpr std::int64_t kRows = kPanelRows * kPanels;
  static_assert(kRows * kCols > (std::int64_t{1} << 31));
  for (const Granularity granularity :
       {Granularity::k1x128, Granularity::k128x128, Granularity::kPerRow}) {
    QuantizeProblem problem;
    problem.q.granularity = granularity;
    QuantizeCase panel = tests::make_case(problem, {kPanelRows, kCols}, Fill::kMixed);
    problem.cols = kCols;
    SCOPED_TRACE(to_text(Problem(problem)));
    const Packed on{
        repeated(panel.x, kPanels), {}, allocate(kRows * kCols), allocate(kRows * kCols / 32)};
    if (!on.x.pointer() || !on.q.pointer() || !on.scale.pointer()) {
      GTEST_SKIP() << "the device has not the 6.5 GB this test takes";
    }
    compare_panels(problem, kRows, on, panel, {0, 146, kPanels - 1});
    if (HasFatalFailure()) return;
  }
}

// The transposed copy of more than 2^31 elements: 16384 columns, each a row of 131088 codes.
TEST_F(QuantizeGpu, MoreThanTwoToThe31ElementsTransposed) {
  constexpr std::int64_t kPanelCols = 128, kPanels = 128, kRows = 131088;
  constexpr std::int64_t kCols = kPanelCols * kPanels;
  static_assert(kRows * kCols > (std::int64_t{1} << 31));
  QuantizeProblem problem;
  problem.output = QuantizeOutput::kTransposed;
  QuantizeCase panel = tests::make_case(problem, {kRows, kPanelCols}, Fill::kNormal);
  problem.cols = kCols;
  const Packed on{side_by_side(panel.x, kRows, kPanels),
                  {},
                  allocate(kRows * kCols),
                  allocate(kRows * kCols / 32)};
  if (!on.x.pointer() || !on.q.pointer() || !on.scale.pointer()) {
    GTEST_SKIP() << "the device has not the 6.5 GB this test takes";
  }
  compare_panels(problem, kRows, on, panel, {0, 63, kPanels - 1});
}

// Every kernel, first passes included, leaves everything alone where the flag is set.
TEST_F(QuantizeGpu, ASetSkipFlagLeavesEverythingAlone) {
  const DeviceBuffer set = upload_value(std::uint32_t{1});
  for_each_covering_cell(300, [&](const QuantizeProblem& problem) {
    const Plan plan = make_plan(problem);
    ASSERT_NE(plan, nullptr);
    const QuantizeCase before = tests::make_case(problem, {130, 300}, Fill::kNormal);
    QuantizeCase after = before;
    OnDevice d = place(plan.get(), before);
    d.args.skip = static_cast<const std::uint32_t*>(set.pointer());
    run(plan.get(), d.args);
    if (HasFatalFailure()) return;
    SCOPED_TRACE(to_text(Problem(problem)));
    fetch(d, after);
    tests::expect_same_outputs(after, before);
  });
}

// Many tensors in one launch, several steps, every choice of amax, against the host.
TEST_F(QuantizeGpu, ScaleUpdatesEqualTheReference) {
  constexpr std::size_t kTensors = 10, kLength = 1030, kStates = 100;
  for (const DType fp8 : {DType::kE4M3, DType::kE5M2}) {
    for (const ScaleFormat format : {ScaleFormat::kF32, ScaleFormat::kF32Pow2}) {
      QuantizeProblem problem;
      problem.cols = 128;
      problem.q = {fp8, Granularity::kPerTensor, format};
      problem.policy = ScalePolicy::kDelayed;
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 1, OCTILE_PREPARE_DEFAULT), OCTILE_OK)
          << octile_last_error();
      for (const octile_amax_choice choice :
           {OCTILE_AMAX_LARGEST, OCTILE_AMAX_LATEST, OCTILE_AMAX_AVERAGE}) {
        std::vector<char> history =
            tests::make_input(DType::kFP32, kStates * kTensors * kLength, Fill::kMixed, 11);
        for (std::size_t i = 3; i < history.size(); i += 4) history[i] &= 0x7f;  // magnitudes
        std::vector<char> encode(kStates * kTensors * 4);
        std::fill_n(reinterpret_cast<float*>(encode.data()), kStates * kTensors, 1.0F);
        const DeviceBuffer on_history = upload(history), on_encode = upload(encode);
        octile_scale_update_args args{};
        args.struct_size = sizeof args;
        args.history = static_cast<float*>(on_history.pointer());
        args.encode_scale = static_cast<float*>(on_encode.pointer());
        args.tensors = kTensors;
        args.length = kLength;
        args.choice = choice;
        args.margin = 1;
        args.average_share = 0.3F;
        args.states = kStates;
        for (int step = 0; step < 3; ++step) {
          ASSERT_EQ(octile_scale_update_run(plan.get(), &args, nullptr), OCTILE_OK)
              << octile_last_error();
          for (std::size_t state = 0; state < kStates; ++state) {
            reference::update_scales(
                problem, {reinterpret_cast<float*>(history.data()) + state * kTensors * kLength,
                          reinterpret_cast<float*>(encode.data()) + state * kTensors, kTensors,
                          kLength, static_cast<reference::AmaxChoice>(choice), 1, 0.3F});
          }
        }
        std::vector<char> got_history(history.size()), got_encode(encode.size());
        download(on_history, got_history);
        download(on_encode, got_encode);
        EXPECT_TRUE(got_history == history) << choice;
        EXPECT_TRUE(got_encode == encode) << choice;
        ++comparisons_;
      }
    }
  }
}

// The same workspace rules run after run: nothing is read before it is written.
TEST_F(QuantizeGpu, TheFirstPassIsOrderedBeforeTheCast) {
  for (const Granularity granularity : {Granularity::kPerTensor, Granularity::kPerRow}) {
    QuantizeProblem problem;
    problem.q.granularity = granularity;
    problem.output = QuantizeOutput::kBoth;
    problem.cols = 4096;
    compare_often(problem, {2048, 4096}, Fill::kOutlier, 8);
  }
}

}  // namespace
}  // namespace octile
