// octile/pieces.h on a GPU, through the C API, bit for bit against quantising whole weights on the
// host: any cuts, empty ranges, misaligned memory, infinities and NaNs, buckets, captured steps,
// and tensors that end where mapped memory does.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "octile/pieces.h"
#include "runtime/driver/stream.h"
#include "tests/gpu/guarded_memory.h"
#include "tests/gpu/mirror.h"
#include "tests/gpu/session.h"
#include "tests/support/pieces_case.h"
#include "tests/support/quantize_cells.h"

namespace octile::tests {
namespace {

struct PiecesDelete {
  void operator()(octile_pieces* pieces) const {
    EXPECT_EQ(octile_pieces_destroy(pieces), OCTILE_OK) << octile_last_error();
  }
};
using PiecesHandle = std::unique_ptr<octile_pieces, PiecesDelete>;

constexpr std::array kSteps{OCTILE_PIECES_AMAX, OCTILE_PIECES_SCALES, OCTILE_PIECES_CAST,
                            OCTILE_PIECES_TRANSPOSE};

class PiecesGpu : public GpuTest {
 protected:
  PiecesHandle make(const QuantizeProblem& common, const std::vector<Piece>& pieces) {
    const octile_pieces_desc desc = public_desc(common);
    const std::vector<octile_piece> all = public_pieces(pieces);
    octile_pieces* made = nullptr;
    EXPECT_EQ(octile_pieces_create(gpu().library(), "cuda:0", &desc, all.data(),
                                   static_cast<int64_t>(all.size()), &made),
              OCTILE_OK)
        << octile_last_error();
    return PiecesHandle(made);
  }

  static Mirror mirror_of(PiecesCase& c) {
    Mirror mirror;
    for (std::size_t w = 0; w < c.weights.size(); ++w) {
      mirror.add(c.weights[w].x);
      mirror.add(c.weights[w].row);
      mirror.add(c.weights[w].transposed);
      mirror.add(c.maxima[w]);
    }
    return mirror;
  }

  static std::vector<Piece> on_device(std::vector<Piece> pieces, const Mirror& mirror) {
    for (Piece& p : pieces) {
      mirror.translate_bytes(p.x);
      mirror.translate_bytes(p.q);
      if (p.rows * p.cols > 0) mirror.translate(p.amax);
      mirror.translate_bytes(p.scale);
      mirror.translate_bytes(p.scale_transposed);
      mirror.translate_bytes(p.q_gathered);
      mirror.translate_bytes(p.q_transposed);
    }
    return pieces;
  }

  // Runs a step of all pieces of every rank, in one bucket or in two.
  void run(const std::vector<PiecesHandle>& ranks, octile_pieces_step step, int64_t count,
           int64_t half) {
    for (const PiecesHandle& rank : ranks) {
      ASSERT_NE(rank, nullptr);
      ASSERT_EQ(octile_pieces_run(rank.get(), step, 0, half, gpu().stream()), OCTILE_OK)
          << octile_last_error();
      ASSERT_EQ(octile_pieces_run(rank.get(), step, half, count - half, gpu().stream()), OCTILE_OK)
          << octile_last_error();
    }
  }

  template <typename Shapes>
  void compare(const QuantizeProblem& common, const Shapes& shapes, int ranks, Fill fill,
               std::int64_t shift) {
    SCOPED_TRACE(fmt::format("{}, {} ranks, {}, shift {}", to_text(Problem(common)), ranks,
                             name_of(fill), shift));
    PiecesCase c = make_pieces_case(common, shapes, ranks, fill, shift);
    const Mirror mirror = mirror_of(c);
    std::vector<PiecesHandle> of_ranks;
    for (int rank = 0; rank < ranks; ++rank)
      of_ranks.push_back(make(common, on_device(c.pieces_of(rank), mirror)));
    const auto count = static_cast<int64_t>(std::size(shapes));
    for (const octile_pieces_step step : kSteps) {
      run(of_ranks, step, count, ranks % 2 == 0 ? count / 2 : 0);
      if (HasFatalFailure()) return;
    }
    mirror.fetch();
    c.expect_whole_bits();
  }
};

TEST_F(PiecesGpu, AnyCutsHaveTheBitsOfTheWholeWeights) {
  std::size_t cases = 0;
  for (const QuantizeProblem& common : pieces_commons()) {
    for (const int ranks : {1, 2, 3, 8}) {
      for (const Fill fill : {Fill::kNormal, Fill::kMixed, Fill::kZeros}) {
        for (const std::int64_t shift : {0, 1}) {
          compare(common, kWeightShapes, ranks, fill, shift);
          if (HasFailure()) return;
          ++cases;
        }
      }
    }
  }
  count_cases(cases, 0);
}

TEST_F(PiecesGpu, LargeWeightsHaveTheBitsOfTheWhole) {
  constexpr WeightShape kLarge[] = {{4096, 1024}, {1000, 4096}, {1024, 4104}, {2, 65536}};
  for (const QuantizeProblem& common : pieces_commons()) {
    compare(common, kLarge, 8, Fill::kMixed, 0);
    if (HasFailure()) return;
  }
}

// More pieces than a warp finds in one load.
TEST_F(PiecesGpu, ManyPiecesHaveTheBitsOfTheWhole) {
  std::vector<WeightShape> shapes;
  for (int i = 0; i < 1100; ++i) shapes.push_back({i % 7, 8 + i % 40});
  compare(pieces_commons()[0], shapes, 2, Fill::kNormal, 0);
}

// A graph of all steps, replayed: every replay has the bits of the first.
TEST_F(PiecesGpu, StepsAreCaptured) {
  const QuantizeProblem common = pieces_commons()[0];
  PiecesCase c = make_pieces_case(common, kWeightShapes, 1, Fill::kMixed, 0);
  const Mirror mirror = mirror_of(c);
  std::vector<PiecesHandle> ranks;
  ranks.push_back(make(common, on_device(c.pieces_of(0), mirror)));
  const auto graph = Graph::capture(gpu().driver(), gpu().stream(), [&]() -> Status {
    for (const octile_pieces_step step : kSteps) run(ranks, step, std::size(kWeightShapes), 3);
    return {};
  });
  ASSERT_TRUE(graph.has_value()) << graph.error().message;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(graph->launch(gpu().stream()));
  mirror.fetch();
  c.expect_whole_bits();
}

// Every array of a piece begins or ends where mapped memory does.
TEST_F(PiecesGpu, NothingOutsideOfThePiecesIsTouched) {
  constexpr std::array kShapes{WeightShape{130, 264}, WeightShape{257, 99}};
  std::array<std::unique_ptr<GuardedMemory>, 7> memory;
  for (auto& one : memory) {
    std::string why;
    one = GuardedMemory::allocate(std::size_t{1} << 20, why);
    ASSERT_NE(one, nullptr) << why;
  }
  for (const QuantizeProblem& common : pieces_commons()) {
    for (const WeightShape& shape : kShapes) {
      for (const GuardedEnd end : {GuardedEnd::kFirst, GuardedEnd::kLast}) {
        SCOPED_TRACE(to_text(Problem(common)));
        PiecesCase c = make_pieces_case(common, std::array{shape}, 1, Fill::kNormal, 0);
        const QuantizeCase& w = c.weights[0];
        const std::int64_t start = 37, length = shape.rows * shape.cols - 37 - 55;
        const auto place = [&](std::size_t i, std::size_t bytes, const void* from) {
          const CUdeviceptr to = memory.at(i)->at(end, bytes);
          EXPECT_EQ((*gpu().driver())->cuMemsetD8Async(to, 0, bytes, gpu().stream()), CUDA_SUCCESS);
          if (from != nullptr) {
            EXPECT_EQ((*gpu().driver())->cuMemcpyHtoDAsync(to, from, bytes, gpu().stream()),
                      CUDA_SUCCESS);
          }
          return reinterpret_cast<char*>(to);
        };
        const auto payload = [](const std::vector<char>& v) {
          return v.size() - 2 * QuantizeCase::kGuard;
        };
        const auto element = static_cast<std::size_t>(size_of(common.x.dtype));
        Piece piece{shape.rows, shape.cols, start, length};
        piece.x = place(0, static_cast<std::size_t>(length) * element,
                        w.x.data() + static_cast<std::size_t>(start) * element);
        piece.q = place(1, static_cast<std::size_t>(length), nullptr);
        piece.amax = reinterpret_cast<float*>(place(2, c.maxima[0].size() * 4, nullptr));
        piece.scale = place(3, payload(w.row.scale), nullptr);
        piece.scale_transposed = place(4, payload(w.transposed.scale), nullptr);
        piece.q_gathered = place(5, payload(w.row.q), w.row.q.data() + QuantizeCase::kGuard);
        piece.q_transposed = place(6, payload(w.transposed.q), nullptr);
        std::vector<PiecesHandle> ranks;
        ranks.push_back(make(common, {piece}));
        for (const octile_pieces_step step : kSteps) run(ranks, step, 1, 1);
        gpu().synchronize();
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace octile::tests
