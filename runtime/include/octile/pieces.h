/* Octile pieces: quantises the weights of a sharded optimizer, so that codes are sent instead of
 * bf16.
 *
 * Every rank holds a flat range of the elements of each weight, cut anywhere: whole rows (FSDP2) or
 * parts of a flat buffer (ZeRO-1). The result has the bits of quantising the whole weights, however
 * they are cut. One call runs a step for hundreds of weights in one launch:
 *
 *   1. zero the maxima of all weights, which are best in one buffer
 *   2. OCTILE_PIECES_AMAX       raises the maxima by this rank's ranges
 *   3. all-reduce the maxima (MAX) over the ranks that share the weights
 *   4. OCTILE_PIECES_SCALES     makes the scales of all weights; no rank sends scales
 *   5. OCTILE_PIECES_CAST       quantises this rank's ranges
 *   6. all-gather the codes, a byte an element
 *   7. OCTILE_PIECES_TRANSPOSE  makes the transposed copies, which input gradients read
 *
 * The rules and types of octile/octile.h apply here. docs/sharding.md has the whole step.
 */
#ifndef OCTILE_PIECES_H_
#define OCTILE_PIECES_H_

#include "octile/octile.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct octile_pieces octile_pieces;

/* Common to all pieces: the fields of octile_quantize_desc of the same names. */
typedef struct octile_pieces_desc {
  size_t struct_size;
  octile_dtype x_dtype;           /* OCTILE_BF16, OCTILE_FP16 or OCTILE_FP32 */
  octile_dtype via_dtype;         /* OCTILE_BF16 rounds fp32 x to bf16 first; otherwise 0 */
  octile_dtype q_dtype;           /* OCTILE_E4M3 or OCTILE_E5M2 */
  octile_granularity granularity; /* OCTILE_SCALE_PER_TENSOR, OCTILE_SCALE_128X128 or
                                     OCTILE_SCALE_32X32, whose transposed copies have the same
                                     scales */
  octile_scale_format scale_format;
  float amax_epsilon;
  octile_e8m0_rounding e8m0_rounding;
  int32_t reserved; /* 0 */
} octile_pieces_desc;

/* A range of one weight. Memory without gaps: [rows][cols]. Arrays may be null if the range, or the
 * weight, has no elements. */
typedef struct octile_piece {
  size_t struct_size;
  int64_t rows, cols;     /* of the whole weight, 0 to 2147483647 each */
  int64_t start, length;  /* the range's first element in [rows][cols], and its elements */
  const void* x;          /* the range's first element; length elements, aligned to one */
  void* q;                /* codes of the range, length bytes; may lie in the buffer of a gather */
  float* amax;            /* largest finite |x| of every block of the whole weight, laid out as the
                             granularity's fp32 scales (32x32: as many fp32 as scales) */
  void* scale;            /* of the whole weight, as octile_quantized_layout_query says */
  void* scale_transposed; /* the same for the transposed copy; null: not written */

  /* For OCTILE_PIECES_TRANSPOSE; null: the piece has no such step. */
  const void* q_gathered; /* codes of the whole weight, [rows][cols] */
  void* q_transposed;     /* [cols][roundup(rows,16)]; needs q_gathered and scale_transposed */
} octile_piece;

/* The values are part of the ABI. */
typedef enum octile_pieces_step {
  OCTILE_PIECES_AMAX = 1,     /* reads x, raises amax */
  OCTILE_PIECES_SCALES = 2,   /* reads amax, writes scale and scale_transposed */
  OCTILE_PIECES_CAST = 3,     /* reads x and amax, writes q */
  OCTILE_PIECES_TRANSPOSE = 4 /* reads q_gathered and scale, writes q_transposed and
                                 scale_transposed */
} octile_pieces_step;

/* Makes the pieces of a rank: checks each, compiles the kernels of all steps, and copies a table of
 * the pieces to the device, 256 bytes a piece. Every run uses these pointers; only the contents
 * behind them may change. pieces: an array of `count` structs, 1 to 1048576, at distances of
 * struct_size. It is not used after the call. device: as for octile_gemm_plan_create; with the name
 * of a device the kernels are only compiled. Errors: INVALID_ARGUMENT, which names the piece and
 * its field; UNSUPPORTED, NO_DRIVER, OUT_OF_MEMORY, COMPILE_FAILED. */
OCTILE_API octile_status octile_pieces_create(octile_library* library, const char* device,
                                              const octile_pieces_desc* desc,
                                              const octile_piece* pieces, int64_t count,
                                              octile_pieces** out);

/* Enqueues one step for pieces first to first + count - 1, in one launch. So a model's weights may
 * be cast and gathered bucket by bucket. A call takes no lock, allocates nothing, and is legal
 * while the stream captures. Pieces of one call must not share memory, except memory that is only
 * read. Errors: INVALID_ARGUMENT, DEVICE_ERROR. */
OCTILE_API octile_status octile_pieces_run(octile_pieces* pieces, octile_pieces_step step,
                                           int64_t first, int64_t count, void* stream);

/* Destroys pieces; null is a no-op. No call may be using them, and work that was enqueued must have
 * ended, because it reads the table. */
OCTILE_API octile_status octile_pieces_destroy(octile_pieces* pieces);

#ifdef __cplusplus
}
#endif

#endif /* OCTILE_PIECES_H_ */
