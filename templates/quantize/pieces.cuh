// Pieces: flat ranges of many tensors in one launch. A table has a row for each piece, and a list
// says with which thread block each piece begins. A thread block enters its piece and does there
// what the kernel of one range or tensor does (range_amax.cu, range_scales.cu, range_cast.cu,
// transpose.cu).
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/elements.cuh"
#endif

namespace quantize {

// PieceTableRow on the host describes each field.
struct Piece {
  const void* x;
  void* q;
  u32* range_amax;
  void* scale;
  void* scale_transposed;
  void* q_transposed;
  i64 rows, cols;
  i64 scale_ld, scale_ld_transposed, ldq_transposed;
  i64 range_row, range_col, range_last_row, range_end_col;
  i64 unused;
};
static_assert(sizeof(Piece) == 128, "PieceTableRow has 128 bytes");

// The only parameter of a kernel of pieces; PiecesKernelArgs on the host.
struct PiecesArgs {
  const Piece* pieces;      // those of the launch
  const u32* first_blocks;  // with which thread block of the table each begins
  i64 count;                // of pieces, at least 1
  i64 first_block;          // of the launch
};
static_assert(sizeof(PiecesArgs) == 32, "PiecesKernelArgs has 32 bytes");

// Returns the last piece that begins with thread block `block` or before it. That one is not empty,
// because an empty piece begins where the next one does. All 32 lanes call it: each looks at one of
// 32 pieces at a time, so that 1024 pieces take two loads.
__device__ __forceinline__ u32 piece_of(const PiecesArgs& args, u32 block) {
  u32 first = 0, count = static_cast<u32>(args.count);
  const u32 lane = threadIdx.x % 32;
#pragma unroll 1
  while (count > 1) {
    const u32 step = (count + 31) / 32;
    const u32 at = step * lane;
    const bool begun = at < count && memory::load_4(args.first_blocks + first + at) <= block;
    const u32 passed = step * __reduce_max_sync(0xffffffffu, begun ? lane : 0u);
    first += passed;
    count = count - passed < step ? count - passed : step;
  }
  return first;
}

template <>
struct Entered<PiecesArgs> {
  Args args;
  u64 block;
  __device__ __forceinline__ explicit Entered(const PiecesArgs& all) : args() {
    const u32 of_table = static_cast<u32>(all.first_block) + blockIdx.x;
    const u32 index = piece_of(all, of_table);
    block = of_table - memory::load_4(all.first_blocks + index);
    const char* const row = reinterpret_cast<const char*>(all.pieces + index);
    u64 field[sizeof(Piece) / 8];
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Piece) / 16); ++i) {
      const Vector v = memory::load_16(row + 16 * i);
      field[2 * i] = static_cast<u64>(v.word[1]) << 32 | v.word[0];
      field[2 * i + 1] = static_cast<u64>(v.word[3]) << 32 | v.word[2];
    }
    args.x = reinterpret_cast<const void*>(field[0]);
    args.q = reinterpret_cast<void*>(field[1]);
    args.range_amax = reinterpret_cast<u32*>(field[2]);
    args.scale = reinterpret_cast<void*>(field[3]);
    args.scale_transposed = reinterpret_cast<void*>(field[4]);
    args.q_transposed = reinterpret_cast<void*>(field[5]);
    args.rows = static_cast<i64>(field[6]);
    args.cols = static_cast<i64>(field[7]);
    args.scale_ld = static_cast<i64>(field[8]);
    args.scale_ld_transposed = static_cast<i64>(field[9]);
    args.ldq_transposed = static_cast<i64>(field[10]);
    args.range_row = static_cast<i64>(field[11]);
    args.range_col = static_cast<i64>(field[12]);
    args.range_last_row = static_cast<i64>(field[13]);
    args.range_end_col = static_cast<i64>(field[14]);
    args.ldx = args.cols;  // pieces have no gaps
    args.x_scale = args.scale;
    args.x_scale_ld = args.scale_ld;
  }
};

}  // namespace quantize
