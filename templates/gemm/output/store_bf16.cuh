// Output policy: D in bf16, rounded to nearest even, by TMA from shared memory or straight from
// registers (kTmaStore).
//
// Contract of an output policy. All threads of a consumer warpgroup call it together.
//   kStagingBytes          of the D region of shared memory that it uses
//   store(to, self, tile, limits, acc)  a tile's fp32 sums to D. It may use the warpgroup's named
//                          barrier 1 + index and the D region, and no mbarrier. acc[strip][4 * j +
//                          i] is column 8 * j + 2 * (lane % 4) + (i & 1) of row lane / 4 + 8 * (i
//                          >> 1) of the warp's 16 rows (the WGMMA layout).
//   store_four(to, row, column, end, sum)  four sums of a thread, two in each of the rows `row` and
//                          `row + 8`, for a split K. No barrier.
//   finish()               before the CTA ends
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#endif

namespace gemm::output {

struct StoreBf16 {
  enum : int { kStagingBytes = cfg::kTmaStore ? cfg::kBlockM * cfg::kBlockN * 2 : 0 };

  template <int kSums>
  __device__ static __forceinline__ void store(const Destination& to, const ConsumerThread& self,
                                               const Tile& tile, const Limits& limits,
                                               const float (&acc)[kStrips][kSums]) {
    if constexpr (cfg::kTmaStore) {
      constexpr int kColumns = 2 * kSums;
      const int row = tile.m0 + self.index * kRowsPerConsumer;
      const bool issuer = threadIdx.x % 128 == 0;
      // The preceding tile's store may still read the staging area.
      if (issuer) tma::wait_stores_read<0>();
      named_barrier(1 + self.index, 128);
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        stage_strip<kColumns>(acc[strip], staging(self, strip), self.warp);
      }
      tma::fence_async_shared();
      named_barrier(1 + self.index, 128);
      if (issuer) {
#pragma unroll
        for (int strip = 0; strip < kStrips; ++strip) {
          if (row + strip * 64 < limits.m) {
            store_boxes<kColumns>(to.map, staging(self, strip), row + strip * 64, tile.n0);
          }
        }
        tma::commit_stores();
      }
    } else {
      const int row = tile.m0 + self.index * kRowsPerConsumer;
      const int end = min(limits.m, tile.m0 + cfg::kBlockM);
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        store_direct<2 * kSums>(acc[strip], static_cast<u16*>(to.d), to.ldd,
                                row + strip * 64 + self.warp * 16, tile.n0, end, limits.n);
      }
    }
  }

  __device__ static __forceinline__ void store_four(const Destination& to,
                                                    const ConsumerThread& self, int row, int column,
                                                    int end, const Floats4& sum) {
    u16* p = static_cast<u16*>(to.d) + row * to.ldd + column + 2 * (self.lane % 4);
    if (row < end) *reinterpret_cast<u32*>(p) = pack_bf16x2(sum.value[0], sum.value[1]);
    if (row + 8 < end) {
      *reinterpret_cast<u32*>(p + 8 * to.ldd) = pack_bf16x2(sum.value[2], sum.value[3]);
    }
  }

  // Shared memory must outlive TMA's reads of it.
  __device__ static __forceinline__ void finish() {
    if (cfg::kTmaStore && threadIdx.x % 128 == 0) tma::wait_stores_read<0>();
  }

  // Columns of the boxes that store a tile of kColumns columns: as many as the widest swizzle (128,
  // 64 or 32 bytes) that divides the tile.
  template <int kColumns>
  __host__ __device__ static constexpr int box_columns() {
    return kColumns % 64 == 0 ? 64 : kColumns % 32 == 0 ? 32 : 16;
  }

 private:
  __device__ static __forceinline__ u32 staging(const ConsumerThread& self, int strip) {
    constexpr int kStripBytes = kStripRows * cfg::kBlockN * 2;
    return self.smem.d() + (self.index * kStrips + strip) * kStripBytes;
  }

  // Writes a strip into its staging area: boxes of 64 rows, each swizzled as its tensor map says
  // (16-byte units of a row XORed with the row's position in the 128-byte lines). So stmatrix meets
  // no bank conflict. `warp` is the warp's index in its warpgroup.
  template <int kColumns>
  __device__ static __forceinline__ void stage_strip(const float (&acc)[kColumns / 2], u32 staging,
                                                     int warp) {
    constexpr int kBoxColumns = box_columns<kColumns>();
    constexpr int kRowBytes = kBoxColumns * 2;
    constexpr int kUnits = kRowBytes / 16;
    constexpr int kRowsPerLine = 128 / kRowBytes;
    const int lane = static_cast<int>(threadIdx.x % 32);
    // stmatrix.x4: lanes 0-7 and 8-15 address rows 0-7 and 8-15 of column group j, lanes 16-31
    // those of group j + 1.
    const int row = warp * 16 + lane % 16;
    const int swizzle = (row / kRowsPerLine) % kUnits;
    // For an even j, unit j + lane / 16 is j ^ lane / 16, so only that XOR of the address changes.
    const u32 first = staging + static_cast<u32>(row * kRowBytes + ((lane / 16) ^ swizzle) * 16);
    if (row >= kStripRows) return;  // whole groups of 8 lanes, whose rows do not exist
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      const u32 address = (first ^ static_cast<u32>(j % kUnits * 16)) +
                          static_cast<u32>(j * 8 / kBoxColumns * kStripRows * kRowBytes);
      store_matrix_bf16_x4(address, acc + 4 * j);
    }
  }

  // One thread: stores the boxes of a staged strip. The map clips rows and columns outside D.
  template <int kColumns>
  __device__ static __forceinline__ void store_boxes(const TensorMap* map, u32 staging, int row,
                                                     int column) {
    constexpr int kBoxColumns = box_columns<kColumns>();
#pragma unroll
    for (int box = 0; box < kColumns / kBoxColumns; ++box) {
      tma::store_2d(map, column + box * kBoxColumns, row,
                    staging + static_cast<u32>(box * kStripRows * kBoxColumns * 2));
    }
  }

  // Straight from registers: four lanes write 16 contiguous bytes of a row. `row` is the warp's
  // first row, `column` the tile's first column.
  template <int kColumns>
  __device__ static __forceinline__ void store_direct(const float (&acc)[kColumns / 2], u16* d,
                                                      i64 ldd, int row, int column, int m, int n) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row0 = row + lane / 4;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      if (column + 8 * j >= n) break;  // n is a multiple of 8
      u16* p = d + row0 * ldd + column + 8 * j + 2 * (lane % 4);
      if (row0 < m) *reinterpret_cast<u32*>(p) = pack_bf16x2(acc[4 * j], acc[4 * j + 1]);
      if (row0 + 8 < m) {
        *reinterpret_cast<u32*>(p + 8 * ldd) = pack_bf16x2(acc[4 * j + 2], acc[4 * j + 3]);
      }
    }
  }
};

}  // namespace gemm::output
