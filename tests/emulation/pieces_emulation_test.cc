// Runs the emitted kernels of pieces on the host, thread by thread: however weights are cut and
// pieces are chosen, the steps give the bits of quantising the whole weights. The kernels of whole
// tensors' maxima, which are those of the first step, find what the reference finds.
#include <gtest/gtest.h>

#include <vector>

#include "generator/quantize/grid.h"
#include "generator/quantize/pieces.h"
#include "tests/emulation/emulation_test.h"
#include "tests/support/pieces_case.h"
#include "tests/support/quantize_cells.h"

namespace octile {
namespace {

using emulation::bytes;
using emulation::Variant;
using emulation::Watched;
using tests::Fill;
using tests::PiecesCase;
using tests::QuantizeCase;

class PiecesEmulation : public emulation::EmulationTest {};

const Variant& variant_of(const std::vector<Variant>& all, const QuantizeProblem& problem) {
  for (const Variant& v : all) {
    if (v.problem == problem) return v;
  }
  ADD_FAILURE() << "no kernel of '" << to_text(Problem(problem)) << "' was emitted";
  return all.front();
}

// Watches what a step of a rank may touch.
void watch(PiecesCase& c, const std::vector<Piece>& pieces, PiecesStep step) {
  emulation::readable.clear();
  emulation::writable.clear();
  const bool casts = step == PiecesStep::kCast;
  for (std::size_t w = 0; w < pieces.size(); ++w) {
    const Piece& p = pieces[w];
    QuantizeCase& whole = c.weights[w];
    const auto size = [](const std::vector<char>& v) {
      return std::max<std::int64_t>(0, std::ssize(v) - 2 * QuantizeCase::kGuard);
    };
    const Watched scales = bytes(p.scale, size(whole.row.scale));
    const Watched transposed = bytes(p.scale_transposed, size(whole.transposed.scale));
    const auto read = [](const Watched& watched) { emulation::readable.push_back(watched); };
    const auto write = [](const Watched& watched) { emulation::writable.push_back(watched); };
    if (step != PiecesStep::kTranspose) read(bytes(p.amax, std::ssize(c.maxima[w]) * 4));
    if (casts || step == PiecesStep::kAmax) read(bytes(p.x, p.length * size_of(c.common.x.dtype)));
    if (casts) write(bytes(p.q, p.length));
    if (step == PiecesStep::kScales) {
      write(scales);
      write(transposed);
    }
    if (step != PiecesStep::kTranspose) continue;
    read(bytes(p.q_gathered, p.rows * p.cols));
    read(scales);
    write(bytes(p.q_transposed, p.cols * round_up(p.rows, 16)));
    write(transposed);
  }
}

// Launches as runtime/pieces does.
void run(const Variant& v, PiecesCase& c, PiecesStep step, const std::vector<Piece>& pieces,
         std::size_t first, std::size_t count) {
  std::vector<PieceTableRow> rows;
  for (const Piece& piece : pieces) rows.push_back(table_row(c.common, step, piece));
  const auto blocks = first_blocks(c.common, step, v.config, pieces).value();
  watch(c, pieces, step);
  emulation::readable.push_back(bytes(rows.data(), std::ssize(rows) * 128));
  emulation::readable.push_back(bytes(blocks.data(), std::ssize(blocks) * 4));
  PiecesKernelArgs args;
  args.pieces = rows.data() + first;
  args.first_blocks = blocks.data() + first;
  args.count = static_cast<std::int64_t>(count);
  args.first_block = blocks[first];
  const auto device_args = std::bit_cast<quantize::PiecesArgs>(args);
  const std::uint32_t all = blocks[first + count] - blocks[first];
  for (std::uint32_t b = 0; b < all; ++b) {
    emulation::run_block(b, v.config.threads, [&] { v.kernels.pieces(device_args); }, all);
  }
  emulation::expect_no_stray_access();
}

TEST_F(PiecesEmulation, AnyCutsHaveTheBitsOfTheWholeWeights) {
  const auto all = emulation::variants_of(
      [](const QuantizeProblem& p) { return p.pieces != PiecesStep::kNone; });
  for (const QuantizeProblem& common : tests::pieces_commons()) {
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(to_text(Problem(common)) + fmt::format(", {} ranks", ranks));
      PiecesCase c =
          tests::make_pieces_case(common, tests::kWeightShapes, ranks, Fill::kMixed, ranks / 3);
      for (const PiecesStep step : tests::kPiecesStepOrder) {
        const Variant& v = variant_of(all, problem_of(common, step));
        for (int rank = 0; rank < ranks; ++rank) {
          const std::vector<Piece> pieces = c.pieces_of(rank);
          const std::size_t half = ranks == 1 ? 3 : 0;  // in two buckets, or in one
          if (half > 0) run(v, c, step, pieces, 0, half);
          run(v, c, step, pieces, half, pieces.size() - half);
          if (HasFailure()) return;
        }
      }
      c.expect_whole_bits();
      if (HasFailure()) return;
    }
  }
}

TEST_F(PiecesEmulation, MaximaOfWholeTensorsAreTheReferences) {
  int compared = 0;
  for (const Variant& v : emulation::variants_of(
           [](const QuantizeProblem& p) { return p.operation == QuantizeOperation::kAmax; })) {
    for (const auto& [rows, cols, shift] :
         {std::array{1, 1, 0}, {130, 264, 0}, {33, 257, 1}, {9, 1040, 0}, {300, 3, 1}}) {
      for (const auto& [fill, fill_name] : tests::kFills) {
        SCOPED_TRACE(v.name() + fmt::format(": {} x {}, {}", rows, cols, fill_name));
        QuantizeCase actual =
            tests::make_case(v.problem, {.rows = rows, .cols = cols, .shift_x = shift}, fill);
        QuantizeCase expected = actual;
        QuantizeKernelArgs args;
        args.x = actual.x.data() + actual.x_offset;
        args.rows = rows;
        args.cols = cols;
        args.ldx = cols;
        args.nonfinite = reinterpret_cast<unsigned long long*>(&actual.nonfinite);
        args.range_last_row = rows - 1;
        args.range_end_col = cols;
        args.range_amax = reinterpret_cast<std::uint32_t*>(&actual.amax);
        emulation::readable = {
            bytes(args.x, std::int64_t{rows} * cols * size_of(v.problem.x.dtype)),
            bytes(&actual.amax, sizeof actual.amax)};
        emulation::writable = {};
        const auto blocks = launch_blocks(actual.problem, v.config, rows);
        ASSERT_TRUE(blocks.has_value()) << blocks.error().message;
        emulation::run_blocks(*blocks, v.config.threads, v.kernels.kernel, args);
        emulation::expect_no_stray_access();
        ASSERT_TRUE(expected.run_reference(1));
        EXPECT_EQ(actual.amax, expected.amax);
        EXPECT_EQ(actual.nonfinite, expected.nonfinite);
        ++compared;
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GE(compared, 4 * 5 * 4);
}

// Every block finds its piece among any number of pieces, with empty ones between them.
TEST_F(PiecesEmulation, BlocksFindTheirPieces) {
  for (const std::uint32_t count : {1U, 2U, 31U, 32U, 33U, 1000U, 1025U, 33000U}) {
    std::vector<std::uint32_t> first{0};
    for (std::uint32_t i = 0; i < count; ++i) first.push_back(first.back() + (i * 7 + 1) % 3);
    emulation::readable = {bytes(first.data(), std::ssize(first) * 4)};
    quantize::PiecesArgs args{};
    args.first_blocks = first.data();
    args.count = count;
    const std::uint32_t step = count > 2000 ? 997 : 1;
    for (std::uint32_t block = 0; block < first.back(); block += step) {
      std::uint32_t found = 0;
      emulation::run_block(0, 32, [&] {
        const std::uint32_t piece = quantize::piece_of(args, block);
        if (threadIdx.x == 31) found = piece;
      });
      ASSERT_LE(first[found], block) << count;
      ASSERT_GT(first[found + 1], block) << count;
    }
  }
  emulation::expect_no_stray_access();
}

}  // namespace
}  // namespace octile
