/* Octile layers: a linear layer, or the linear layers of a group of experts, under a recipe.
 *
 *   forward    Y[m,n]    = X[m,k] W[n,k]^T + bias[n]
 *   backward   dX[m,k]   = dY[m,n] W[n,k]
 *              dW[n,k] (+)= dY[m,n]^T X[m,k]
 *              db[n]     = the sums of dY's columns
 *
 * A recipe defines the FP8 types of X, W and dY. A layer has the quantisers and GEMMs of these
 * passes. One call runs forward, and one runs backward.
 *
 * A program makes a layer from a description (octile_layer_create), prepares it for the expected
 * token counts (octile_layer_prepare), and queries the memory that calls need
 * (octile_layer_copy_layout, octile_layer_workspace_size). Then it runs octile_layer_forward and
 * octile_layer_backward. The caller owns all memory. A layer holds no tensor, so all layers of a
 * model with the same description may use one handle.
 *
 * The rules of octile/octile.h apply here. A call that returns INVALID_ARGUMENT, UNSUPPORTED,
 * NOT_PREPARED or CAPTURING has enqueued nothing and does not change its outputs. A call that
 * returns OUT_OF_MEMORY or DEVICE_ERROR may have written FP8 copies, Y, dX, the bias gradient and
 * maxima. It has not added to dW, which is written last, so the call may be repeated.
 */
#ifndef OCTILE_LAYERS_H_
#define OCTILE_LAYERS_H_

#include "octile/octile.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct octile_layer octile_layer;

/* ---- the layer ------------------------------------------------------------------------------- */

typedef struct octile_layer_desc {
  size_t struct_size;
  const char* recipe; /* "blockwise", "blockwise_hybrid", "tensorwise", "delayed", "rowwise" or
                         "mxfp8"; NAME:f32 for scales that are not powers of two (docs/layers.md) */
  int64_t n;          /* output features, a multiple of 16 above 0 */
  int64_t k;          /* input features, a multiple of 16 above 0 */
  int64_t experts; /* 1 to 1024: W is [experts][n][k], and tokens are in contiguous groups, one for
                      each expert (octile_layer_forward_args.group_offsets); 0: a linear layer */

  /* OCTILE_BF16, OCTILE_FP16 or OCTILE_FP32. */
  octile_dtype dtype;                 /* of X, Y, dY and dX */
  octile_dtype weight_dtype;          /* of W as it is trained; 0: dtype */
  octile_dtype weight_gradient_dtype; /* of dW; 0: weight_dtype */
  int32_t accumulate;                 /* nonzero: backward adds to dW, which is not fp16 */
  octile_dtype bias_dtype;            /* OCTILE_BF16 or OCTILE_FP32; 0: no bias, as with experts */

  int32_t sentry;  /* nonzero: calls report results that are not finite */
  int64_t history; /* steps whose maxima are stored, 1 to 65536. Needed for "delayed". With
                      "tensorwise" calls record maxima if it is above 0, for use by a layer of
                      "delayed". Other recipes: 0 */
} octile_layer_desc;

/* Makes a layer with all its plans, for every token count; nothing is compiled yet. device: as for
 * octile_gemm_plan_create. If a recipe has only a forward pass, such as experts of "rowwise", the
 * layer is made and its backward pass is UNSUPPORTED. Errors: UNSUPPORTED, NO_DRIVER. */
OCTILE_API octile_status octile_layer_create(octile_library* library, const char* device,
                                             const octile_layer_desc* desc, octile_layer** layer);
/* Destroys a layer; null is a no-op. No call may be using it. Work already launched is
 * unaffected. */
OCTILE_API octile_status octile_layer_destroy(octile_layer* layer);

/* ---- uses ------------------------------------------------------------------------------------ */

/* The uses of a layer's calls, as a set of bits. 0 is inference, in which each call quantises W
 * into its workspace. */
typedef enum octile_layer_use {
  OCTILE_LAYER_KEEP_X = 1,          /* forward writes X's transposed copy, which backward reads;
                                       otherwise backward quantises X again from its source */
  OCTILE_LAYER_KEEP_W = 2,          /* W's copies are in the caller's memory over several calls: the
                                       row-wise one, and with INPUT_GRADIENT both, from one read */
  OCTILE_LAYER_INPUT_GRADIENT = 4,  /* backward writes dX */
  OCTILE_LAYER_WEIGHT_GRADIENT = 8, /* backward writes dW */
  OCTILE_LAYER_BIAS_GRADIENT = 16,  /* backward writes db */

  /* Passes that octile_layer_prepare, octile_layer_problems and octile_layer_workspace_size leave
   * out, for programs that handle one pass at a time. With both, only octile_layer_update_scales
   * and octile_layer_quantize of W are left: KEEP_W stands for the row-wise copy, INPUT_GRADIENT
   * for the transposed one, and both together for one read that makes both. */
  OCTILE_LAYER_WITHOUT_FORWARD = 32,  /* octile_layer_forward is not called */
  OCTILE_LAYER_WITHOUT_BACKWARD = 64, /* octile_layer_backward is not called */

  OCTILE_LAYER_COMPARE_W = 128,  /* with KEEP_W: calls get W's fingerprint, and quantise W if it has
                                    changed */
  OCTILE_LAYER_CURRENT_DY = 256, /* backward gets dY's copies as CURRENT; no BIAS_GRADIENT */

  OCTILE_LAYER_HELD_W = 512 /* W is CODES, so no call quantises it; not with KEEP_W. UNSUPPORTED
                               unless the recipe's W has 128x128 scales or one scale */
} octile_layer_use;

/* Compiles or finds, and loads, exactly the kernels that calls with these uses launch for lo..hi
 * tokens (both included, 0 <= lo <= hi), in parallel. Idempotent, and legal while streams capture
 * (octile_plan_prepare). A layer of "delayed" that keeps X or has a gradient is prepared for
 * octile_layer_update_scales, too.
 * Errors: UNSUPPORTED, NO_COMPILER, COMPILE_FAILED, OFFLINE, DEVICE_ERROR. */
OCTILE_API octile_status octile_layer_prepare(octile_layer* layer, int64_t lo, int64_t hi,
                                              uint32_t uses);
/* Does the same with options. OCTILE_PREPARE_TUNE searches the layer's GEMMs and quantisers as
 * octile_plan_prepare_with does for a plan; options->tune_seconds is for all of them. ASYNC is
 * INVALID_ARGUMENT. options: null for all defaults. Errors: as octile_layer_prepare, CAPTURING. */
OCTILE_API octile_status octile_layer_prepare_with(octile_layer* layer, int64_t lo, int64_t hi,
                                                   uint32_t uses,
                                                   const octile_prepare_options* options);

/* Writes the canonical texts of the problems that octile_layer_prepare prepares for these uses, one
 * a line, to be compiled ahead. buffer and size: as for octile_plan_problem.
 * Errors: UNSUPPORTED. */
OCTILE_API octile_status octile_layer_problems(octile_layer* layer, uint32_t uses, char* buffer,
                                               size_t* size);

/* ---- sizes ----------------------------------------------------------------------------------- */

/* The three tensors that are quantised. */
typedef enum octile_layer_tensor {
  OCTILE_LAYER_X = 0,
  OCTILE_LAYER_W = 1,
  OCTILE_LAYER_DY = 2
} octile_layer_tensor;

/* Writes the layout of a tensor's FP8 copy: of [tokens, k], [n, k] or [tokens, n], or transposed.
 * The copies of all experts' W follow each other, and data_rows, data_bytes, scale_rows and
 * scale_bytes are for all of them. X and dY of experts are laid out as octile_plan_quantized_layout
 * says for contiguous groups. tokens: those of the call; ignored for W. Errors: UNSUPPORTED. */
OCTILE_API octile_status octile_layer_copy_layout(octile_layer* layer, octile_layer_tensor tensor,
                                                  int32_t transposed, int64_t tokens,
                                                  octile_quantized_layout* layout);

/* Writes the workspace bytes that calls with these uses need at this token count: those of
 * octile_layer_forward, and those of octile_layer_backward or octile_layer_quantize, whichever
 * needs more; 0 for passes that the uses leave out. Either pointer may be null. A call with memory
 * for more copies than its uses state needs less. Errors: UNSUPPORTED. */
OCTILE_API octile_status octile_layer_workspace_size(octile_layer* layer, int64_t tokens,
                                                     uint32_t uses, size_t* forward,
                                                     size_t* backward);

/* Writes the fp32 elements of the layer's scaling state; 0 for a layer without history. With e
 * experts, or e = 1 in a linear layer, the state is
 *
 *   encode scales of X and dY   [2][e]         1 at first
 *   maxima of X                 [history][e]   0 at first; row 0 is the current step's
 *   maxima of dY                [history][e]   0 at first
 *
 * W has no state: it is scaled by its own maximum. */
OCTILE_API octile_status octile_layer_scaling_size(octile_layer* layer, int64_t* elements);

/* ---- running ---------------------------------------------------------------------------------
 *
 * octile_layer_forward, octile_layer_backward, octile_layer_quantize and
 * octile_layer_update_scales enqueue work on `stream`. They do not compile, allocate, synchronise
 * or take a lock, and are legal in stream capture.
 * Errors: UNSUPPORTED, NOT_PREPARED, CAPTURING (not prepared, and the stream captures),
 * DEVICE_ERROR (also if the layer's device is a name). */

/* One FP8 copy, both parts aligned to 16 bytes and as large as octile_layer_copy_layout says; or
 * both null. */
typedef struct octile_layer_copy {
  void* codes;
  void* scales;
} octile_layer_copy;

/* Says if the copies of a tensor have its contents. Only the caller knows this. */
typedef enum octile_layer_state {
  OCTILE_LAYER_QUANTIZE = 0, /* no: the call quantises the source once, into the copies that it
                                needs and all copies with given memory */
  OCTILE_LAYER_CURRENT = 1,  /* yes: the call reads the given copies, and not the source */
  OCTILE_LAYER_CODES = 2     /* W: its given row-wise copy is the weight. A pass that reads the
                                transposed copy makes it from the same codes and scales, in given
                                memory or in the workspace */
} octile_layer_state;

/* X, W or dY of a call. forward needs the row-wise copies of X and W. backward needs the row-wise
 * copy of dY and the transposed one of W for dX, and the transposed ones of dY and X for dW. A
 * needed copy without given memory is made in the workspace.
 *
 * - A framework keeps W's copies over the calls of a step: QUANTIZE in the first call after a
 *   change of W, CURRENT in all others.
 * - Layers with the same X share its copies in the same way, such as those of q, k and v.
 * - Backward needs the transposed copy of X: give forward its memory, and backward the copy as
 *   CURRENT. */
typedef struct octile_layer_operand {
  size_t struct_size;
  const void* source; /* [tokens][ld], W: [n][ld], or [experts][n][ld]; aligned to its element. Read
                         if the state is QUANTIZE */
  int64_t ld;         /* >= the columns; 0: the columns */
  octile_layer_copy rowwise;
  octile_layer_copy transposed;
  octile_layer_state state;
  const uint32_t* skip; /* W with QUANTIZE, whose needed copies are all given: as
                           octile_quantize_args.skip; null: never */
  /* W with QUANTIZE, whose needed copies are all given, instead of skip: the fingerprint of the
   * copies' contents, as octile_quantize_change.state; with experts [experts]. The call compares W
   * with it and quantises W if it has changed, always into the same copies. null: W is quantised.
   * */
  octile_fingerprint* fingerprint;

  /* W with 128x128 scales that is CODES, or CURRENT in octile_layer_forward, as checkpoints have
   * them: >= ceil(k/128), the fp32 elements from one row of rowwise.scales to the next; the scales
   * of an expert are ceil(n/128) rows. 0: as octile_layer_copy_layout says */
  int64_t scale_ld;

  /* dY that is CURRENT: > 0: its copies are n columns of those of a matrix [tokens][whole_columns],
   * from a multiple of 128 on: codes and scales point to the first of them, in the layout that
   * octile_quantized_layout_query gives for the whole. So a quantiser that writes the gradients of
   * two layers side by side writes the dY of both. 0, and with experts: they are a separate matrix
   * */
  int64_t whole_columns;
} octile_layer_operand;

typedef struct octile_layer_forward_args {
  size_t struct_size;
  int64_t tokens; /* >= 0, of all experts. With 0 only W is quantised, if its memory is given */
  const octile_layer_operand* x;
  const octile_layer_operand* w;
  void* y;          /* [tokens][ldy], 16-byte aligned, written */
  int64_t ldy;      /* >= n, row stride a multiple of 16 bytes; 0: n */
  const void* bias; /* layers with a bias: [n], aligned to two of its elements */
  void* workspace;  /* octile_layer_workspace_size bytes, 16-byte aligned; null if that is 0 */
  size_t workspace_bytes;
  const int32_t* group_offsets; /* experts: [experts + 1], on the device; the first token of each,
                                   ascending, then the end of the last, at most `tokens` */

  /* Layers with history: the scaling state. With "tensorwise" null: nothing is recorded. Whenever a
   * call quantises dY it raises the maximum of row 0; that of X only if record_x is not 0, so that
   * evaluation does not change the next scales. */
  float* scaling;
  int32_t record_x;

  /* Layers with a sentry: [3], on the device; the words of Y, dX and dW. Set to 1 if an element is
   * NaN or infinite, and otherwise left as they are. */
  uint32_t* sentry;

  int32_t sm_limit; /* of the GEMM, as octile_gemm_args.sm_limit */
  uint32_t flags; /* octile_run_flags; OCTILE_RUN_B_READY refers to W's copies, which are CURRENT or
                     CODES */
} octile_layer_forward_args;

/* Enqueues the forward pass. Every result has the bits of separate calls of octile_quantize_run and
 * octile_gemm_run. */
OCTILE_API octile_status octile_layer_forward(octile_layer* layer,
                                              const octile_layer_forward_args* args, void* stream);

typedef struct octile_layer_backward_args {
  size_t struct_size;
  int64_t tokens; /* as in forward. With 0, db and dW (unless accumulated) become 0 */
  const octile_layer_operand* dy;
  const octile_layer_operand* x; /* for dW; null if dw is */
  const octile_layer_operand* w; /* for dX; null if dx is */

  /* Results; null: not computed. */
  void* dx;             /* [tokens][lddx], 16-byte aligned */
  int64_t lddx;         /* >= k, row stride a multiple of 16 bytes; 0: k */
  void* dw;             /* [n][lddw], or [experts][n][lddw], 16-byte aligned */
  int64_t lddw;         /* >= k, row stride a multiple of 16 bytes; 0: k */
  float* bias_gradient; /* [n], linear layers whose dY is QUANTIZE */

  void* workspace; /* octile_layer_workspace_size bytes, 16-byte aligned; null if that is 0 */
  size_t workspace_bytes;
  const int32_t* group_offsets; /* as in forward */
  float* scaling;               /* as in forward */
  uint32_t* sentry;             /* as in forward */
  int32_t sm_limit;             /* of each GEMM */
  int32_t reserved;             /* 0 */
} octile_layer_backward_args;

/* Enqueues the requested parts of the backward pass. */
OCTILE_API octile_status octile_layer_backward(octile_layer* layer,
                                               const octile_layer_backward_args* args,
                                               void* stream);

typedef struct octile_layer_quantize_args {
  size_t struct_size;
  octile_layer_tensor tensor;
  int64_t tokens;                      /* of X or dY; ignored for W */
  const octile_layer_operand* operand; /* QUANTIZE, with memory of at least one copy */
  void* workspace;                     /* as of backward */
  size_t workspace_bytes;
  const int32_t* group_offsets; /* of X or dY of experts, as in forward */
  float* scaling;               /* of X or dY, as in forward */
  int32_t record_x;             /* as in forward */
  int32_t reserved;             /* 0 */
} octile_layer_quantize_args;

/* Enqueues the quantisation of one tensor, into the copies with given memory: W after the
 * optimizer's step, or an X that several layers share. Later calls take the copies as CURRENT.
 * Prepare it like the pass that makes the same copies, for dY without BIAS_GRADIENT. */
OCTILE_API octile_status octile_layer_quantize(octile_layer* layer,
                                               const octile_layer_quantize_args* args,
                                               void* stream);

typedef struct octile_layer_update_args {
  size_t struct_size;
  float* scaling;
  octile_amax_choice choice;
  int32_t margin;      /* as octile_scale_update_args */
  float average_share; /* as octile_scale_update_args */

  /* The states of several layers with this recipe, experts and history, in the same launches. */
  int64_t states; /* >= 0; 0: 1 */
  int64_t stride; /* elements from one state to the next, >= octile_layer_scaling_size; 0: those */
} octile_layer_update_args;

/* Ends a step of layers of "delayed": makes the encode scales of X and dY from their maxima, and
 * moves these on by one row (octile_scale_update_run). */
OCTILE_API octile_status octile_layer_update_scales(octile_layer* layer,
                                                    const octile_layer_update_args* args,
                                                    void* stream);

/* ---- a cached weight -------------------------------------------------------------------------
 *
 * octile_weight knows when the FP8 copies of a W are stale, even if other code may write W. The
 * caller owns the memory of the copies, the fingerprint and the words. For each pass that reads W,
 * call begin, which completes W's operand, then the pass with this operand, then end:
 *
 *   operand.source = w; operand.rowwise = ...; operand.transposed = ...; operand.fingerprint = ...;
 *   octile_weight_begin(weight, &call, &operand, stream);
 *   octile_layer_forward(layer, &args, stream);             args.w is &operand
 *   octile_weight_end(weight, stream);
 *
 * Rules, in this order:
 * 1. Another stamp or epoch than that of the copies: the pass quantises W.
 * 2. The same stamp and epoch, in a forward pass: with a fingerprint the device compares W with the
 *    contents of the copies, and quantises W if they differ; without one the pass quantises W.
 *    Backward reads the copies of its forward pass. Contents that only one forward pass used are
 *    expected to change again: the first pass that finds them changed quantises without a
 *    comparison.
 * 3. `trusted`: stamp and epoch are believed, and nothing is compared.
 *
 * A captured pass whose W is not trusted compares if no backward pass follows, and otherwise
 * quantises, because a step changes W. If W is trusted, replays of a captured pass read `words`. */

typedef struct octile_weight octile_weight;

/* Makes one without current copies. It can be used for W in all layers on this device whose W has
 * the same type, sizes and recipe, and may outlive the layer. */
OCTILE_API octile_status octile_weight_create(octile_layer* layer, octile_weight** weight);
/* Destroys it; null is a no-op. No call may be using it. */
OCTILE_API octile_status octile_weight_destroy(octile_weight* weight);

typedef struct octile_weight_call {
  size_t struct_size;
  uint32_t uses;   /* of the pass, with WITHOUT_BACKWARD (a forward pass) or WITHOUT_FORWARD (a
                      backward pass). KEEP_X, INPUT_GRADIENT or WEIGHT_GRADIENT of a forward pass
                      say that backward follows, INPUT_GRADIENT that it reads W^T */
  int32_t trusted; /* nonzero: see above */
  uint64_t stamp;  /* of W's contents, as far as the caller knows: another value says that W has
                      been written */
  uint64_t epoch;  /* the same, for writes that replays must see: when it changes, the caller zeroes
                      `words`, in stream order */
  uint64_t capture; /* of the capture that `stream` is in: one value for each; 0: none */
  uint32_t* words;  /* [3], zero at first: 1 if W's copy, that of W^T, or both are current. null:
                       replays of passes of a trusted W quantise */
  int32_t replayed; /* nonzero: replays may have changed W since the last call, which no stamp
                       shows; words are read instead of the stamp */
  int32_t reserved; /* 0 */
} octile_weight_call;

/* Completes the operand W of a pass. If the pass makes copies of new contents without comparing, it
 * also enqueues on `stream` that the fingerprint becomes invalid.
 *
 * operand: in, with state QUANTIZE: source and ld; rowwise and transposed, the memory of all copies
 * that are kept (the same in every call; null: that copy is not kept, and an earlier one is not
 * read again); fingerprint, or null. Memory that captured passes use must not move while they are
 * replayed. A forward pass keeps W^T only together with W. Out: CURRENT with the copies that the
 * pass reads, or QUANTIZE with those that it makes, and skip or fingerprint. A pass that keeps
 * nothing has neither, and makes its copies in the workspace.
 *
 * One call at a time. Passes are prepared with KEEP_W, with a fingerprint COMPARE_W too, and once
 * without them, because backward may make its own copy.
 * Errors: DEVICE_ERROR; nothing has changed then. */
OCTILE_API octile_status octile_weight_begin(octile_weight* weight, const octile_weight_call* call,
                                             octile_layer_operand* operand, void* stream);
/* Call it when the pass of the last begin is enqueued: its copies are then current for later
 * passes. Sets words in stream order. Without it the copies count as unknown. Errors: DEVICE_ERROR.
 * */
OCTILE_API octile_status octile_weight_end(octile_weight* weight, void* stream);

/* Call it if the memory of the copies was freed or overwritten: no copy is current. */
OCTILE_API octile_status octile_weight_forget(octile_weight* weight);

/* Writes whether the pass needs no new copies. If so, completes the operand like
 * octile_weight_begin, and the pass needs no end. Several threads may call it at the same time,
 * while none is between begin and end. */
OCTILE_API octile_status octile_weight_is_current(const octile_weight* weight,
                                                  const octile_weight_call* call,
                                                  octile_layer_operand* operand, int32_t* current);

#ifdef __cplusplus
}
#endif
#endif /* OCTILE_LAYERS_H_ */
