// Copies of operands into a stage of the ring without TMA: all lanes of the copy warp copy 16 bytes
// at a time. Namespace tma has the functions of lib/tma.cuh and lib/tma_3d.cuh, with the same
// arguments, so that walks and scale policies name one kind of copy. copies_tma.cuh has the
// contract of the copies.
//
//   lane        0 .. 7      8 .. 15     16 .. 23    24 .. 31
//   row of box  0 (128 B)   1           2           3           then 4 .. 7, and so on
//
// Eight lanes read 128 contiguous bytes and write one line of shared memory, so that no two lanes
// use the same bank. The unit of 16 bytes u of row r is at u ^ r % 8, where ldmatrix expects it.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/cp_async.cuh"
#endif

namespace tma {

// The contents of the 128 bytes of a map. The host fills its twin, PlainMap
// (runtime/families/gemm/launch.cc). Element (x, y, z) is byte x of row y of matrix z. It exists if
// x < columns and y < rows. Columns that do not are zero in a copy.
struct PlainMap {
  const u8* base;
  i64 row_bytes;     // from one row to the next
  i64 matrix_bytes;  // from one matrix to the next
  int rows;
  int columns;
  int box_rows;
};
static_assert(sizeof(PlainMap) <= sizeof(TensorMap) && alignof(PlainMap) <= alignof(TensorMap),
              "it takes the place of a tensor map");

// Loads the map's box at (x, y, z), of 128 columns, to an address that is a multiple of 1024. The
// copies complete with the stage's. Rows that do not exist stay as they are in shared memory: what
// a product makes of them is a row or a column that D does not have. Most boxes are whole and leave
// the copy warp a quarter of the instructions.
__device__ __forceinline__ void load_3d(u32 to, const TensorMap* map, int x, int y, int z, u32) {
  const PlainMap& from = *reinterpret_cast<const PlainMap*>(map);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = lane / 8, unit = lane % 8;
  const int column = x + unit * 16;
  const u8* p = from.base + z * from.matrix_bytes + (y + row) * from.row_bytes + column;
  const u32 upper = to + static_cast<u32>(row * 128 + (unit ^ row) * 16);
  const u32 lower = (upper + 4 * 128) ^ (4 * 16);  // row + 4, where r % 8 is greater by 4
  const int end = min(from.box_rows, from.rows - y);
  if (x + 128 <= from.columns && end % 8 == 0) {
#pragma unroll 4
    for (int i = 0; i < end; i += 8) {
      cp_async::copy_16(upper + i * 128, p);
      cp_async::copy_16(lower + i * 128, p + 4 * from.row_bytes);
      p += 8 * from.row_bytes;
    }
    return;
  }
  const u32 bytes = static_cast<u32>(max(min(from.columns - column, 16), 0));
#pragma unroll 1
  for (int i = 0; i < end; i += 8) {
    if (i + row < end) cp_async::copy_16(upper + i * 128, p, bytes);
    if (i + 4 + row < end) cp_async::copy_16(lower + i * 128, p + 4 * from.row_bytes, bytes);
    p += 8 * from.row_bytes;
  }
}
__device__ __forceinline__ void load_2d(u32 to, const TensorMap* map, int x, int y, u32 full) {
  load_3d(to, map, x, y, 0, full);
}

// Loads bytes that lie in one run. The addresses and their number are multiples of 16.
__device__ __forceinline__ void load_bulk(u32 to, const void* from, u32 bytes, u32) {
#pragma unroll 1
  for (u32 at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16) {
    cp_async::copy_16(to + at, static_cast<const u8*>(from) + at);
  }
}

// A plain map needs no cache of its own.
__device__ __forceinline__ void prefetch_map(const TensorMap*) {}

// Clusters share operands, and kernels start early, only where there is TMA. These are only named.
__device__ void load_2d_multicast(u32 to, const TensorMap* map, int x, int y, u32 full, u16 mask);
__device__ void load_bulk_multicast(u32 to, const void* from, u32 bytes, u32 full, u16 mask);
__device__ void prefetch_2d(const TensorMap* map, int x, int y);

}  // namespace tma

namespace gemm::copies {

enum : int { kArrivals = 32 };  // one of each lane

__device__ __forceinline__ bool copies_here() { return true; }

__device__ __forceinline__ void announce(u32, u32) {}

__device__ __forceinline__ void close(u32 full) { cp_async::arrive(full); }

}  // namespace gemm::copies
