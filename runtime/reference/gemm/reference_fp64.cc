// The FP64 oracle of the GEMM.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "runtime/reference/cast.h"
#include "runtime/reference/gemm/joined_panels.h"
#include "runtime/reference/gemm/reference_groups.h"
#include "runtime/reference/gemm/reference_kernels.h"
#include "runtime/reference/gemm/reference_tiles.h"
#include "runtime/reference/parallel.h"

namespace octile::reference {
namespace {

// Tiles are half as large in each direction, because FP64 values are larger and each element has
// two sums.
constexpr std::int64_t kFp64Rows = kTileRows / 2;
constexpr std::int64_t kFp64Cols = kTileCols / 2;
struct Fp64Workspace {
  alignas(64) double a[kFp64Rows * kChunk];
  alignas(64) double b[kFp64Cols * kChunk];
  alignas(64) double partial[kStripPair];
  alignas(64) double magnitudes[kStripPair];
  alignas(64) double scale_a[kFp64Rows];
  alignas(64) double scale_b[kFp64Cols];
};

// Computes R and S of one tile and writes them at the tile's place in the window.
void compute_fp64(const GemmProblem& problem, const GemmCall& args, const Operands& operands,
                  const Fp64Window& window, const Tile& tile, Fp64Workspace& work, double* r,
                  double* s) {
  const double initial = problem.accumulate ? static_cast<double>(args.initial_d) : 0.0;
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const std::int64_t at = (tile.row0 - window.row0 + i) * window.cols + tile.col0 - window.col0;
    std::fill_n(s + at, tile.cols, 0.0);
    std::fill_n(r + at, tile.cols, initial);
    if (!problem.bias) continue;
    for (std::int64_t j = 0; j < tile.cols; ++j) {
      r[at + j] += static_cast<double>(load_as_float(args.bias, *problem.bias, tile.col0 + j));
    }
  }
  const std::int64_t chunk = is_mx(problem.a) ? 32 : kChunk;
  for (std::int64_t k0 = 0; k0 < operands.k; k0 += chunk) {
    const std::int64_t count = std::min(chunk, operands.k - k0);
    operands.a.decode<kStripRows>(tile.row0, tile.rows, k0, count, work.a);
    operands.b.decode<kStripCols>(tile.col0, tile.cols, k0, count, work.b);
    operands.a.load_scales(tile.row0, tile.rows, k0, work.scale_a);
    operands.b.load_scales(tile.col0, tile.cols, k0, work.scale_b);
    for (std::int64_t col = 0; col < tile.cols; col += kStripCols) {
      for (std::int64_t row = 0; row < tile.rows; row += kStripRows) {
        std::fill_n(work.partial, kStripPair, 0.0);
        std::fill_n(work.magnitudes, kStripPair, 0.0);
        multiply_strips_fp64(work.a + row * count, work.b + col * count, count, work.partial,
                             work.magnitudes);
        for (std::int64_t i = 0; i < std::min(kStripRows, tile.rows - row); ++i) {
          for (std::int64_t j = 0; j < std::min(kStripCols, tile.cols - col); ++j) {
            const double scale = work.scale_a[row + i] * work.scale_b[col + j];
            const std::int64_t to = (tile.row0 - window.row0 + row + i) * window.cols + tile.col0 -
                                    window.col0 + col + j;
            r[to] += work.partial[i * kStripCols + j] * scale;
            s[to] += work.magnitudes[i * kStripCols + j] * std::fabs(scale);
          }
        }
      }
    }
  }
}

// The rows of the window in each GEMM.
Status several_fp64(const GemmProblem& problem, const GemmCall& args, const Fp64Window& window,
                    double* r, double* s, int threads) {
  std::fill_n(r, window.rows * window.cols, 0.0);
  std::fill_n(s, window.rows * window.cols, 0.0);
  Status ok;
  for_each_gemm(problem, args, [&](const GemmPart& part) {
    const std::int64_t first = std::max(window.row0, part.row0);
    const std::int64_t end = std::min(window.row0 + window.rows, part.row0 + part.args.shape.m);
    if (!ok || first >= end) return;
    const std::int64_t at = (first - window.row0) * window.cols;
    ok = gemm_fp64(part.problem, part.args,
                   {first - part.row0, end - first, window.col0, window.cols}, r + at, s + at,
                   threads);
  });
  return ok;
}

}  // namespace

Status gemm_fp64(const GemmProblem& problem, const GemmCall& args, const Fp64Window& window,
                 double* r, double* s, int threads) {
  if (problem.sums_batch) {
    const JoinedPanels joined(problem, args);
    return gemm_fp64(joined.problem(), joined.args(), window, r, s, threads);
  }
  if (has_several_gemms(problem)) return several_fp64(problem, args, window, r, s, threads);
  if (Status ok = check_operand_types(problem); !ok) return ok;
  const Operands operands = operands_of(problem, args);
  if (window.row0 < 0 || window.rows < 0 || window.row0 > args.shape.m - window.rows ||
      window.col0 < 0 || window.cols < 0 || window.col0 > problem.n - window.cols) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the window is rows [{}, +{}) x columns [{}, +{}); it must lie in the "
                    "{} x {} product",
                    window.row0, window.rows, window.col0, window.cols, args.shape.m, problem.n));
  }
  const Tiling tiles(window, kFp64Rows, kFp64Cols);
  try {
    const Workspaces<Fp64Workspace> works(thread_count(tiles.count(), 1, threads));
    parallel_for(tiles.count(), 1, works.threads(),
                 [&](std::int64_t begin, std::int64_t end, int thread) {
                   for (std::int64_t i = begin; i < end; ++i)
                     compute_fp64(problem, args, operands, window, tiles[i], works[thread], r, s);
                 });
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
  return {};
}

}  // namespace octile::reference
