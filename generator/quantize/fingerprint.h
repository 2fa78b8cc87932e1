// How the bytes of a tensor are counted for its fingerprint, by templates/quantize/fingerprint.cu
// and by the reference.
#pragma once

#include <cstdint>

#include "generator/core/types.h"
#include "generator/quantize/grid.h"
#include "generator/quantize/kernel_args.h"

namespace octile {

struct FingerprintRows {
  std::int64_t rows = 0;
  std::int64_t bytes = 0;   // of a row
  std::int64_t stride = 0;  // bytes from one row to the next
};

// Returns the rows whose 16-byte words are counted. Rows without a gap between them are one row, so
// that no word but the last one is a part.
constexpr FingerprintRows fingerprint_rows(std::int64_t rows, std::int64_t bytes,
                                           std::int64_t stride) {
  if (stride != bytes) return {rows, bytes, stride};
  return {1, rows * bytes, rows * bytes};
}

// Returns the kernel's arguments but for its state. x is aligned to its element.
inline FingerprintKernelArgs fingerprint_args(const void* x, std::int64_t rows, std::int64_t bytes,
                                              std::int64_t stride) {
  const FingerprintRows counted = fingerprint_rows(rows, bytes, stride);
  FingerprintKernelArgs args;
  args.x = x;
  args.rows = counted.rows;
  args.row_bytes = counted.bytes;
  args.row_stride = counted.stride;
  args.pieces_of_row = ceil_div(counted.bytes, std::int64_t{kFingerprintPiece});
  const bool rows_aligned = counted.rows == 1 || counted.stride % 16 == 0;
  args.aligned = reinterpret_cast<std::uintptr_t>(x) % 16 == 0 && rows_aligned ? 1 : 0;
  return args;
}

}  // namespace octile
