#include "generator/gemm/cost_shape.h"

#include <algorithm>
#include <cmath>

namespace octile::gemm_cost {
namespace {

// Share of the last round's time that tail tiles save. The SMs that would idle in that round
// leave their power to the others, so that not all of it is gained. The rest counts as another
// tile's start and end. Fifteen GEMMs of 1500 to 12000 rows in rounds of 192x128 gained up to 8.5
// %, most with long K and few rounds; with K = 512 they lost 2.8 %.
constexpr double kTailGain = 0.6;

// Returns the tiles of `rows` rows that a group needs on average, if any size from half of the mean
// to three halves of it is as likely: the sum of the chances that it has a first tile, a second,
// ...
double mean_tiles(std::int64_t mean, std::int64_t rows) {
  const double most = 1.5 * static_cast<double>(mean), range = static_cast<double>(mean);
  double tiles = 0;
  for (std::int64_t before = 0; static_cast<double>(before) < most; before += rows) {
    tiles += std::min(1.0, (most - static_cast<double>(before)) / range);
  }
  return tiles;
}

// Each group, or GEMM of a batch, has whole tiles. Contiguous groups of rows are taken to vary in
// size by as much as a tile has rows, so that the last tile of a group is half empty in the mean.
// Masked groups are taken to have between half and three halves of the rows that are expected, and
// groups of K to be equally large (but see mean_late()).
Shape tiled_shape_of_groups(const GemmConfig& c, const GemmProblem& p, std::int64_t tokens) {
  const std::int64_t rows = std::int64_t{c.block_m} * c.cluster_m;
  if (groups_k(p)) {
    return {p.groups * round_up(p.m, rows), p.n, ceil_div(tokens, p.groups)};
  }
  if (p.sums_batch) return {p.m, p.n, p.batch * tokens};
  if (is_batched(p)) return {whole_gemms(p) * round_up(tokens, rows), p.n, p.k};
  if (p.grouping == Grouping::kMasked) {
    const double tiles = static_cast<double>(p.groups) * mean_tiles(tokens, rows);
    return {std::llround(tiles) * rows, p.n, p.k};
  }
  const std::int64_t filled = std::min(tokens, p.groups);  // groups that have a row
  if (filled == 1) return {round_up(tokens, rows), p.n, p.k};
  const std::int64_t tiles = (tokens + filled * rows / 2) / rows;
  return {std::max(filled, tiles) * rows, p.n, p.k};
}

double area(std::int64_t rows, std::int64_t cols) {
  return static_cast<double>(rows) * static_cast<double>(cols);
}

}  // namespace

Shape tiled_shape(const GemmConfig& c, const GemmProblem& p, std::int64_t tokens) {
  return has_several_gemms(p) ? tiled_shape_of_groups(c, p, tokens)
                              : Shape{m_at(p, tokens), p.n, k_at(p, tokens)};
}

Tiling tiling(const GemmConfig& c, const Shape& s, const DeviceSpec& d) {
  const std::int64_t slots = resident_clusters(c, d.sm_count);
  const auto shares = [&](int tail_n) {
    return share_tiles(s.m, s.n, std::int64_t{c.block_m} * c.cluster_m,
                       std::int64_t{c.block_n} * c.cluster_n, tail_n, slots);
  };
  const TileShares whole = shares(0);
  const std::int64_t tiles = whole.tiles();
  const int size = cluster_size(c);
  const double gain = c.tail_n > 0 ? whole.rounds - shares(c.tail_n).rounds : 0;
  const std::int64_t unsplit = slots * c.splits;
  const double filled =
      tiles <= unsplit ? 1
                       : static_cast<double>(tiles) / static_cast<double>(round_up(tiles, unsplit));
  return {whole.rounds - kTailGain * gain, filled, static_cast<double>(tiles * size),
          static_cast<double>(std::min(tiles, slots) * size)};
}

double ctas_on_sm(const Tiling& t, const DeviceSpec& d) {
  return std::max(1.0, std::ceil(t.ctas_at_once / d.sm_count));
}

Elements elements_of(const GemmProblem& p, std::int64_t tokens) {
  if (groups_k(p)) return {area(p.m + p.n, tokens), static_cast<double>(p.groups) * area(p.m, p.n)};
  const std::int64_t gemms = whole_gemms(p);
  const std::int64_t rows = gemms * m_at(p, tokens);
  const std::int64_t weights =
      p.grouping == Grouping::kContiguous ? std::min(tokens, p.groups) : gemms;
  const std::int64_t written = whole_results(p) * m_at(p, tokens);
  return {area(rows + weights * p.n, k_at(p, tokens)), area(written, p.n)};
}

double k_blocks_of(const GemmConfig& c, const Shape& s) {
  return static_cast<double>(ceil_div(ceil_div(s.k, 128), c.splits));
}

}  // namespace octile::gemm_cost
