// The exchange of partial sums within a cluster that splits K. The ranks of the cluster work on one
// tile, each on its range of K-blocks. Then each sums its share of the columns over all ranks, in
// rank order, which is K order, and stores it through the output policy Output.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#endif

namespace gemm::output {

// All consumer threads call exchange and then store_share for every tile. They may touch the
// barriers `gathered` and `taken`, the D region, and the cluster's barrier once, in the first
// exchange: the ranks arrived on it when they initialised their barriers.
template <typename Output>
struct SplitK {
  enum : int {
    // Every rank sums its share of a warp's groups of 8 columns.
    kColumnGroups = kWarpColumns / 8,
    kShareGroups = ceil_div(kColumnGroups, cfg::kSplits),
    kStagingBytes = cfg::kSplits * kShareGroups * kStrips * kConsumerThreads * 16,
  };
  // If no bytes are to come, thread 0 would complete `gathered` of the next tile before another
  // warp has waited for this one's.
  static_assert(cfg::kSplits <= kColumnGroups, "every rank sums a group");

  // Sends this rank's sums of the other ranks' shares into their shared memory, and waits for
  // theirs. The copies complete on the receiver's barrier, so no fence is needed and no rank reads
  // another's memory.
  __device__ static __forceinline__ void exchange(const ConsumerThread& self, int rank,
                                                  bool first_tile, u32 phase,
                                                  const float (&acc)[kStrips][kAccumulators]) {
    if (threadIdx.x == 0) {
      const int groups =
          kColumnGroups * (rank + 1) / cfg::kSplits - kColumnGroups * rank / cfg::kSplits;
      mbarrier::arrive_expect_tx(self.smem.gathered(),
                                 groups * cfg::kSplits * kStrips * kConsumerThreads * 16);
    }
    if (first_tile) {
      cluster_wait();
    } else {
      // This rank has read its share of the tile before. After the wait, so have all others. The
      // arrival comes here, not right after the reads, because a peer without tiles may have
      // exited.
      __syncwarp();
      if (self.lane < cfg::kSplits) mbarrier::arrive_cluster(self.smem.taken(), self.lane);
      mbarrier::wait(self.smem.taken(), phase ^ 1);
    }
    // One flat loop over the column groups, so that every accumulator's index is a constant.
#pragma unroll
    for (int group = 0; group < kColumnGroups; ++group) {
      const int owner = ((group + 1) * cfg::kSplits - 1) / kColumnGroups;
      const int first = kColumnGroups * owner / cfg::kSplits;
      const u32 area = cluster_address(self.smem.d(), owner);
      const u32 barrier = cluster_address(self.smem.gathered(), owner);
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        store_async_16(area + gather_offset(rank, group - first, strip), acc[strip][4 * group],
                       acc[strip][4 * group + 1], acc[strip][4 * group + 2],
                       acc[strip][4 * group + 3], barrier);
      }
    }
    mbarrier::wait(self.smem.gathered(), phase);
  }

  // Adds up this rank's share in rank order and stores it.
  __device__ static __forceinline__ void store_share(const Destination& to,
                                                     const ConsumerThread& self, int rank,
                                                     const Tile& tile, const Limits& limits) {
    const int first = kColumnGroups * rank / cfg::kSplits;
    const int groups = kColumnGroups * (rank + 1) / cfg::kSplits - first;
    const int end = min(limits.m, tile.m0 + cfg::kBlockM);
    typename Output::Watching watch;
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      const int row =
          tile.m0 + self.first_row() + strip * kStripStep + self.warp * kWarpRows + self.lane / 4;
#pragma unroll
      for (int group = 0; group < kShareGroups; ++group) {
        const int column = tile.n0 + (first + group) * 8;
        if (group >= groups || column >= limits.n) break;  // n is a multiple of 8
        Floats4 sum = load_shared_16(self.smem.d() + gather_offset(0, group, strip));
#pragma unroll
        for (int from = 1; from < cfg::kSplits; ++from) {
          const Floats4 more = load_shared_16(self.smem.d() + gather_offset(from, group, strip));
#pragma unroll
          for (int i = 0; i < 4; ++i) sum.value[i] = __fadd_rn(sum.value[i], more.value[i]);
        }
        Output::store_four(to, self, tile, row, column, end, sum, watch);
      }
    }
    watch.report(to, self);
  }

 private:
  // Offset in the gathering area of the sums that rank `from` sent for column group `group` of the
  // share: 16 bytes a thread, threads contiguous.
  __device__ static __forceinline__ u32 gather_offset(int from, int group, int strip) {
    return static_cast<u32>(((from * kShareGroups + group) * kStrips + strip) * kConsumerThreads +
                            static_cast<int>(threadIdx.x)) *
           16;
  }
};

}  // namespace gemm::output
