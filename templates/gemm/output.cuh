// From a consumer's sums to D: through TMA, straight from registers, or, where the ranks of a
// cluster split K, by exchanging them first.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#endif

namespace gemm {

template <int kSums>
__device__ __forceinline__ void store_tile(const Consumer& self, const TensorMap* d_map, u16* d,
                                           i64 ldd, const Extents& e, int m0, int n0,
                                           const float (&acc)[kStrips][kSums]) {
  constexpr int kColumns = 2 * kSums;
  const int row = m0 + self.index * kRowsPerConsumer;
  if constexpr (cfg::kTmaStore) {
    const bool issuer = threadIdx.x % 128 == 0;
    // The staging area may still be read by the previous tile's store.
    if (issuer) tma::wait_stores_read<0>();
    named_barrier(1 + self.index, 128);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      stage_for_tma<kColumns, kStripRows>(acc[strip], self.smem.d(self.index * kStrips + strip),
                                          self.warp);
    }
    tma::fence_async_shared();
    named_barrier(1 + self.index, 128);
    if (issuer) {
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        if (row + strip * 64 < e.m) {
          store_boxes<kColumns, kStripRows>(d_map, self.smem.d(self.index * kStrips + strip),
                                            row + strip * 64, n0);
        }
      }
      tma::commit_stores();
    }
  } else {
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      store_direct<kColumns>(acc[strip], d, ldd, row + strip * 64 + self.warp * 16, n0,
                             min(e.m, m0 + cfg::kBlockM), e.n);
    }
  }
}

// Where of the gathering area the sums of `from` for column group `group` of the share lie: 16
// bytes a thread, threads contiguous.
__device__ __forceinline__ u32 gather_offset(int from, int group, int strip) {
  return static_cast<u32>(((from * kShareGroups + group) * kStrips + strip) * kConsumerThreads +
                          static_cast<int>(threadIdx.x)) *
         16;
}

// Each rank's sums of the other ranks' shares into their shared memory. Copies complete on the
// receiver's barrier, so nothing is fenced and no rank reads another's memory.
__device__ __forceinline__ void exchange(const Consumer& self, int rank, bool first_tile, u32 phase,
                                         const float (&acc)[kStrips][kAccumulators]) {
  if (threadIdx.x == 0) {
    const int groups = kGroups * (rank + 1) / cfg::kSplits - kGroups * rank / cfg::kSplits;
    mbarrier::arrive_expect_tx(self.smem.gathered(),
                               groups * cfg::kSplits * kStrips * kConsumerThreads * 16);
  }
  if (first_tile) {
    cluster_wait();
  } else {
    // This rank has read its share of the tile before; so have, after the wait, all others. (Told
    // here and not at once, because a peer that has no tile left may have ended.)
    __syncwarp();
    if (self.lane < cfg::kSplits) mbarrier::arrive_cluster(self.smem.taken(), self.lane);
    mbarrier::wait(self.smem.taken(), phase ^ 1);
  }
  // One flat loop over the column groups, so that every accumulator's index is a constant.
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int owner = ((group + 1) * cfg::kSplits - 1) / kGroups;
    const int first = kGroups * owner / cfg::kSplits;
    const u32 area = cluster_address(self.smem.d(0), owner);
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

// Adds up this rank's share, in the order of the ranks (which is K order), and stores it.
__device__ __forceinline__ void store_share(const Consumer& self, int rank, u16* d, i64 ldd,
                                            const Extents& e, int m0, int n0) {
  const int first = kGroups * rank / cfg::kSplits;
  const int groups = kGroups * (rank + 1) / cfg::kSplits - first;
  const int end = min(e.m, m0 + cfg::kBlockM);
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
    const int row =
        m0 + self.index * kRowsPerConsumer + strip * 64 + self.warp * 16 + self.lane / 4;
#pragma unroll
    for (int group = 0; group < kShareGroups; ++group) {
      const int column = n0 + (first + group) * 8;
      if (group >= groups || column >= e.n) break;  // n is a multiple of 8
      Floats4 sum = load_shared_16(self.smem.d(0) + gather_offset(0, group, strip));
#pragma unroll
      for (int from = 1; from < cfg::kSplits; ++from) {
        const Floats4 more = load_shared_16(self.smem.d(0) + gather_offset(from, group, strip));
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.value[i] = __fadd_rn(sum.value[i], more.value[i]);
      }
      u16* p = d + row * ldd + column + 2 * (self.lane % 4);
      if (row < end) *reinterpret_cast<u32*>(p) = pack_bf16x2(sum.value[0], sum.value[1]);
      if (row + 8 < end) {
        *reinterpret_cast<u32*>(p + 8 * ldd) = pack_bf16x2(sum.value[2], sum.value[3]);
      }
    }
  }
}

}  // namespace gemm
