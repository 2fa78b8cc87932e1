// Checks octile/pieces.h on the host: however weights are cut, the steps give the bits of the whole
// weights.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "octile/pieces.h"
#include "tests/support/api_handles.h"
#include "tests/support/pieces_case.h"
#include "tests/support/quantize_cells.h"

namespace octile {
namespace {

using test::LibraryHandle;
using test::TempFolder;
using tests::Fill;
using tests::PiecesCase;

struct PiecesDelete {
  void operator()(octile_pieces* pieces) const {
    EXPECT_EQ(octile_pieces_destroy(pieces), OCTILE_OK) << octile_last_error();
  }
};
using PiecesHandle = std::unique_ptr<octile_pieces, PiecesDelete>;

constexpr octile_pieces_step kSteps[] = {OCTILE_PIECES_AMAX, OCTILE_PIECES_SCALES,
                                         OCTILE_PIECES_CAST, OCTILE_PIECES_TRANSPOSE};

PiecesHandle make(const LibraryHandle& library, const QuantizeProblem& common,
                  const std::vector<octile_piece>& pieces, const char* device = "host") {
  const octile_pieces_desc desc = tests::public_desc(common);
  octile_pieces* made = nullptr;
  EXPECT_EQ(octile_pieces_create(library.get(), device, &desc, pieces.data(),
                                 static_cast<int64_t>(pieces.size()), &made),
            OCTILE_OK)
      << octile_last_error();
  return PiecesHandle(made);
}

TEST(Pieces, AnyCutsHaveTheBitsOfTheWholeWeights) {
  const TempFolder folder;
  const LibraryHandle library(folder.path());
  for (const QuantizeProblem& common : tests::pieces_commons()) {
    for (const int ranks : {1, 3, 8}) {
      SCOPED_TRACE(to_text(Problem(common)) + fmt::format(", {} ranks", ranks));
      PiecesCase c = tests::make_pieces_case(common, tests::kWeightShapes, ranks, Fill::kMixed,
                                             ranks == 3 ? 1 : 0);
      std::vector<PiecesHandle> of_ranks;
      for (int rank = 0; rank < ranks; ++rank)
        of_ranks.push_back(make(library, common, tests::public_pieces(c.pieces_of(rank))));
      for (const octile_pieces_step step : kSteps) {
        for (const PiecesHandle& rank : of_ranks) {
          ASSERT_NE(rank, nullptr);
          ASSERT_EQ(
              octile_pieces_run(rank.get(), step, 0, std::size(tests::kWeightShapes), nullptr),
              OCTILE_OK)
              << octile_last_error();
        }
      }
      c.expect_whole_bits();
      if (HasFailure()) return;
    }
  }
}

// A bucket of pieces has the step, and no other piece.
TEST(Pieces, OnlyTheChosenPiecesAreTouched) {
  const TempFolder folder;
  const LibraryHandle library(folder.path());
  const QuantizeProblem common = tests::pieces_commons()[0];
  PiecesCase c = tests::make_pieces_case(common, tests::kWeightShapes, 1, Fill::kNormal, 0);
  const PiecesCase untouched = c;
  const PiecesHandle pieces = make(library, common, tests::public_pieces(c.pieces_of(0)));
  constexpr std::size_t kFirst = 3, kCount = 2;
  for (const octile_pieces_step step : kSteps) {
    ASSERT_EQ(octile_pieces_run(pieces.get(), step, kFirst, kCount, nullptr), OCTILE_OK);
    ASSERT_EQ(octile_pieces_run(pieces.get(), step, kFirst, 0, nullptr), OCTILE_OK);
  }
  for (std::size_t w = 0; w < c.weights.size(); ++w) {
    const bool chosen = w >= kFirst && w < kFirst + kCount;
    EXPECT_EQ(tests::same_outputs(c.weights[w], untouched.weights[w]), !chosen) << w;
    EXPECT_EQ(c.maxima[w] == untouched.maxima[w], !chosen) << w;
  }
}

// Without a transposed copy the other steps work, and other pieces are transposed.
TEST(Pieces, ATransposedCopyIsAPiecesOwnChoice) {
  const TempFolder folder;
  const LibraryHandle library(folder.path());
  const QuantizeProblem common = tests::pieces_commons()[0];
  PiecesCase c = tests::make_pieces_case(common, tests::kWeightShapes, 1, Fill::kNormal, 0);
  const tests::QuantizeCase untouched = c.weights[1];
  std::vector<octile_piece> pieces = tests::public_pieces(c.pieces_of(0));
  pieces[1].q_gathered = pieces[1].q_transposed = pieces[1].scale_transposed = nullptr;
  const PiecesHandle made = make(library, common, pieces);
  for (const octile_pieces_step step :
       {OCTILE_PIECES_AMAX, OCTILE_PIECES_SCALES, OCTILE_PIECES_CAST}) {
    ASSERT_EQ(octile_pieces_run(made.get(), step, 0, 2, nullptr), OCTILE_OK);
  }
  EXPECT_EQ(c.weights[1].transposed.scale, untouched.transposed.scale);
  EXPECT_NE(c.weights[1].row.scale, untouched.row.scale);
  EXPECT_EQ(octile_pieces_run(made.get(), OCTILE_PIECES_TRANSPOSE, 0, 1, nullptr), OCTILE_OK);
}

// Kernels of a named device are compiled; nothing runs.
TEST(Pieces, ANamedDeviceRunsNothing) {
  const TempFolder folder;
  const LibraryHandle library(folder.path(), true);
  const QuantizeProblem common = tests::pieces_commons()[0];
  PiecesCase c = tests::make_pieces_case(common, tests::kWeightShapes, 1, Fill::kNormal, 0);
  const octile_pieces_desc desc = tests::public_desc(common);
  const std::vector<octile_piece> pieces = tests::public_pieces(c.pieces_of(0));
  octile_pieces* made = nullptr;
  test::expect_refused(octile_pieces_create(library.get(), "h200", &desc, pieces.data(), 1, &made),
                       OCTILE_OFFLINE, {"offline"});
}

// ---- the maximum of a whole tensor, whose kernel is that of the first step

test::PlanHandle plan_of_amax(const LibraryHandle& library, octile_dtype x, std::int64_t cols) {
  octile_quantize_desc desc{};
  desc.struct_size = sizeof desc;
  desc.operation = OCTILE_AMAX;
  desc.cols = cols;
  desc.x_dtype = x;
  desc.q_dtype = OCTILE_E4M3;
  desc.granularity = OCTILE_SCALE_PER_TENSOR;
  octile_plan* plan = nullptr;
  EXPECT_EQ(octile_quantize_plan_create(library.get(), "host", &desc, &plan), OCTILE_OK)
      << octile_last_error();
  return test::PlanHandle(plan);
}

TEST(Amax, IsTheLargestFiniteMagnitudeOfAllCalls) {
  const TempFolder folder;
  const LibraryHandle library(folder.path());
  const test::PlanHandle plan = plan_of_amax(library, OCTILE_FP32, 3);
  std::vector<float> x{1, -3, 2.5F, NAN, -INFINITY, -0.0F};
  float amax = 0;
  std::uint64_t nonfinite = 5;
  QuantizeArguments args;
  args.rows = 2;
  args.x = x.data();
  args.monitor.amax = &amax;
  args.monitor.nonfinite = &nonfinite;
  ASSERT_EQ(tests::run_quantize(plan.get(), args), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(amax, 3.0F);
  EXPECT_EQ(nonfinite, 7U);
  x = {1, 2, -2.5F, 0, 0, 0};  // a smaller maximum leaves what is there
  ASSERT_EQ(tests::run_quantize(plan.get(), args), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(amax, 3.0F);
  x[5] = -448;
  ASSERT_EQ(tests::run_quantize(plan.get(), args), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(amax, 448.0F);
  args = {};  // there is nothing to do, and pointers are ignored
  EXPECT_EQ(tests::run_quantize(plan.get(), args), OCTILE_OK) << octile_last_error();
}

// One scale for a tensor that lies on two ranks is that of the maximum which both calls raise.
TEST(Amax, IsWhatQuantisingRecords) {
  for (const QuantizeProblem& problem : tests::amax_cells(257)) {
    tests::QuantizeCase c = tests::make_case(problem, {33, 257}, Fill::kMixed);
    QuantizeProblem quantises = problem;
    quantises.operation = QuantizeOperation::kQuantize;
    tests::QuantizeCase whole = tests::make_case(quantises, {33, 257}, Fill::kMixed);
    ASSERT_EQ(c.x, whole.x);
    ASSERT_TRUE(c.run_reference(2));
    ASSERT_TRUE(whole.run_reference(2));
    EXPECT_EQ(c.amax, whole.amax) << to_text(Problem(problem));
    EXPECT_EQ(c.nonfinite, whole.nonfinite);
    EXPECT_GT(c.amax, 0.25F);
  }
}

TEST(PieceTable, EmptyPiecesHaveNoBlocks) {
  const DeviceSpec& h200 = *find_device("h200");
  QuantizeProblem common;
  common.x = {DType::kFP32};
  common.q = {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32};
  std::vector<Piece> pieces(4);
  pieces[1] = {256, 4096, 4096 * 3 + 5, 4096 * 8};  // rows 3 to 11: tiles of 8 rows from 0 on
  pieces[2] = {256, 4096, 77, 0};
  pieces[3] = {1, 128, 0, 128};
  const auto blocks = [&](PiecesStep step) {
    const QuantizeProblem problem = problem_of(common, step);
    return first_blocks(common, step, default_config(problem, 1, h200), pieces).value();
  };
  // 4 warps a block, each of 8 rows and 128 columns.
  EXPECT_EQ(blocks(PiecesStep::kCast), (std::vector<std::uint32_t>{0, 0, 16, 16, 17}));
  EXPECT_EQ(blocks(PiecesStep::kScales), (std::vector<std::uint32_t>{0, 0, 1, 2, 3}));
  EXPECT_EQ(blocks(PiecesStep::kTranspose), (std::vector<std::uint32_t>{0, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace octile
