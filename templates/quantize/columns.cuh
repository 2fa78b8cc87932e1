// cast -> transposed output: codes meet in shared memory, so that what leaves is contiguous along
// the rows of x.
//
// A thread casts its patch of 8 consecutive rows column by column, two rows a cvt: 8 codes of a
// column are 8 bytes of a row of the transposed copy. Shared memory, one row of kTileRows bytes a
// column of the tile, in units of 16 bytes (two patches):
//
//   column c:  | unit 0 | unit 1 | ... |       a patch's 8 bytes go to half (row / 8) of the row,
//                                              exclusive-or'ed with c / kElements
//
// The lanes that store at once hold the same rows of 16 neighbouring column groups: the
// exclusive-or spreads them over all banks. Those that read at once take 16-byte units of one
// column, whatever their order.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/codes.cuh"
#endif

namespace quantize {

constexpr int kStagedRows = 8;  // rows of a patch that becomes 8 bytes of each column

using memory::Words2;  // 8 codes of a column
struct alignas(16) Unit {
  Words2 half[2];
};

template <typename Src, int kTileRows, int kTileCols, int kThreads>
struct ColumnStage {
  static constexpr int kUnits = kTileRows / 16;  // of a column
  static constexpr int kAll = kUnits * kTileCols;
  Unit unit[kAll];

  static constexpr int kLanes = kTileCols / Src::kElements;  // that hold the same rows
  // Lanes that store at once are 16: where fewer than that hold the same rows, the next rows' are
  // among them and take the halves between.
  static constexpr int kTurn = kLanes < 16 ? 16 / kLanes : 1;
  static __device__ __forceinline__ int turn(int column) {
    return column / Src::kElements * kTurn % 16;
  }
  __device__ __forceinline__ Words2& at(int column, int patch_row) {
    const int half = patch_row ^ turn(column);
    return unit[column * kUnits + half / 2].half[half % 2];
  }

  // The thread's codes; its patch begins at row 8 * patch_row and column `column` of the tile.
  template <int kFp8, typename P>
  __device__ __forceinline__ void put(int patch_row, int column, const Vector (&v)[P::kVectors],
                                      const float (&encode)[Src::kElements]) {
    static_assert(P::kVectors == kStagedRows && P::kRowStep == 1, "8 consecutive rows");
#pragma unroll
    for (int j = 0; j < Src::kElements; ++j) {
      Words2 codes;
#pragma unroll
      for (int w = 0; w < 2; ++w) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          x[i] = __fmul_rn(Src::value(Src::raw(v[4 * w + i], j)), encode[j]);
        }
        codes.word[w] = cast_pair<kFp8>(x[1], x[0]) | cast_pair<kFp8>(x[3], x[2]) << 16;
      }
      at(column + j, patch_row) = codes;
    }
  }

  // The slow path after put(), by the same thread: the codes of its infinities and NaNs, which it
  // counts.
  template <int kFp8, typename P, typename Input>
  __device__ __forceinline__ u32 mark_nonfinite(int patch_row, int column, const P& patch,
                                                const Input& input) {
    u32 found = 0;
#pragma unroll 1
    for (int row = 0; row < patch.rows; ++row) {
#pragma unroll 1
      for (int j = 0; j < patch.elements(0); ++j) {
        const u32 raw = input.raw(row, 0, j);
        if ((raw & ~sign_bit<Src>()) < Src::kInfinity) continue;
        ++found;
        const int shift = row % 4 * 8;
        u32& word = at(column + j, patch_row).word[row / 4];
        word = (word & ~(0xffu << shift)) | nonfinite_code<Src, kFp8>(raw) << shift;
      }
    }
    return found;
  }

  // Everything staged, by all threads, after a barrier. The tile begins at row0 of its group's rows
  // and at col0; the copy's rows are written up to their padding, where the staged codes are zeros.
  template <typename View>
  __device__ __forceinline__ void write(const View& args, i64 row0, i64 col0) {
    char* const q = static_cast<char*>(args.q_transposed) + start_column(args);
    const i64 ld = args.ldq_transposed;
    const bool aligned = (reinterpret_cast<u64>(q) | static_cast<u64>(ld)) % sizeof(Unit) == 0;
    const int columns = clamp_count(args.cols - col0, kTileCols);
    const int rows = clamp_count(padded_columns(args) - row0, kTileRows);
    static_assert(kAll % kThreads == 0, "every thread writes as many units");
#pragma unroll
    for (int k = 0; k < kAll / kThreads; ++k) {
      const int index = static_cast<int>(threadIdx.x) + k * kThreads;
      const int column = index / kUnits, u = index % kUnits;
      if (column >= columns || 16 * u >= rows) continue;
      const int turned = turn(column);
      const Unit staged = unit[column * kUnits + (u ^ turned / 2)];
      const Words2 first = turned % 2 == 0 ? staged.half[0] : staged.half[1];
      const Words2 second = turned % 2 == 0 ? staged.half[1] : staged.half[0];
      const Vector codes = {{first.word[0], first.word[1], second.word[0], second.word[1]}};
      char* const p = q + (col0 + column) * ld + row0 + 16 * u;
      if (aligned) {
        memory::store_16(p, codes);
      } else {
        store_bytes(p, codes);
      }
    }
  }

 private:
  static __device__ __forceinline__ void store_bytes(char* p, Vector v) {
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      memory::store_1(p + i, v.word[0]);
      v = {{v.word[0] >> 8 | v.word[1] << 24, v.word[1] >> 8 | v.word[2] << 24,
            v.word[2] >> 8 | v.word[3] << 24, v.word[3] >> 8}};
    }
  }
};

}  // namespace quantize
