#include "runtime/families/gemm/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "generator/core/types.h"

namespace octile {
namespace {

constexpr int kOperandBoxCols = 128;  // one 1x128 scale block, one 128-byte swizzle row

struct Box {
  std::int64_t rows = 0, cols = 0;  // the matrix
  std::int64_t row_bytes = 0;       // its stride
  int box_rows = 0, box_cols = 0;
};

CUtensorMapSwizzle swizzle_of(int box_row_bytes) {
  return box_row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
         : box_row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                               : CU_TENSOR_MAP_SWIZZLE_32B;
}

// Elements outside the matrix read as zero and are not written: tails need no care in the kernel.
CUresult encode(const Driver& driver, CUtensorMap* map, CUtensorMapDataType type, int element_bytes,
                const void* base, const Box& box,
                CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_NONE) {
  const std::array<cuuint64_t, 2> extents{static_cast<cuuint64_t>(box.cols),
                                          static_cast<cuuint64_t>(box.rows)};
  const std::array<cuuint64_t, 1> strides{static_cast<cuuint64_t>(box.row_bytes)};
  const std::array<cuuint32_t, 2> tile{static_cast<cuuint32_t>(box.box_cols),
                                       static_cast<cuuint32_t>(box.box_rows)};
  constexpr std::array<cuuint32_t, 2> kContiguous{1, 1};
  return driver->cuTensorMapEncodeTiled(
      map, type, 2, const_cast<void*>(base), extents.data(), strides.data(), tile.data(),
      kContiguous.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(box.box_cols * element_bytes),
      promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

// How much of a row of A or B a copy brings into L2: two K-blocks at once, but of few rows, where
// most of what is read is a weight that is read once and the second costs 3 to 6 % of the loads'
// time (kernel's ladder, v29).
CUtensorMapL2promotion promotion_of(std::int64_t m) {
  constexpr std::int64_t kFewRows = 256;
  return m <= kFewRows ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
}

CUresult encode_maps(const Driver& driver, const GemmLaunch& l, std::int64_t n, std::int64_t k,
                     const octile_gemm_args& args, GemmParameters& p) {
  const CUtensorMapL2promotion promotion = promotion_of(args.m);
  const int a_rows =
      l.a_is_shared ? l.a_box_rows
                    : static_cast<int>(std::min<std::int64_t>(l.a_box_rows, round_up(args.m, 4)));
  const Box a{args.m, k, args.lda, a_rows, kOperandBoxCols};
  const Box b{n, k, args.ldb, l.b_box_rows, kOperandBoxCols};
  CUresult result =
      encode(driver, &p.a_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, args.a, a, promotion);
  if (result == CUDA_SUCCESS)
    result = encode(driver, &p.b_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, args.b, b, promotion);
  if (result != CUDA_SUCCESS || !l.tma_store) return result;
  const Box d{args.m, n, args.ldd * 2, l.d_box_rows, l.d_box_cols};
  return encode(driver, &p.d_map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, args.d, d);
}

// Stages of so many bytes of weights that are asked for before the kernel before has ended, where
// overlap is wanted. What is asked for first holds back what is asked for behind it: A, whose
// stages all come at once then. So none where the kernel before is one like it, which lets nothing
// start early, where a tile reads twice as much of A as of B, or where B is shared; else what was
// fastest (ladder v31).
int early_stages(const GemmConfig& config, int stage_bytes) {
  if (!config.pdl_early || config.cluster_m > 1) return 0;
  if (config.block_m < 64) return config.stages;
  if (config.block_n <= 32) return 0;
  const int bytes = (config.block_m == 64 ? 80 : 32) * 1024;
  return std::min(config.stages, static_cast<int>(ceil_div(bytes, stage_bytes)));
}

}  // namespace

GemmLaunch gemm_launch(const GemmConfig& config, int sm_count, const KernelHandle& kernel) {
  const GemmResources r = resources_of(config);
  GemmLaunch l;
  l.kernel = kernel;
  l.cluster_rows = std::int64_t{config.block_m} * config.cluster_m;
  l.cluster_cols = std::int64_t{config.block_n} * config.cluster_n;
  l.raster = config.raster;
  l.a_box_rows = r.a_box_rows;
  l.a_is_shared = config.cluster_n > 1;
  l.b_box_rows = r.b_box_rows;
  l.d_box_rows = r.d_box_rows;
  l.d_box_cols = r.d_box_cols;
  l.tma_store = config.store == EpilogueStore::kTma;
  l.tail_cols = config.tail_n;
  l.cluster = cluster_size(config);
  l.early_stages = early_stages(config, r.smem.b_stage_bytes);
  l.max_blocks = resident_clusters(config, sm_count) * l.cluster;
  l.threads = r.threads;
  l.smem_bytes = r.smem.total_bytes;
  return l;
}

Status launch_gemm(const LaunchSite& site, const GemmLaunch& l, std::int64_t n, std::int64_t k,
                   const octile_gemm_args& args) {
  GemmParameters p{};
  if (const CUresult encoded = encode_maps(site.driver, l, n, k, args, p); encoded != CUDA_SUCCESS)
    return site.driver.check(encoded, "cuTensorMapEncodeTiled");
  p.scale_a = args.a_scale;
  p.scale_b = args.b_scale;
  p.d = args.d;
  p.scale_a_ld = args.a_scale_ld;
  p.scale_b_ld = args.b_scale_ld;
  p.ldd = args.ldd;
  p.m = static_cast<std::int32_t>(args.m);
  p.n = static_cast<std::int32_t>(n);
  p.k = static_cast<std::int32_t>(k);
  const bool overlap = (args.flags & OCTILE_RUN_B_READY) != 0;
  p.early_stages = overlap ? l.early_stages : 0;
  p.prefetched_stages = overlap ? 0 : l.early_stages;
  // The tiles of a cluster are one, here and for the kernel.
  const TileShares shares = share_tiles(args.m, n, l.cluster_rows, l.cluster_cols, l.tail_cols,
                                        l.max_blocks / l.cluster);
  p.order = tile_order(shares, l.raster);
  std::array<void*, kGemmParameterCount> parameters{&p.a_map,
                                                    &p.b_map,
                                                    &p.d_map,
                                                    &p.scale_a,
                                                    &p.scale_b,
                                                    &p.d,
                                                    &p.scale_a_ld,
                                                    &p.scale_b_ld,
                                                    &p.ldd,
                                                    &p.m,
                                                    &p.n,
                                                    &p.k,
                                                    &p.early_stages,
                                                    &p.prefetched_stages,
                                                    &p.order};

  std::array<CUlaunchAttribute, 2> attributes{};
  unsigned int attribute_count = 0;
  if (l.cluster > 1) {
    CUlaunchAttribute& cluster = attributes[attribute_count++];
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim.x = static_cast<unsigned int>(l.cluster);
    cluster.value.clusterDim.y = 1;
    cluster.value.clusterDim.z = 1;
  }
  attributes[attribute_count++] = waits_itself();
  // A persistent grid: a cluster for each, no more than fit at once; all of them where narrow tiles
  // are shared out between those that the last round of whole tiles leaves idle.
  const std::int64_t blocks =
      l.tail_cols > 0 ? l.max_blocks
                        : std::min<std::int64_t>(shares.tiles() * l.cluster, l.max_blocks);
  CUlaunchConfig config =
      launch_config(site, static_cast<unsigned int>(blocks), static_cast<unsigned int>(l.threads));
  config.sharedMemBytes = static_cast<unsigned int>(l.smem_bytes);
  config.attrs = attributes.data();
  config.numAttrs = attribute_count;
  return launch(site, l.kernel, config, parameters.data());
}

}  // namespace octile
