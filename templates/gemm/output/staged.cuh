// Output policy: D in 16-bit elements, by TMA from shared memory. direct.cuh has the contracts of
// an output policy and of an element.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#include "gemm/output/boxes.cuh"
#include "gemm/output/watch.cuh"
#endif

namespace gemm::output {

// kSentry: the problem's sentry. Box: how D's boxes are stored.
template <typename Element, int kSentry, typename Box>
struct Staged {
  enum : int {
    kStagingBytes = cfg::kBlockM * cfg::kBlockN * 2,
    kTakesEmptySums = false,
    kStoresOnce = false,
    kCountsOnce = kSentry == kSquaresSentry,
    kPrefetchesD = false
  };
  using Watching = Watch<kSentry>;

  template <int kSums>
  __device__ static __forceinline__ void store(const Destination& to, const ConsumerThread& self,
                                               const Tile& tile, const Limits& limits,
                                               float (&acc)[kStrips][kSums]) {
    constexpr int kColumns = 2 * kSums * kWarpsAcross;
    const int row = tile.m0 + self.first_row();
    const bool issuer = threadIdx.x % 128 == 0;
    // The preceding tile's store may still read the staging area.
    if (issuer) tma::wait_stores_read<0>();
    named_barrier(1 + self.index, 128);
    Watching watch;
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      if constexpr (kSentry != kNoSentry) clear_columns(acc[strip], limits.n - tile.n0);
      Seen seen;
      if constexpr (kWarpsAcross == 1) {
        stage_strip<kColumns>(acc[strip], staging(self, self.box(strip)), self.box_row(strip),
                              seen);
      } else {
        stage_columns(acc[strip], staging(self, self.box(strip)), self, seen);
      }
      watch.see_rows(self, tile, limits, strip, was_finite(seen.upper), was_finite(seen.lower));
    }
    tma::fence_async_shared();
    named_barrier(1 + self.index, 128);
    if (issuer) {
#pragma unroll
      for (int box = 0; box < kStrips; ++box) {
        if (row + box * 64 < limits.m) {
          store_boxes<kColumns>(to, staging(self, box), row + box * 64, limits.m, tile.n0);
        }
      }
      tma::commit_stores();
    }
    watch.square_sums(self, tile, limits, acc);
    watch.report(to, self);
  }

  // Shared memory must outlive TMA's reads of it.
  __device__ static __forceinline__ void finish() {
    if (threadIdx.x % 128 == 0) tma::wait_stores_read<0>();
  }

  // Columns of the boxes that store a tile of kColumns columns: as many as the widest swizzle (128,
  // 64 or 32 bytes) that divides the tile.
  template <int kColumns>
  __host__ __device__ static constexpr int box_columns() {
    return kColumns % 64 == 0 ? 64 : kColumns % 32 == 0 ? 32 : 16;
  }

 private:
  // A thread's record of its two rows of a strip, in the halves of a pair: NaN if an element
  // is not finite.
  struct Seen {
    u32 upper = 0, lower = 0;
  };
  __device__ static __forceinline__ bool was_finite(u32 seen) { return (seen & 0x7fff7fffu) == 0; }

  // The staging area of 64 rows in all columns of the consumer.
  __device__ static __forceinline__ u32 staging(const ConsumerThread& self, int box) {
    constexpr int kBoxBytes = kStripRows * kConsumerColumns * 2;
    return self.smem.d() + (self.index * kStrips + box) * kBoxBytes;
  }

  // Writes the warp's rows of a strip into their staging area: boxes of 64 rows, each swizzled as
  // its tensor map says (16-byte units of a row XORed with the row's position in the 128-byte
  // lines). So stmatrix meets no bank conflict. `first_row` is the first of the rows there.
  template <int kColumns>
  __device__ static __forceinline__ void stage_strip(const float (&acc)[kColumns / 2], u32 staging,
                                                     int first_row, Seen& seen) {
    constexpr int kBoxColumns = box_columns<kColumns>();
    constexpr int kRowBytes = kBoxColumns * 2;
    constexpr int kUnits = kRowBytes / 16;
    constexpr int kRowsPerLine = 128 / kRowBytes;
    const int lane = static_cast<int>(threadIdx.x % 32);
    // stmatrix.x4: lanes 0-7 and 8-15 address rows 0-7 and 8-15 of column group j, lanes 16-31
    // those of group j + 1.
    const int row = first_row + lane % 16;
    const int swizzle = (row / kRowsPerLine) % kUnits;
    // For an even j, unit j + lane / 16 is j ^ lane / 16, so only that XOR of the address changes.
    const u32 first = staging + static_cast<u32>(row * kRowBytes + ((lane / 16) ^ swizzle) * 16);
    if (row >= kStripRows) return;  // whole groups of 8 lanes, whose rows do not exist
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      const u32 address = (first ^ static_cast<u32>(j % kUnits * 16)) +
                          static_cast<u32>(j * 8 / kBoxColumns * kStripRows * kRowBytes);
      if constexpr (kSentry == kNoSentry) {
        Element::put_matrices(address, acc + 4 * j);
      } else {
        u32 pairs[4];
        Element::pack(acc + 4 * j, pairs);
        store_matrix_x4(address, pairs);
        seen.upper = Element::see(pairs[2], Element::see(pairs[0], seen.upper));
        seen.lower = Element::see(pairs[3], Element::see(pairs[1], seen.lower));
      }
    }
  }

  // The same of a warp that has some columns of a short tile, in any number of groups of 8.
  template <int kSums>
  __device__ static __forceinline__ void stage_columns(const float (&acc)[kSums], u32 staging,
                                                       const ConsumerThread& self, Seen& seen) {
    constexpr int kRowBytes = box_columns<cfg::kBlockN>() * 2;
    constexpr int kUnits = kRowBytes / 16;
    const int row = self.warp * 16 + self.lane % 16;
    if (row >= kStripRows) return;  // a whole warp, whose rows do not exist
    const u32 line = staging + static_cast<u32>(row * kRowBytes);
    const int swizzle = row / (128 / kRowBytes) % kUnits;
#pragma unroll
    for (int j = 0; j < kSums / 4; j += 2) {
      const bool is_last = j + 1 == kSums / 4;  // alone: its neighbour is itself
      const int unit = self.first_column() / 8 + j + (is_last ? 0 : self.lane / 16);
      const u32 address = line + static_cast<u32>(unit / kUnits * (kStripRows * kRowBytes) +
                                                  (unit % kUnits ^ swizzle) * 16);
      float sums[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] = acc[4 * j + (is_last ? i % 4 : i)];
      u32 pairs[4];
      Element::pack(sums, pairs);
      store_matrix_x4(address, pairs);
      if constexpr (kSentry != kNoSentry) {
        seen.upper = Element::see(pairs[2], Element::see(pairs[0], seen.upper));
        seen.lower = Element::see(pairs[3], Element::see(pairs[1], seen.lower));
      }
    }
  }

  // One thread: stores the boxes of a staging area.
  template <int kColumns>
  __device__ static __forceinline__ void store_boxes(const Destination& to, u32 staging, int row,
                                                     int end, int column) {
    constexpr int kBoxColumns = box_columns<kColumns>();
#pragma unroll
    for (int box = 0; box < kColumns / kBoxColumns; ++box) {
      Box::store(to, column + box * kBoxColumns, row, end,
                 staging + static_cast<u32>(box * kStripRows * kBoxColumns * 2));
    }
  }
};

}  // namespace gemm::output
