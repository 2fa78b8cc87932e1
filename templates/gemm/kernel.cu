// clang-format off
// The FP8 GEMM: persistent, warp-specialised, with the scales of blocks applied inside the K
// loop and those of rows or tensors after it.
//
//   D[m,n] (+)= sum over K-blocks b of (sum over k in b of A[m,k] * B[n,k]) * sa[b,m] * sb + bias[n]
//
//   A  FP8 [m][lda]    sa  fp32 [ceil(k/128)][scale_a_ld], m contiguous (1x128)
//   B  FP8 [n][ldb]    sb  fp32 [ceil(n/128)][scale_b_ld] (128x128), or as A's (1x128)
//                      sa and sb: fp32 [m] and [n] (per row), or one value each (per tensor), or
//                      E8M0 [m][scale_a_ld] and [n] or [ceil(n/32)][scale_b_ld] (MX: 32 of k)
// The tensor core sums kPromote elements of K from zero. The CUDA cores then add the partial sum in
// fp32, in K order (promotion): acc = fma(partial, sa * sb, acc). With scales of rows or tensors it
// is acc = acc + partial, and after the last K-block acc = (sa * sb) * acc. If kPromote is 0, the
// tensor core sums all of K in acc itself.
//
//            n0          n0 + kBlockN        copy thread  | load 0 | load 1 | load 2 | wait |load 3
//         +-------------------+              consumer 0            |WGMMA 0 |prom. 0 |WGMMA 1 |prom.
//   m0    | consumer 0        |              consumer 1                     |WGMMA 0 |prom. 0 |WGMMA
//         | kBlockM / C rows  |              tensor core           |########|########|########|#####
//         +-------------------+
//         | consumer 1        |              Each of C consumers owns kBlockM / C rows as strips of
//         |                   |              64 rows. One promotes while another multiplies, or it
//         +-------------------+              has kInFlight WGMMA groups in flight itself.
//
// Roles: warpgroups 0 .. C-1 are consumers, the last is the producer's.
//   consumer c             WGMMA, promotion, D             consumer_wgmma.cuh; or mma.sync: _mma, or
//                                                          tcgen05: _tcgen05, sums: tensor_memory;
//                                                          the latter does not multiply
//   warp 4C, one thread    copies A, B and A's scales into the ring by TMA          producer.cuh
//   warp 4C + 1            writes 128x128 scales of B, or MX scales, into the ring  producer.cuh
//   warp 4C + 2, a thread  prefetches weights into L2 until the ring may be fed     producer.cuh
//   warp 4C + 3, a thread  tcgen05: issues the products of all consumers      issuer_tcgen05.cuh
// Policies, which only kernel.cu knows together:
//   Walk   the next tile  walk/       Scale  promotion  scale/       Output  D's stores  output/
//
// Shared memory, from a 1024-byte aligned base (offsets: cfg, from GemmSmemLayout of the host):
//   A ring     kStages x kBlockM x 128 bytes, 128-byte swizzle
//   B ring     kStages x kBlockN x 128 bytes, 128-byte swizzle
//   D          what the output stages for TMA; with kSplits > 1 the partial sums of every rank
//   A scales   kStages x kBlockM x 4 bytes; MX: x 16
//   B scales   kStages x 16 bytes or more: one for each column, or for each segment of columns
//              within one scale block; MX: four
//   barriers   full[kStages], empty[kStages], pdl_ready; gathered, taken (kSplits > 1); 8 bytes each
//
// Barriers    arrivals                                     completes when
//   full[s]    copy thread (expect_tx), scale warp, bytes   operands and scales of stage s are here
//   empty[s]   4 warps x consumers x CTAs that share, or    every reader in the cluster is done
//              the products' commits x CTAs (tcgen05)
//   pdl_ready  copy thread                                  the preceding kernels have ended
//   gathered   thread 0 (expect_tx), bytes                  every rank's sums of my columns are here
//   taken      4 warps x consumers x ranks                  no rank still reads what I sent
//
// Reasons (measurements: docs/experiments/gemm.md; how it works: docs/kernels/gemm.md):
//   The tensor core keeps about 14 bits of an FP8 sum, hence promotion. A cluster shares A
//   (kClusterN = 2) or B (kClusterM = 2), each CTA multicasting half. It walks tiles together, so
//   its CTAs run the same number of steps; one whose tile lies outside D stores nothing. Few tokens
//   are bound by memory, hence split K, two CTAs an SM and programmatic dependent launch: with
//   kPdlEarly the next kernel may start as soon as this one's CTAs free SMs. It waits for this
//   one's end before it touches memory, except for the weights of early_stages stages.
// clang-format on
#ifndef OCTILE_EMITTED
#include "gemm/consumer_wgmma.cuh"
#include "gemm/output/bf16.cuh"
#include "gemm/output/boxes.cuh"
#include "gemm/output/split_k.cuh"
#include "gemm/output/staged.cuh"
#include "gemm/producer.cuh"
#include "gemm/scale/block_b.cuh"
#include "gemm/walk/dense.cuh"
#endif

namespace gemm {

using Walk = OCTILE_WALK;
using Scale = OCTILE_SCALE;
using Output = OCTILE_OUTPUT;
using Split = output::SplitK<Output>;

static_assert(cfg::kSplits == 1 || Output::kStagingBytes == 0,
              "ranks that split K store from registers");
static_assert(cfg::kScaleAOffset - cfg::kDOffset >=
                  (cfg::kSplits > 1 ? Split::kStagingBytes : Output::kStagingBytes),
              "the output's region ends before the scales");
static_assert(cfg::kScaleAStageBytes >= Scale::kScaleAStageBytes &&
                  cfg::kScaleBStageBytes >= Scale::kScaleBStageBytes &&
                  cfg::kScaleAOffset % 16 == 0 && cfg::kScaleAStageBytes % 16 == 0 &&
                  cfg::kScaleBOffset % 16 == 0 && cfg::kScaleBStageBytes % 16 == 0,
              "a stage holds its scales, aligned for bulk copies and vector loads");
static_assert(cfg::kScaleBOffset >= cfg::kScaleAOffset + cfg::kStages * cfg::kScaleAStageBytes &&
                  cfg::kBarrierOffset >= cfg::kScaleBOffset + cfg::kStages * cfg::kScaleBStageBytes,
              "the scales of A, those of B and the barriers do not overlap");

static_assert(!Scale::kLanesHoldRows || Scale::kHasScaleWarp, "a scale warp that does not run");
// clang-format off: the message ends behind column 100.
static_assert(!Scale::kOwnLoop || (kIntervalBlocks <= 1 && cfg::kInFlight == 1 && !kHasTail),
              "a policy's own loop sums whole tiles, and promotes at least once a K-block or never");
// clang-format on

// Returns where the scales of the finished sums are.
template <typename Walk, typename Scale>
__device__ __forceinline__ Source source_of_finish(const Source& from, const Extents& e,
                                                   const Tile& tile) {
  if constexpr (Walk::kGrouped && Scale::kAtEnd) {
    return Walk::template scales_of_group<Scale::kOfTensors>(from, e, tile);
  }
  return from;
}

// A consumer warpgroup: all its tiles.
//
// It contains the loop over passes itself, because the compiler optimises a large function's body
// again at each level it is inlined into (docs/experiments/gemm.md, v38).
template <typename Walk, typename Scale>
__device__ __forceinline__ void consume(const SharedMemory& smem, const Source& from,
                                        const Destination& to, const Extents& e, int rank) {
  ConsumerThread self(smem);
  [[maybe_unused]] const int scale_row = self.scale_row;
  KRange range = Walk::k_range(e, rank);
  Limits limits = Walk::limits(e);
  ConsumerRing ring;
  bool first_tile = true;
  u32 phase = 0;
  for (auto position = Walk::first(e, smem); position.valid(); position.advance()) {
    Tile tile;
    Walk::origin(position, e, rank, tile);
    if constexpr (Walk::kGrouped) {
      limits = Walk::limits_of(e, tile);
      if constexpr (Walk::kOwnRanges) range = Walk::k_range_of(position);
      if constexpr (Walk::kShiftsScales) self.scale_row = scale_row + tile.m0 % 4;
      tile = Walk::in_d(e, tile);
    } else if constexpr (Output::kStoresOnce || Output::kCountsOnce) {
      tile.own_row = Walk::own_row(position, e, rank);
    }
    // After the main loop a warp that shares the tile's columns has a tile of its own.
    if constexpr (kWarpColumns < cfg::kBlockN) tile.n0 += self.first_column();
    if constexpr (kHasTail) {
      if (position.is_tail()) {
        float acc[kStrips][kTailAccumulators] = {};
        const int k_blocks = range.last - range.first;
        if (!Output::kTakesEmptySums || k_blocks > 0) {
          sum_k_blocks<Scale, true>(self, ring, k_blocks, range.last, acc);
          Scale::finish(from, self, tile, limits, acc);
        }
        Output::store(to, self, tile, limits, acc);
        continue;
      }
    }
    float acc[kStrips][kAccumulators] = {};
    const int k_blocks = range.last - range.first;
    // Without tokens a group's D is zero, or stays as it is.
    if (Walk::kOwnRanges && Output::kStoresOnce && k_blocks == 0) continue;
    // False if a rank of a split K or a group may have no K-blocks, or if K may be empty.
    constexpr bool kSome = cfg::kSplits == 1 && !Output::kTakesEmptySums && !Walk::kOwnRanges;
    sum_k_blocks<Scale, kSome>(self, ring, k_blocks, range.last, acc);
    if (kSome || range.last > range.first) {
      Scale::finish(source_of_finish<Walk, Scale>(from, e, tile), self, tile, limits, acc);
    }
    if constexpr (cfg::kSplits > 1) {
      Split::exchange(self, rank, first_tile, phase, acc);
      first_tile = false;
      Split::store_share(to, self, rank, tile, limits);
      phase ^= 1;
    } else if constexpr (Walk::kBatched) {
      Output::store(Walk::destination_of(to, from, tile), self, tile, limits, acc);
    } else {
      Output::store(to, self, tile, limits, acc);
    }
  }
  Output::finish();
}

// The scale warp, if the policy has one: all its K-blocks.
template <typename Walk, typename Scale>
__device__ __forceinline__ void publish(const SharedMemory& smem, const Source& from,
                                        const Extents& e, int rank, int early_stages) {
  if constexpr (Scale::kLanesHoldRows) {
    publish_rows<Walk, Scale>(smem, from, e, rank);
  } else if constexpr (Scale::kHasScaleWarp) {
    publish_scales<Walk, Scale>(smem, from, e, rank, early_stages);
  }
}

// Before the barriers' synchronisation, which makes the table visible to all roles.
template <typename Walk>
__device__ __forceinline__ void find_groups(const SharedMemory& smem, const Extents& e) {
  if constexpr (Walk::kGrouped) {
    wait_for_previous_kernel();
    if (threadIdx.x / 32 == 1) Walk::write_table(smem, e);
  }
}

__device__ __forceinline__ void init_barriers(const SharedMemory& smem) {
  if (threadIdx.x == 0) {
#pragma unroll
    for (int stage = 0; stage < cfg::kStages; ++stage) {
      mbarrier::init(smem.full(stage), copies::kArrivals + (Scale::kHasScaleWarp ? 1 : 0));
      mbarrier::init(smem.empty(stage), sums::kReleases * kShareSize);
    }
    mbarrier::init(smem.pdl_ready(), 1);
    if constexpr (cfg::kSplits > 1) {
      mbarrier::init(smem.gathered(), 1);
      mbarrier::init(smem.taken(), 4 * cfg::kConsumerWarpgroups * cfg::kSplits);
    }
    sums::init_barriers(smem);
    mbarrier::fence_init();
  }
  if constexpr (kShareSize > 1) {
    cluster_sync();
  } else {
    // Ranks that split K meet in the first exchange. Until then none needs another's barriers.
    if constexpr (cfg::kSplits > 1) cluster_arrive();
    __syncthreads();
  }
}

// Before a CTA ends: its shared memory must outlive its peers' multicasts and arrivals. Ranks that
// split only one tile owe each other nothing after it, because each has waited for all it gets.
__device__ __forceinline__ void leave_cluster(const SharedMemory& smem, const Extents& e) {
  if constexpr (kShareSize > 1) {
    cluster_sync();
  } else if constexpr (cfg::kSplits > 1) {
    auto position = Walk::first(e, smem);
    position.advance();
    if (!position.valid()) return;
    if (threadIdx.x >= kConsumerThreads) cluster_wait();
    cluster_sync();
  }
}

}  // namespace gemm

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kCtasPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ gemm::Arguments args) {
  extern __shared__ __align__(1024) u8 tile_memory[];
  const gemm::SharedMemory smem{shared_address(tile_memory)};
  // Every field is read here, before the roles part. NVVM treats a loaded stride differently from a
  // parameter of its own, unless it does not know where the stride comes from: the copy thread's
  // loop and a split K's stores would change (docs/experiments/gemm.md, v38).
  const gemm::Source from{&args.a_map,
                          &args.b_map,
                          args.scale_a,
                          args.scale_b,
                          hide_from_optimizer(args.scale_a_ld),
                          hide_from_optimizer(args.scale_b_ld)};
  const gemm::Destination to{&args.d_map,    args.d,      hide_from_optimizer(args.ldd),
                             args.bias,      args.sentry, args.d_scale,
                             args.scale_d_ld};
  const gemm::Extents extents{args.m,          args.n,      args.k,     args.order,
                              args.group_rows, args.groups, args.tokens};
  const int early_stages = args.early_stages;
  const int prefetched_stages = args.prefetched_stages;
  const int rank = gemm::kClusterSize > 1 ? static_cast<int>(cluster_rank()) : 0;
  gemm::find_groups<gemm::Walk>(smem, extents);
  gemm::sums::take_memory(smem);
  gemm::init_barriers(smem);
  gemm::sums::begin();
  if constexpr (cfg::kPdlEarly) let_next_kernel_start();

  if (threadIdx.x >= gemm::kConsumerThreads) {
    if constexpr (cfg::kProducerRegisters > 0) release_registers<cfg::kProducerRegisters>();
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
    if (warp == cfg::kConsumerWarpgroups * 4) {
      if (gemm::copies::copies_here()) {
        tma::prefetch_map(from.a_map);
        tma::prefetch_map(from.b_map);
        gemm::produce<gemm::Walk, gemm::Scale, gemm::Output>(smem, from, to, extents, rank,
                                                             early_stages);
      }
      __syncwarp();
    } else if (warp == cfg::kConsumerWarpgroups * 4 + 1) {
      if constexpr (gemm::Scale::kHasScaleWarp) {
        gemm::publish<gemm::Walk, gemm::Scale>(smem, from, extents, rank, early_stages);
        __syncwarp();
      }
    } else if (cfg::kPdlEarly && warp == cfg::kConsumerWarpgroups * 4 + 2) {
      if constexpr (cfg::kPdlEarly) {
        if (elect_one()) {
          gemm::prefetch_weights<gemm::Walk, gemm::Scale>(smem, from, extents, rank,
                                                          prefetched_stages);
        }
        __syncwarp();
      }
    } else if (gemm::sums::kHasIssuer && warp == cfg::kConsumerWarpgroups * 4 + 3) {
      gemm::sums::issue<gemm::Walk>(smem, extents, rank);
    }
  } else {
    if constexpr (cfg::kProducerRegisters > 0) acquire_registers<cfg::kConsumerRegisters>();
    gemm::consume<gemm::Walk, gemm::Scale>(smem, from, to, extents, rank);
  }
  gemm::sums::give_memory_back(smem);
  gemm::leave_cluster(smem, extents);
}
