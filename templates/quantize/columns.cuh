// The cast with a transposed output. Codes are staged in shared memory, so that stores are
// contiguous along the rows of x.
//
// A thread casts its patch of 8 (or 4) consecutive rows column by column, two rows a cvt. The 8
// codes of a column are a piece of a row of the transposed copy. Shared memory has one row of
// kTileRows bytes for each column of the tile, in units of 16 bytes (two pieces, or four):
//
//   column c:  | unit 0 | unit 1 | ... |       a patch's 8 bytes go to piece (row / 8) of the row,
//                                              exclusive-or'ed with c / kElements
//
// The lanes that store at once hold the same rows of 16 neighbouring column groups. The
// exclusive-or spreads them over all banks. The lanes that read at once take 16-byte units of one
// column, in any order.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/codes.cuh"
#endif

namespace quantize {

constexpr int kStagedRows = 8;  // the most rows of a patch

// kRows: rows of a patch, which becomes as many bytes of each column.
template <typename Src, int kRows, int kTileRows, int kTileCols, int kThreads>
struct ColumnStage {
  static_assert(kRows == 8 || kRows == 4, "a piece is stored by one access");
  static constexpr int kWords = kRows / 4;
  struct alignas(kRows) Piece {  // kRows codes of a column
    u32 word[kWords];
  };
  static constexpr int kPieces = 16 / kRows;
  struct alignas(16) Unit {
    Piece piece[kPieces];
  };
  static constexpr int kUnits = kTileRows / 16;  // units of a column
  static constexpr int kAll = kUnits * kTileCols;
  Unit unit[kAll];

  static constexpr int kLanes = kTileCols / Src::kElements;  // lanes that hold the same rows
  // The lanes that store at once are 16, or 32 of 4 bytes. If fewer lanes hold the same rows, lanes
  // of the next rows are among them and take the pieces in between.
  static constexpr int kTogether = 128 / kRows;
  static constexpr int kTurn = kLanes < kTogether ? kTogether / kLanes : 1;
  static_assert(kTileRows / kRows % kTogether == 0, "a column's pieces take every turn");
  static __device__ __forceinline__ int turn(int column) {
    return column / Src::kElements * kTurn % kTogether;
  }
  // Returns the piece of column `column` + `j`. The kElements columns from `column` on share a
  // turn; the two arguments let the compiler see that.
  __device__ __forceinline__ Piece& at(int column, int j, int patch_row) {
    const int piece = patch_row ^ turn(column);
    return unit[column * kUnits + piece / kPieces + j * kUnits].piece[piece % kPieces];
  }

  // Stages the codes of the thread's columns kFirst to kFirst + kCount - 1, whose encode scales are
  // given. Its patch begins at row kRows * patch_row and column `column` of the tile.
  template <int kFp8, typename P, int kFirst, int kCount>
  __device__ __forceinline__ void put(int patch_row, int column,
                                      const typename P::Src::Held (&v)[P::kVectors],
                                      const float (&encode_scale)[kCount]) {
    static_assert(P::kVectors == kRows && P::kRowStep == 1, "consecutive rows");
#pragma unroll
    for (int j = kFirst; j < kFirst + kCount; ++j) {
      Piece codes;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          x[i] = __fmul_rn(value_at<Src>(v[4 * w + i], j), encode_scale[j - kFirst]);
        }
        codes.word[w] = cast_pair<kFp8>(x[1], x[0]) | cast_pair<kFp8>(x[3], x[2]) << 16;
      }
      at(column, j, patch_row) = codes;
    }
  }

  // Stages the codes of the patch's infinities and NaNs over those of put(), and returns their
  // count. The thread that called put() calls this slow path.
  template <int kFp8, typename P, typename Input>
  __device__ __forceinline__ u32 mark_nonfinite(int patch_row, int column, const P& patch,
                                                const Input& input) {
    return recode_nonfinite<kFp8>(patch, input, [&](int row, int, int j, u32 code) {
      const int shift = row % 4 * 8;
      u32& word = at(column, j, patch_row).word[row / 4];
      word = (word & ~(0xffu << shift)) | code << shift;
    });
  }

  // Writes everything staged, by all threads. Call it after a barrier. The tile begins at row0 of
  // its group's rows and at col0. The copy's rows are written up to the end of their padding, for
  // which zeros are staged.
  template <typename View>
  __device__ __forceinline__ void write(const View& args, i64 row0, i64 col0) {
    // A thread takes the same unit of every kStep-th column.
    constexpr int kStep = kThreads / kUnits;
    constexpr int kTurns = kStep / Src::kElements * kTurn;
    static_assert(kThreads % kUnits == 0 && kTileCols % kStep == 0, "every thread writes as many");
    static_assert(
        kTurns % kPieces == 0 && (kTurns & (kTurns - 1)) == 0 && kStep % Src::kElements == 0,
        "a step turns whole units, and bits that no column below it has");
    const int first = static_cast<int>(threadIdx.x) / kUnits;
    const int row = static_cast<int>(threadIdx.x) % kUnits * 16;
    const int turned = turn(first);
    const bool swapped = turned % 2 != 0;
    const bool pairs_swapped = kPieces == 4 && turned % 4 >= 2;
    const int u = row / 16 ^ turned / kPieces;
    const int columns = clamp_count(args.cols - col0, kTileCols);
    const int rows = clamp_count(padded_columns(args) - row0, kTileRows);
    const i64 ld = args.ldq_transposed;
    char* p = static_cast<char*>(args.q_transposed) + start_column(args) + (col0 + first) * ld +
              row0 + row;
    const bool aligned =
        (reinterpret_cast<u64>(args.q_transposed) | static_cast<u64>(ld)) % sizeof(Unit) == 0;
    if (aligned && columns == kTileCols && rows == kTileRows) {
#pragma unroll
      for (int k = 0; k < kTileCols / kStep; ++k) {
        memory::store_16(
            p, staged(first * kUnits + (u ^ k * kTurns % kTogether / kPieces) + k * kStep * kUnits,
                      swapped, pairs_swapped));
        p += kStep * ld;
      }
      return;
    }
    if (row >= rows) return;
#pragma unroll 1
    for (int k = 0; k * kStep + first < columns; ++k) {
      const Vector codes =
          staged((first + k * kStep) * kUnits + (u ^ k * kTurns % kTogether / kPieces), swapped,
                 pairs_swapped);
      if (aligned) {
        memory::store_16(p, codes);
      } else {
        store_bytes(p, codes);
      }
      p += kStep * ld;
    }
  }

 private:
  // Returns a unit. Its neighbouring pieces may lie swapped; if it has four, its pairs may, too.
  __device__ __forceinline__ Vector staged(int index, bool swapped, bool pairs_swapped) const {
    const Unit all = unit[index];
    const auto piece = [&](int i) { return swapped ? all.piece[i ^ 1] : all.piece[i]; };
    if constexpr (kPieces == 2) {
      const Piece first = piece(0), second = piece(1);
      return {{first.word[0], first.word[1], second.word[0], second.word[1]}};
    } else {
      const u32 a = piece(0).word[0], b = piece(1).word[0];
      const u32 c = piece(2).word[0], d = piece(3).word[0];
      return pairs_swapped ? Vector{{c, d, a, b}} : Vector{{a, b, c, d}};
    }
  }
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
