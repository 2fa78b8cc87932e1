// Output policy: D in fp32, stored or added to by TMA from shared memory. A warpgroup stages one
// panel after another, 64 rows of 32 columns: more would take memory from the ring without storing
// faster (docs/experiments/gemm.md, v40). direct.cuh has the contract of an output policy.
//
// L2 performs the addition, so no consumer waits for it. It rounds to nearest even and keeps
// subnormals. Rows that an earlier tile adds get -0 here, which changes no value.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#include "gemm/output/boxes.cuh"
#include "gemm/output/watch.cuh"
#include "lib/tma_reduce.cuh"
#endif

namespace gemm::output {

// kAdds: D += sum. kSentry: the problem's sentry, which sees sums and not the old D that they are
// added to. Box: how D's boxes are stored.
template <bool kAdds, int kSentry, typename Box>
struct StagedFp32 {
  static_assert(!kAdds || kSentry == kNoSentry, "an addition in L2 is not seen");
  enum : int {
    kPanelColumns = 32,  // 128 bytes, the widest swizzle
    kPanelBytes = 64 * kPanelColumns * 4,
    kStagingBytes = cfg::kConsumerWarpgroups * kPanelBytes,
    kTakesEmptySums = false,
    kStoresOnce = kAdds,
    kCountsOnce = kSentry == kSquaresSentry,
    kPrefetchesD = kAdds
  };
  using Watching = Watch<kSentry>;
  static_assert(kStripRows == 64 && kConsumerColumns % kPanelColumns == 0, "whole panels");

  template <int kSums>
  __device__ static __forceinline__ void store(const Destination& to, const ConsumerThread& self,
                                               const Tile& tile, const Limits& limits,
                                               float (&acc)[kStrips][kSums]) {
    constexpr int kAcross = 2 * kSums / kPanelColumns;
    if constexpr (kAdds) {
      wait_for_previous_kernel();
      if (tile.m0 < tile.own_row) leave_out(self, tile, acc);
    }
    const bool issuer = threadIdx.x % 128 == 0;
    const int row = tile.m0 + self.first_row();
    const u32 buffer = self.smem.d() + self.index * kPanelBytes;
#pragma unroll
    for (int panel = 0; panel < kStrips * kAcross; ++panel) {
      if (issuer) tma::wait_stores_read<0>();  // the preceding panel is still being read
      named_barrier(1 + self.index, 128);
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        if (self.box(strip) != panel / kAcross) continue;
        stage(acc[strip] + panel % kAcross * (kPanelColumns / 2), buffer, self.box_row(strip),
              self);
      }
      tma::fence_async_shared();
      named_barrier(1 + self.index, 128);
      if (issuer) {
        const int box_row = row + panel / kAcross * 64;
        const int column = tile.n0 + panel % kAcross * kPanelColumns;
        if (box_row < limits.m && column < limits.n) put(to, column, box_row, limits.m, buffer);
        tma::commit_stores();
      }
    }
    if constexpr (kSentry != kNoSentry) {
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        clear_columns(acc[strip], limits.n - tile.n0);
      }
      Watching watch;
      watch.see_sums(self, tile, limits, acc);
      watch.square_sums(self, tile, limits, acc);
      watch.report(to, self);
    }
  }

  // Copy thread, once for each K-block of a tile: prefetches one of the tile's boxes of D into L2,
  // so that the additions find D there and do not all wait for memory when the tiles end.
  __device__ static __forceinline__ void prefetch(const Destination& to, const Tile& tile,
                                                  const Limits& limits, int block) {
    constexpr int kAcross = cfg::kBlockN / kPanelColumns;
    if (block >= cfg::kBlockM / 64 * kAcross) return;
    Box::prefetch(to, tile.n0 + block % kAcross * kPanelColumns, tile.m0 + block / kAcross * 64,
                  limits.m);
  }

  // Shared memory must outlive TMA's reads of it.
  __device__ static __forceinline__ void finish() {
    if (threadIdx.x % 128 == 0) tma::wait_stores_read<0>();
  }

  template <int kColumns>
  __host__ __device__ static constexpr int box_columns() {
    return kPanelColumns;
  }

 private:
  __device__ static __forceinline__ void put(const Destination& to, int x, int y, int end,
                                             u32 buffer) {
    if constexpr (kAdds) {
      Box::add(to, x, y, end, buffer);
    } else {
      Box::store(to, x, y, end, buffer);
    }
  }

  template <int kSums>
  __device__ static __forceinline__ void leave_out(const ConsumerThread& self, const Tile& tile,
                                                   float (&acc)[kStrips][kSums]) {
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      const int row =
          tile.m0 + self.first_row() + strip * kStripStep + self.warp * kWarpRows + self.lane / 4;
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        if (row + i % 4 / 2 * 8 < tile.own_row) acc[strip][i] = -0.0f;
      }
    }
  }

  // Writes a thread's 16 sums of a panel: rows of 128 bytes, 16-byte units XORed with row % 8.
  // `first_row` is the first of the warp's rows in the panel.
  // A thread has pairs of columns 8 * j + 2 * (lane % 4), for four j. If all lanes wrote the same j
  // at a time, rows of even and odd number would meet in the banks. So a lane of row r begins at j
  // = r % 4, and the next are j ^ 1, j ^ 2, j ^ 3 of it: all units of a half warp differ.
  __device__ static __forceinline__ void stage(const float* sums, u32 buffer, int first_row,
                                               const ConsumerThread& self) {
    const int row = self.lane / 4;  // row of eight
    float turned[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) turned[i] = row & 1 ? sums[i ^ 4] : sums[i];
    const int unit = (2 * (row & 3)) ^ (self.lane % 4 / 2) ^ row;
    const u32 first =
        buffer + static_cast<u32>((first_row + row) * 128 + unit * 16 + self.lane % 2 * 8);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const u32 address = first ^ static_cast<u32>(j * 32);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = 4 * j + 2 * half;
        const bool other = row & 2;
        store_shared_8(address + half * (8 * 128), other ? turned[at ^ 8] : turned[at],
                       other ? turned[(at ^ 8) + 1] : turned[at + 1]);
      }
    }
  }
};

}  // namespace gemm::output
