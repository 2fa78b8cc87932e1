// Scale policy: tcgen05 multiplies the scales of blocks, which are powers of two, and sums all of K
// in tensor memory. Nothing is promoted. inside.cuh does the same by mma.sync, and block_b.cuh has
// the contract of a scale policy.
//
// The instruction takes the exponent of a row of A, or of a column of D, from a byte of a word in
// tensor memory. The scale warp gathers the words of a K-block and writes them into the stage as
// tcgen05.cp reads them: for 128 rows 512 bytes, of which word r / 32 of lane r % 32's 16 bytes is
// row r's. The issuer copies them from there (issuer_tcgen05.cuh). A word has the exponent of a
// 1x128 or 128x128 scale in its lowest byte, which serves all four steps of the K-block, or the
// four codes of MX.
//
// Words says where they come from (Words<OfA, OfB>; inside_tcgen05_mx.cuh):
//   Place says where the words of a tile are; place<Walk>(from, e, tile) finds it.
//
//   load(place, block, lane) reads those of a K-block: of rows lane, lane + 32, .. of A, and of
//   these columns.
//
//   a(i, block) and b(i, block) return the word of row, or column, lane + 32 * i, as the
//   instruction takes it. All lanes call them.
//
// Rows and columns that the tensor lacks have the scales of its last: their sums are not stored.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/producer.cuh"
#include "gemm/scale/exponents.cuh"
#include "gemm/tensor_memory.cuh"
#include "lib/global.cuh"
#include "lib/pairs.cuh"
#endif

namespace gemm::scale {

// Scales of 1x128: of a K-block's rows one word behind the other.
template <typename Format, int kRows>
struct RowWords {
  enum : int { kCount = ceil_div(kRows, 32) };
  struct Place {
    const float* scales;
    i64 ld;
    int last;  // row; negative: there is none
  };
  float raw[kCount];

  template <typename Walk>
  __device__ static __forceinline__ Place place_of_a(const Source& from, const Extents& e,
                                                     const Tile& tile) {
    constexpr int kOfWord = Format::kBlocksOfWord;
    const float* scales = Walk::scales_of_a(from, e, tile, ceil_div(ceil_div(e.k, 128), kOfWord));
    int last = Walk::scaled_rows(e, tile) - 1;
    if constexpr (Walk::kShiftsScales) {
      scales += tile.m0 % 4;
      last -= tile.m0 % 4;
    }
    return {scales, from.scale_a_ld, last};
  }
  template <typename Walk>
  __device__ static __forceinline__ Place place_of_b(const Source& from, const Extents& e,
                                                     const Tile& tile) {
    const float* scales = from.scale_b + tile.n0;
    if constexpr (Walk::kBatched) scales += Walk::scales_before(from, tile);
    return {scales, from.scale_b_ld, e.n - 1 - tile.n0};
  }

  __device__ __forceinline__ void load(const Place& place, int block, int lane) {
    const float* scales = place.scales + block / Format::kBlocksOfWord * place.ld;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      raw[i] = load_global_4_if(place.last >= 0, scales + min(lane + 32 * i, place.last));
    }
  }
  __device__ __forceinline__ u32 word(int i, int block) const {
    return i < kCount ? exponent_of(Format(), raw[i < kCount ? i : 0], block) : 0;
  }
};

// Scales of 128x128: one for each block of columns and of K, those of the same columns side by
// side.
template <int kColumns>
struct BlockWords {
  enum : int {
    kCount = ceil_div(kColumns, 32),
    // Groups of 32 columns that have one scale wherever the tile begins.
    kOfScale = 128 % kColumns == 0   ? kCount
               : kColumns % 128 == 0 ? 4
                                     : 1,
  };
  struct Place {
    const float* scales;
    i64 ld;
    int first, last;  // column of the tile, block of columns
  };
  float raw[ceil_div(kCount, kOfScale)];

  template <typename Walk>
  __device__ static __forceinline__ Place place_of_b(const Source& from, const Extents& e,
                                                     const Tile& tile) {
    const Source& source = Walk::source_of_b(from, e, tile);
    return {source.scale_b, source.scale_b_ld, tile.n0, ceil_div(e.n, 128) - 1};
  }

  __device__ __forceinline__ void load(const Place& place, int block, int lane) {
#pragma unroll
    for (int i = 0; i < ceil_div(kCount, kOfScale); ++i) {
      const int row = min((place.first + lane + 32 * kOfScale * i) / 128, place.last);
      raw[i] = load_global_4_if(true, place.scales + row * place.ld + block);
    }
  }
  __device__ __forceinline__ u32 word(int i, int block) const {
    return i < kCount ? exponent_of(Fp32(), raw[i < kCount ? i / kOfScale : 0], block) : 0;
  }
};

// Words of both operands, each of its own kind.
template <typename OfA, typename OfB>
struct Words {
  struct Place {
    typename OfA::Place a;
    typename OfB::Place b;
  };
  OfA of_a;
  OfB of_b;

  template <typename Walk>
  __device__ static __forceinline__ Place place(const Source& from, const Extents& e,
                                                const Tile& tile) {
    return {OfA::template place_of_a<Walk>(from, e, tile),
            OfB::template place_of_b<Walk>(from, e, tile)};
  }
  __device__ __forceinline__ void load(const Place& place, int block, int lane) {
    of_a.load(place.a, block, lane);
    of_b.load(place.b, block, lane);
  }
  __device__ __forceinline__ u32 a(int i, int block) const { return of_a.word(i, block); }
  __device__ __forceinline__ u32 b(int i, int block) const { return of_b.word(i, block); }
};

template <typename LaneWords>
struct InsideTcgen05 {
  using FormatA = Fp32;  // of the scales that TMA copies, which are none
  using FormatB = Fp32;
  enum : int {
    kAtEnd = false,
    kScaleAStageBytes = kProducts * kScaleGroupBytes,
    kScaleBStageBytes = (kScaleGroups - kProducts) * kScaleGroupBytes,
    kCopiedPerRowOfA = 0,
    kCopiedPerRowOfB = 0,
    kHasScaleWarp = true,
    kLanesHoldRows = true,
    kOwnLoop = false,
    kAhead = 2,  // K-blocks whose scales the scale warp has in registers
  };

  // TMA copies no scales.
  __device__ static __forceinline__ void load_a(const float*, u32, int, int, u32) {}
  __device__ static __forceinline__ void load_b(const float*, u32, int, int, u32) {}

  template <int kSums>
  __device__ static __forceinline__ void finish(const Source&, const ConsumerThread&, const Tile&,
                                                const Limits&, float (&)[kStrips][kSums]) {}

  __device__ static __forceinline__ void clear_stages(const SharedMemory&, int) {}

  // A stage that is empty has been read by the copies of its scales too.
  struct LaneRows {
    LaneWords words;

    template <typename Walk>
    __device__ static __forceinline__ auto place(const Source& from, const Extents& e,
                                                 const Tile& tile) {
      return LaneWords::template place<Walk>(from, e, tile);
    }
    template <typename Place>
    __device__ __forceinline__ void load(const Place& place, int block, int lane) {
      words.load(place, block, hide_from_optimizer(lane));
    }
    __device__ __forceinline__ void store(u32 stage_a, u32 stage_b, int block, int lane) const {
      store_groups<kProducts>(stage_a, lane, [&](int i) { return words.a(i, block); });
      store_groups<kScaleGroups - kProducts>(stage_b, lane,
                                             [&](int i) { return words.b(i, block); });
      tma::fence_async_shared();
    }

   private:
    // Writes the words of kGroups times 128 rows: word(i) is that of row lane + 32 * i.
    template <int kGroups, typename Word>
    __device__ static __forceinline__ void store_groups(u32 address, int lane, const Word& word) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const u32 to = address + group * kScaleGroupBytes + static_cast<u32>(lane) * 16;
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          store_shared_8(to + i * 4, __uint_as_float(word(4 * group + i)),
                         __uint_as_float(word(4 * group + i + 1)));
        }
      }
    }
  };
};

}  // namespace gemm::scale
