// The parameters of quantise kernels. Every kernel takes one struct by value. The device declares
// the same structs, and the templates assert their sizes.
#pragma once

#include <cstdint>

namespace octile {

// The only parameter of every quantise kernel but the scale update; templates/quantize/elements.cuh
// declares the same struct. Pointers are device pointers, strides count elements, and the launcher
// fills in every field (a 0 is a 0, not a default). Scales lie as the layout table says, in the
// plan's format.
struct QuantizeKernelArgs {
  const void* x = nullptr;           // [rows][ldx]
  void* q = nullptr;                 // [rows][ldq]
  void* scale = nullptr;             // runs scale_ld apart
  void* q_transposed = nullptr;      // [cols][ldq_transposed]
  void* scale_transposed = nullptr;  // runs scale_ld_transposed apart
  std::uint32_t* maxima = nullptr;   // the first pass's result
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t ldx = 0;
  std::int64_t ldq = 0;
  std::int64_t scale_ld = 0;
  std::int64_t ldq_transposed = 0;
  std::int64_t scale_ld_transposed = 0;
  std::int64_t partials = 0;      // partial maxima of a tensor: its first pass's thread blocks
  float* encode_scale = nullptr;  // given with delayed scaling, or recorded; may be null
  std::uint32_t* amax = nullptr;  // bits of fp32; raised to a tensor's amax unless null
  const std::uint32_t* skip = nullptr;  // if it points to a value other than 0, nothing is written
  const void* x_scale = nullptr;        // scales of FP8 x
  std::int64_t x_scale_ld = 0;
  // The inputs x1, x2 and x3 of a computed source, and their strides.
  const void* more[3] = {};      // NOLINT(modernize-avoid-c-arrays): as the device declares it
  std::int64_t more_ld[3] = {};  // NOLINT(modernize-avoid-c-arrays): as the device declares it
  float* rstd = nullptr;         // 1 / rms of every row, found or given; or a given factor
  float* bias_gradient = nullptr;
  float* bias_partials = nullptr;  // in the workspace
  float* tap = nullptr;            // fp32 values as the cast sees them
  // Offsets of contiguous groups, counts of masked ones, the rows of x that are gathered.
  const std::int32_t* groups_at = nullptr;
  std::int64_t groups = 0;             // gathered rows: those of x
  std::int64_t scale_group_bytes = 0;  // from one group's scales to the next's
  // A range's first element, its last row, and the column behind its last element there.
  std::int64_t range_row = 0;
  std::int64_t range_col = 0;
  std::int64_t range_last_row = 0;
  std::int64_t range_end_col = 0;
  std::uint32_t* range_amax = nullptr;      // maxima of its tensor's blocks, bits of fp32
  unsigned long long* nonfinite = nullptr;  // counts infinities and NaNs unless null
};
static_assert(sizeof(QuantizeKernelArgs) == 304);

// The only parameter of a kernel of stacked tensors; templates/quantize/elements.cuh declares the
// same struct. The steps are bytes, by which the next tensor's pointers are larger.
struct StackKernelArgs {
  QuantizeKernelArgs first;  // the arguments of the first tensor
  std::int64_t x = 0;
  std::int64_t q = 0;
  std::int64_t scale = 0;
  std::int64_t q_transposed = 0;
  std::int64_t scale_transposed = 0;
  std::int64_t x_scale = 0;
  std::int64_t maxima = 0;
  std::int64_t amax = 0;
  std::int64_t skip = 0;
};
static_assert(sizeof(StackKernelArgs) == 376);

// A row of the table of pieces; templates/quantize/pieces.cuh declares the same struct. The fields
// are those of QuantizeKernelArgs.
struct PieceTableRow {
  const void* x = nullptr;
  void* q = nullptr;
  std::uint32_t* range_amax = nullptr;
  void* scale = nullptr;
  void* scale_transposed = nullptr;
  void* q_transposed = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t scale_ld = 0;
  std::int64_t scale_ld_transposed = 0;
  std::int64_t ldq_transposed = 0;
  std::int64_t range_row = 0;
  std::int64_t range_col = 0;
  std::int64_t range_last_row = 0;
  std::int64_t range_end_col = 0;
  std::int64_t unused = 0;
};
static_assert(sizeof(PieceTableRow) == 128);

// The only parameter of a kernel of pieces; templates/quantize/pieces.cuh declares the same struct.
struct PiecesKernelArgs {
  const PieceTableRow* pieces = nullptr;  // those of the launch
  // With which thread block of the table each piece begins, and behind them where the last ends.
  const std::uint32_t* first_blocks = nullptr;
  std::int64_t count = 0;        // of pieces, at least 1
  std::int64_t first_block = 0;  // of the launch
};
static_assert(sizeof(PiecesKernelArgs) == 32);

// The only parameter of the scale update of delayed scaling; templates/quantize/scale_update.cu
// declares the same struct. Its fields are those of octile_scale_update_args.
struct ScaleUpdateKernelArgs {
  float* history = nullptr;       // [length][tensors]
  float* encode_scale = nullptr;  // [tensors]
  std::int64_t tensors = 0;
  std::int64_t length = 0;
  std::int64_t history_stride = 0;  // from one state to the next
  std::int64_t scale_stride = 0;
  int choice = 0;
  float margin_factor = 1;  // 2^-margin
  float share = 0;
  int unused = 0;
};
static_assert(sizeof(ScaleUpdateKernelArgs) == 64);

// The only parameter of the kernel that finds out if x has changed;
// templates/quantize/fingerprint.cu declares the same struct.
struct FingerprintKernelArgs {
  const void* x = nullptr;
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t row_stride = 0;     // bytes
  std::int64_t pieces_of_row = 0;  // of kFingerprintPiece bytes
  void* state = nullptr;           // octile_fingerprint, of stacked tensors one each
  int aligned = 0;                 // rows begin at multiples of 16 bytes
  int unused = 0;
  std::int64_t tensor_bytes = 0;  // from one stacked tensor to the next
};
static_assert(sizeof(FingerprintKernelArgs) == 64);

}  // namespace octile
