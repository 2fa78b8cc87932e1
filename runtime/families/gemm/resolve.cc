#include "runtime/families/gemm/resolve.h"

#include <algorithm>

#include "generator/core/types.h"

namespace octile {
namespace {

// Returns how many stages of weights are requested before the preceding kernel has ended. Early
// requests delay those made after them, here A's, whose stages then all come at once. So there are
// none if a tile reads twice as much of A as of B, or if a cluster shares B. There are none either
// if the kernel lets no successor start early, because then one like it does not precede it.
// Otherwise there are as many as measured fastest (docs/experiments/gemm.md, v31).
int early_stages(const GemmConfig& config, int stage_bytes) {
  if (!config.pdl_early || config.cluster_m > 1) return 0;
  if (config.block_m < 64) return config.stages;
  if (config.block_n <= 32) return 0;
  const int bytes = (config.block_m == 64 ? 80 : 32) * 1024;
  return std::min(config.stages, static_cast<int>(ceil_div(bytes, stage_bytes)));
}

// Returns the most tiles that groups can have: as many as their rows fill, and one more for each.
std::int64_t most_tiles(const GemmProblem& p, const GemmConfig& c, const GemmShape& shape) {
  const std::int64_t across = ceil_div(shape.n, std::int64_t{c.block_n});
  const std::int64_t of_rows = ceil_div(shape.m, std::int64_t{c.block_m} * c.cluster_m);
  const bool contiguous = p.grouping == Grouping::kContiguous && groups_rows(p);
  return across * (contiguous ? of_rows + p.groups : of_rows * p.groups);
}

}  // namespace

ResolvedGemm resolve(const GemmProblem& problem, const GemmConfig& config, const DeviceSpec& device,
                     const LoadedKernel& loaded) {
  const GemmResources resources = resources_of(problem, config, device);
  ResolvedGemm r;
  r.problem = problem;
  r.kernel = loaded.kernel;
  r.kernel.waits_itself = device.has_pdl;
  r.threads = resources.threads;
  r.smem_bytes = resources.smem.total_bytes;
  r.cluster = cluster_size(config);
  r.config = config;
  r.sm_count = device.sm_count;
  r.cluster_rows = std::int64_t{config.block_m} * config.cluster_m;
  r.cluster_cols = std::int64_t{config.block_n} * config.cluster_n;
  r.raster = config.raster;
  r.tail_cols = config.tail_n;
  r.a_box_rows = resources.a_box_rows;
  r.b_box_rows = resources.b_box_rows;
  r.d_box_rows = resources.d_box_rows;
  r.d_box_cols = resources.d_box_cols;
  r.a_is_shared = config.cluster_n > 1;
  r.tma_store = config.store == EpilogueStore::kTma;
  // Groups are known on the device only, and so is which weights come first. A prefetch of a
  // batch's weights would need a map of three dimensions.
  if (!has_several_gemms(problem))
    r.early_stages = early_stages(config, resources.smem.b_stage_bytes);
  return r;
}

GemmWork ResolvedGemm::at(const GemmShape& shape, int sm_limit) const {
  GemmWork work;
  const int sms = sm_limit > 0 ? std::min(sm_limit, sm_count) : sm_count;
  const int clusters = resident_clusters(config, sms);
  // No more rows of A than there are, in the four that a box's rows are counted in.
  const auto rows = static_cast<int>(std::min<std::int64_t>(a_box_rows, round_up(shape.m, 4)));
  work.a_box_rows = a_is_shared || groups_rows(problem) ? a_box_rows : rows;
  if (is_grouped(problem)) {
    work.blocks = cluster * std::min<std::int64_t>(most_tiles(problem, config, shape), clusters);
    return work;
  }
  // The tiles of a cluster count as one, here and in the kernel.
  const TileShares shares =
      share_tiles(shape.m, shape.n, cluster_rows, cluster_cols, tail_cols, clusters);
  work.order = tile_order(shares, raster);
  if (is_batched(problem)) {
    work.blocks = std::min<std::int64_t>(problem.batch * shares.tiles(), clusters);
    return work;
  }
  // A persistent grid: one cluster per tile, and no more than the device runs at once. With tail
  // tiles the grid is whole, because the clusters that the last round of whole tiles leaves idle
  // take tail tiles.
  work.blocks =
      cluster * (tail_cols > 0 ? clusters : std::min<std::int64_t>(shares.tiles(), clusters));
  return work;
}

}  // namespace octile
