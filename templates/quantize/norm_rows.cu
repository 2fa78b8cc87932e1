// RMSNorm and row-wise quantisation in one read: 1x128, 1x32 and per row, a thread block a row.
//
//   y[r, c] = x[r, c] * rstd[r] * weight[c],   q = fp8(y * encode),   scale = 1 / encode
//
// A row of up to kTileCols columns stays in the registers of its thread block, in pieces of 8
// columns a thread, kThreads pieces apart; a block takes kTileRows rows, and while one is worked on
// the next comes to shared memory (cp.async; a thread reads what it copied, so no barrier). Rows
// that are longer or misaligned go piece by piece, read again for every phase, in few registers.
//
// Phases: source (from shared memory, or by kPieces loads a thread) -> sum of squares (norm.cuh,
// one barrier) -> weight (from L1, where all rows find it, four pieces at a time) -> amax (of a
// half- warp's piece by shuffles; per row one more barrier) -> scale -> cast -> output.
//
// Ladder: bf16 to e4m3, 16384x7168, one H200, of the fastest stream of the same mix; 1x128 / 1x32 /
// per row:
//   version                                         predicted  measured            verdict
//   a row a block, 256 threads, 4 columns a load    0.9        0.70 / 0.60 / 0.66  was this file
//   the next row by cp.async while one is worked    0.95       0.68 / 0.52 / 0.75  dropped
//   on, 8 rows a block, 3 blocks
//   the same, 128 threads with 14 vectors each,     -          0.71 / 0.50 / 0.79  dropped
//   4 blocks
//   8 columns a load, 56 a thread (59.6 instead     0.9        0.79 / 0.74 / 0.83  dropped
//   of 79.3 million instructions), 8 rows a block
//   4 rows, 2 rows: less of a tail                  0.85       0.83 / 0.75 / 0.89  dropped
//   the weight four pieces at a time: one by one    0.87       0.90 / 0.82 / 0.94  -
//   each was waited for (4 rows)
//   the same, 2 rows; 4 where a row is 8 KB         -          0.92 / 0.80 / 0.96  was this file
//   1x32 scales of a row from one address           0.85       0.91 / 0.85 / 0.96  was this file
//   what no row changes is not found again, the     0.95       0.92 / 0.95 / 0.96  -
//   sum's last folds serve both halves of a warp;
//   1x32 with 5 blocks, too
//   fp32 scales of two rows in one store            0.945      0.94 / 0.94 / 0.96  this file
//   3, 4, 5, 8, 25 rows (whole waves of blocks: 5,  0.96       0.91, 0.90, 0.88,   dropped
//   25)                                                        0.85, 0.79 / -
//   256 threads, 4 pieces each                      0.95       0.54 / 0.54 / -     dropped
//   blocks that stay, pairs of rows a grid apart    0.96       0.86 / 0.85 / 0.85  dropped
//   the same, single rows                           -          0.86 / 0.87 / 0.87  dropped
//   1x32 scales of a row gathered, in one store     0.97       -    / 0.94 / -     dropped
//   both rows asked for at once / so, 4 rows        0.955      0.92, 0.90 / 0.93,  dropped (0.941,
//                                                              0.91 / 0.945, 0.93  0.951, 0.962
//                                                              beside)
//   6 blocks, 32 bytes of stack                     -          0.83 / 0.86 / 0.94  dropped
// The last since a row costs a warp about 250 instructions whatever it holds of it: the sum, its
// root, the scales. More rows lose at the tail, which no count of waves explains.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_norm_rows_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 1
#define OCTILE_DEFAULT_TILE_COLS 8192
#include "quantize/default_prologue.cuh"
#endif

namespace norm_rows {

using Src = quantize::Computed;
using Rule = quantize::Rule<Src, cfg::kTargetType, cfg::kScaleFormat, cfg::kOcpFloor>;
using E = cfg::Expression;
using quantize::Vector;

constexpr bool kPerRow = cfg::kGranularity == quantize::kPerRow;
constexpr bool kLong = cfg::kGranularity == quantize::k1x128;
constexpr int kBlock = kLong ? 128 : 32;        // elements per scale, unless a row has one
constexpr int kPieceCols = 2 * Src::kElements;  // columns of a thread that touch
constexpr int kLanes = kBlock / kPieceCols;     // that share a scale
constexpr int kLongLanes = 128 / kPieceCols;
constexpr int kStep = cfg::kThreads * kPieceCols;  // columns of a piece of the block
constexpr int kPieces = cfg::kTileCols / kStep;    // of a thread
constexpr int kVectors = 2 * kPieces;
static_assert(kPieces * kStep == cfg::kTileCols, "whole pieces of a row");

// A row's pieces in the registers: kCount of each thread. kOneRowAfterAnother: of a tile's rows in
// their order.
template <int kCount, bool kOneRowAfterAnother>
struct Pieces {
  static constexpr bool kInOrder = kOneRowAfterAnother;
  static constexpr int kPieces = kCount;
  static constexpr int kVectors = 2 * kCount;
  static constexpr int kOwned = kCount > 4 ? 8 : kCount > 2 ? 4 : kCount;
  using Patch = quantize::Patch<Src, kVectors, kVectors, kStep, 1, 2>;
  using Values = quantize::FusedInput<Patch, quantize::OnlyInput<E, 0>>;
  using Weight = quantize::FusedInput<Patch, quantize::OnlyInput<E, 1>>;
  using Output = quantize::RowOutput<Patch>;
  using X = Vector[kVectors];
};
using Row = Pieces<kPieces, true>;
using One = Pieces<1, false>;

constexpr int kLoads = Row::Values::kRowLoads;  // of a piece

struct Shared {
  // The raw pieces of the next row, where there is one and they fit into static shared memory with
  // the rest. A thread copies and reads its own alone.
  static constexpr int kWords = kPieces * kLoads * cfg::kThreads;
  static constexpr bool kAhead = cfg::kTileRows > 1 && kWords * sizeof(Vector) <= 40 * 1024;
  Vector next[kAhead ? kWords : 1];
  float squares[2][cfg::kThreads * 2];  // in turn: a barrier lies between this row's and the last's
  u32 maxima[cfg::kThreads / 32];
};

__device__ __forceinline__ float encode_of(u32 magnitude) {
  return Rule::encode(magnitude, __uint_as_float(cfg::kAmaxEpsilonBits));
}
__device__ __forceinline__ u32 normed(u32 x, u32 weight, float rstd) {
  return __float_as_uint(
      E::value<0>(__uint_as_float(x), __uint_as_float(weight), rstd, 0.0f, 0.0f));
}

// The source, for the slow path.
template <typename P>
struct Recomputed {
  typename P::Values values;
  typename P::Weight weight;
  float rstd;
  __device__ __forceinline__ u32 raw(int row, int g, int element) const {
    return normed(values.raw(row, g, element), weight.raw(row, g, element), rstd);
  }
};

__device__ __forceinline__ void norm_vector(Vector& x, const Vector& weight, float rstd) {
#pragma unroll
  for (int e = 0; e < Src::kElements; ++e) {
    x.word[e] = normed(x.word[e], weight.word[e], rstd);
  }
}

// Where all pieces are whole. The weight comes from L1, four pieces at a time: beside x there are
// no registers for more, and one by one each would be waited for.
template <typename P>
__device__ __forceinline__ void norm_whole(const typename P::Weight& weight, float rstd,
                                           typename P::X& x) {
  constexpr int kTogether = 4;
#pragma unroll
  for (int first = 0; first < P::kPieces; first += kTogether) {
    Vector raw[kTogether][1][kLoads];
#pragma unroll
    for (int i = 0; i < kTogether * kLoads && first + i / kLoads < P::kPieces; ++i) {
      const char* const p = weight.at(0, 0, weight.col + (first + i / kLoads) * kStep);
      raw[i / kLoads][0][i % kLoads] = memory::load_16(p + i % kLoads * sizeof(Vector));
    }
#pragma unroll
    for (int i = 0; i < kTogether && first + i < P::kPieces; ++i) {
      Vector both[2];
      P::Weight::template compute_piece<0>(raw[i], 0.0f, both[0], both[1]);
      norm_vector(x[2 * (first + i)], both[0], rstd);
      norm_vector(x[2 * (first + i) + 1], both[1], rstd);
    }
  }
}

// x becomes y. Beyond the last column x is zero and stays so: not by a product, for rstd may be
// infinite. kAligned: the weight is known to be.
template <typename P, bool kAligned>
__device__ __forceinline__ void norm(const quantize::Args& args, const typename P::Patch& patch,
                                     float rstd, typename P::X& x) {
  const typename P::Weight weight(args, patch);
  if ((kAligned || weight.aligned) && patch.whole()) {
    norm_whole<P>(weight, rstd, x);
  } else {
#pragma unroll
    for (int i = 0; i < P::kPieces; ++i) {
      if ((kAligned || weight.aligned) && patch.whole(2 * i + 1)) {
        Vector both[2];
        weight.load_piece(0, i, both);
        norm_vector(x[2 * i], both[0], rstd);
        norm_vector(x[2 * i + 1], both[1], rstd);
      } else if constexpr (P::kPieces == 1) {
#pragma unroll
        for (int g = 0; g < 2; ++g) {
          const int count = patch.elements(g);
          norm_vector(x[g], weight.gather(0, g, count), rstd);
#pragma unroll
          for (int e = 0; e < Src::kElements; ++e) {
            if (e >= count) x[g].word[e] = 0;
          }
        }
      }
    }
  }
  if constexpr (E::kTap) quantize::write_tap(args, patch, x);
}

template <typename P>
__device__ __forceinline__ u32 of_piece(const u32 (&magnitudes)[P::kVectors], int piece) {
  return reduce::max(magnitudes[2 * piece], magnitudes[2 * piece + 1]);
}
template <typename P>
__device__ __forceinline__ u32 largest(const u32 (&magnitudes)[P::kVectors]) {
  u32 top = 0;
#pragma unroll
  for (int i = 0; i < P::kVectors; ++i) top = reduce::max(top, magnitudes[i]);
  return top;
}

// 1x128: which of its pieces' scales a lane derives, and where it lies. Row by row these are
// neighbours of one run.
template <typename P>
struct LongOwner {
  u32 lane = threadIdx.x % 32;
  int piece = reduce::owned_index<P::kOwned, kLongLanes>(lane);
  int block;
  char* place;
  bool stores;
  u32 before;  // what is stored of the row before this one, where pairs leave together

  __device__ __forceinline__ LongOwner(const quantize::Args& args, const typename P::Patch& patch) {
    // Of the block's first column: the lane's own may lie beyond the last one.
    const i64 first = patch.col - lane % kLongLanes * kPieceCols + piece * kStep;
    block = static_cast<int>(first / 128);
    place = static_cast<char*>(args.scale) +
            runs_of(args).index(block, patch.row) * (Rule::kPacked ? 1 : Rule::kStepBytes);
    stores = static_cast<int>(lane) == reduce::owner_lane<P::kOwned, kLongLanes>(lane, piece) &&
             piece < P::kPieces && first < args.cols;
  }
  __device__ __forceinline__ void advance() { place += Rule::kStepBytes; }
  __device__ __forceinline__ void store(const quantize::Args& args, i64 row, float encode) {
    if (!stores) return;
    const bool last = row + 1 >= args.rows;
    if constexpr (kInPairs) {
      if (row % 2 == 0 && !last) {
        before = Rule::word(encode);
        return;
      }
      if (row % 2 != 0) {
        const u64 bits = reinterpret_cast<u64>(args.scale) | static_cast<u64>(args.scale_ld) * 4;
        if (!last && bits % 8 == 0) return memory::store_8(place - 4, before, Rule::word(encode));
        memory::store_4(place - 4, before);
      }
    }
    if (!Rule::kPacked && !last) {
      Rule::store(place, 0, encode);
    } else {  // padding may follow
      runs_of(args).store(block, row, encode);
    }
  }

 private:
  // fp32 scales of neighbouring rows, which are neighbours of a run.
  static constexpr bool kInPairs =
      Rule::kStepBytes == 4 && !Rule::kPacked && cfg::kTileRows % 2 == 0 && P::kInOrder;
  static __device__ __forceinline__ quantize::ScaleRuns<Rule> runs_of(const quantize::Args& args) {
    return {args.scale, (args.cols + 127) / 128, args.rows, args.scale_ld};
  }
};

// Scales and codes, `row_encode` being the scale of the whole row where it has one.
template <typename P>
__device__ __forceinline__ void give(const quantize::Args& args, const typename P::Patch& patch,
                                     LongOwner<P>& owner, const typename P::X& y,
                                     const u32 (&magnitudes)[P::kVectors], float row_encode,
                                     float rstd, bool nonfinite) {
  const typename P::Output output(args, patch);
  if constexpr (kPerRow) {
    output.template write<cfg::kTargetType>(patch, y, [&](int) { return row_encode; });
  } else if constexpr (kLong) {
    u32 tops[P::kOwned];
#pragma unroll
    for (int i = 0; i < P::kOwned; ++i) tops[i] = i < P::kPieces ? of_piece<P>(magnitudes, i) : 0;
    const float encode = encode_of(reduce::scatter_max<P::kOwned, kLongLanes>(tops, owner.lane));
    owner.store(args, patch.row, encode);
    float given = 1.0f;
    output.template write<cfg::kTargetType>(patch, y, [&](int i) {
      if (i % 2 != 0) return given;  // its neighbour's too
      const int lane = reduce::owner_lane<P::kOwned, kLongLanes>(owner.lane, i / 2);
      given = __shfl_sync(0xffffffffu, encode, lane);
      return given;
    });
  } else {
    const i64 blocks = (args.cols + 31) / 32;
    const quantize::ScaleRuns<Rule, cfg::kSwizzled> scales{args.scale, args.rows, blocks,
                                                           args.scale_ld};
    float encode[P::kPieces];
#pragma unroll
    for (int i = 0; i < P::kPieces; ++i) {
      encode[i] = encode_of(reduce::lanes_max<kLanes>(of_piece<P>(magnitudes, i)));
    }
    if (owner.lane % kLanes == 0) {
      scales.template store_apart<kStep / 32>(patch.row, patch.col / 32, encode);
    }
    output.template write<cfg::kTargetType>(patch, y, [&](int i) { return encode[i / 2]; });
  }
  if (nonfinite) {
    using Again = Recomputed<P>;
    const Again source{typename P::Values(args, patch), typename P::Weight(args, patch), rstd};
    quantize::count_nonfinite(args,
                              output.template mark_nonfinite<cfg::kTargetType>(patch, source));
  }
}

// Per row: amax of the block -> scale, which its first thread stores.
__device__ __forceinline__ float find_scale(const quantize::Args& args, i64 row, u32 top,
                                            u32* partials) {
  top = reduce::block_max<cfg::kThreads>(top, partials);
  const float encode = encode_of(top);
  if (threadIdx.x == 0) {
    const quantize::ScaleRuns<Rule> scales{args.scale, 1, args.rows, args.scale_ld};
    scales.store(0, row, encode);
  }
  return encode;
}

__device__ __forceinline__ float store_rstd(const quantize::Args& args, i64 row, float squares) {
  const float rstd =
      quantize::reciprocal_rms(squares, args.cols, __uint_as_float(cfg::kNormEpsilonBits));
  if (threadIdx.x == 0) memory::store_4(args.rstd + row, __float_as_uint(rstd));
  return rstd;
}

constexpr int kStepBytes = kStep * Row::Values::In::kElementBytes;

// Sends for the first `pieces` of the thread's of the row at x.
__device__ __forceinline__ void ask(Vector* next, const char* x, int pieces) {
#pragma unroll
  for (int i = 0; i < kPieces * kLoads; ++i) {
    memory::copy_16(next + i * cfg::kThreads + threadIdx.x,
                    x + i / kLoads * kStepBytes + i % kLoads * sizeof(Vector), i / kLoads < pieces);
  }
  memory::commit_copies();
}

// `left` rows from `row` on where each fits into the registers and every piece is whole or beyond
// the last column: while one is worked on the next is on its way. What does not change from row to
// row is held as the counts and addresses that the loop uses, of which the compiler is not to know
// how they came about: it would find them again in every row.
__device__ __forceinline__ void stream_rows(const quantize::Args& args, Shared& shared, i64 row,
                                            int left, i64 first) {
  Row::Patch patch(args, row, first);
  patch.rows = 1;
  patch.cols = static_cast<int>(hide_from_optimizer(static_cast<u32>(patch.cols)));
  const int pieces = (patch.cols + kStep - kPieceCols) / kStep;  // of the thread's, that are there
  Row::Values x_row(args, patch);
  if constexpr (Shared::kAhead) {
#pragma unroll
    for (int i = 0; i < kPieces * kLoads; ++i) {
      shared.next[i * cfg::kThreads + threadIdx.x] = {{0, 0, 0, 0}};  // beyond the last column
    }
    ask(shared.next, x_row.at(0, 0, patch.col), pieces);
  }
  LongOwner<Row> owner(args, patch);
  float* squares_of = shared.squares[0];
#pragma unroll 1
  while (true) {
    if constexpr (Shared::kAhead) memory::wait_copies<0>();
    Vector raw[kPieces][1][kLoads];
#pragma unroll
    for (int i = 0; i < kPieces * kLoads; ++i) {
      Vector& one = raw[i / kLoads][0][i % kLoads];
      if constexpr (Shared::kAhead) {
        one = shared.next[i * cfg::kThreads + threadIdx.x];
      } else {
        one = {{0, 0, 0, 0}};
        const char* const p =
            x_row.at(0, 0, patch.col) + i / kLoads * kStepBytes + i % kLoads * sizeof(Vector);
        if (i / kLoads < pieces) one = memory::load_16(p);
      }
    }
    Row::X x;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      Row::Values::compute_piece<0>(raw[i], 0.0f, x[2 * i], x[2 * i + 1]);
    }
    ++x_row.row;
    if constexpr (Shared::kAhead) {
      ask(shared.next, x_row.at(0, 0, patch.col), left > 1 ? pieces : 0);
    }
    quantize::RowSquares<cfg::kThreads, kVectors, 2> squares;
    squares.add(x);
    const float rstd = store_rstd(args, patch.row, squares.total(squares_of));
    squares_of = squares_of == shared.squares[0] ? shared.squares[1] : shared.squares[0];
    norm<Row, true>(args, patch, rstd, x);
    u32 magnitudes[kVectors];
    const bool nonfinite = quantize::measure<Src>(x, magnitudes);
    const float encode =
        kPerRow ? find_scale(args, patch.row, largest<Row>(magnitudes), shared.maxima) : 1.0f;
    give<Row>(args, patch, owner, x, magnitudes, encode, rstd, nonfinite);
    if (--left == 0) return;
    ++patch.row;
    owner.advance();
  }
}

// A piece of any row, in few registers.
__device__ __forceinline__ One::Patch load_one(const quantize::Args& args, i64 row, i64 col,
                                               One::X& x) {
  const One::Patch patch(args, row, col + static_cast<i64>(threadIdx.x) * kPieceCols);
  One::Values(args, patch).load_edge(patch, x);
  return patch;
}

// Any row, piece by piece, read again for every phase: misaligned ones and those too long.
__device__ __forceinline__ void norm_row(const quantize::Args& args, Shared& shared, i64 row) {
  One::X x;
  u32 magnitudes[One::kVectors];
  quantize::RowSquares<cfg::kThreads, 2 * (quantize::kRowSums / cfg::kThreads / 2), 2> squares;
  int piece = 0;
#pragma unroll 1
  for (i64 col = 0; col < args.cols; col += kStep, ++piece) {
    load_one(args, row, col, x);
    squares.add_piece(piece, x[0], x[1]);
  }
  const float rstd = store_rstd(args, row, squares.total(shared.squares[0]));
  float encode = 1.0f;
  if constexpr (kPerRow) {
    u32 top = 0;
#pragma unroll 1
    for (i64 col = 0; col < args.cols; col += kStep) {
      const One::Patch patch = load_one(args, row, col, x);
      norm<One, false>(args, patch, rstd, x);
      quantize::measure<Src>(x, magnitudes);
      top = reduce::max(top, largest<One>(magnitudes));
    }
    encode = find_scale(args, row, top, shared.maxima);
  }
#pragma unroll 1
  for (i64 col = 0; col < args.cols; col += kStep) {
    const One::Patch patch = load_one(args, row, col, x);
    norm<One, false>(args, patch, rstd, x);
    const bool nonfinite = quantize::measure<Src>(x, magnitudes);
    LongOwner<One> owner(args, patch);
    give<One>(args, patch, owner, x, magnitudes, encode, rstd, nonfinite);
  }
  __syncthreads();  // before the next row's squares
}

}  // namespace norm_rows

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ quantize::Args args) {
  using namespace norm_rows;
  wait_for_previous_kernel();
  if (quantize::skipped(args)) return;
  __shared__ Shared shared;
  const i64 begin = static_cast<i64>(blockIdx.x) * cfg::kTileRows;
  const i64 end = begin + cfg::kTileRows < args.rows ? begin + cfg::kTileRows : args.rows;
  const i64 first = static_cast<i64>(threadIdx.x) * kPieceCols;
  const Row::Patch patch(args, begin, first);
  if (Row::Values(args, patch).aligned && Row::Weight(args, patch).aligned &&
      args.cols % kPieceCols == 0 && args.cols <= cfg::kTileCols) {
    stream_rows(args, shared, begin, static_cast<int>(end - begin), first);
    return;
  }
#pragma unroll 1
  for (i64 row = begin; row < end; ++row) norm_row(args, shared, row);
}
