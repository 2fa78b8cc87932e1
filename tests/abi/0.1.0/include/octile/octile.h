/* Octile: FP8 quantise and GEMM kernels, generated, compiled, cached and run at run time.
 *
 * A program makes a library handle (octile_library_create) and a plan for each problem
 * (octile_plan_create from a text, or octile_gemm_plan_create and octile_quantize_plan_create). It
 * prepares the plan for the expected token counts (octile_plan_prepare), and runs it
 * (octile_gemm_run, octile_quantize_run).
 *
 * These rules apply to every call. A function's comment states the rest.
 *
 *  1. Structs begin with `struct_size`, which the caller sets to sizeof of the struct it was
 *     compiled with. Bytes beyond the caller's struct are taken as zero. A struct larger than the
 *     library's is accepted if its unknown tail is all zero, and refused otherwise.
 *  2. Enums are append-only, and every value is explicit.
 *  3. Errors: every call returns an octile_status. A failing call does not change its outputs. It
 *     stores a sentence for octile_last_error() of the calling thread, which names the argument,
 *     its value and the allowed values. A field of a nested struct is named as "groups.offsets".
 *     "Errors" below lists what a call may return besides INVALID_ARGUMENT, OUT_OF_MEMORY and
 *     INTERNAL.
 *  4. Messages go to the log callback. The library does not print, abort or throw.
 *  5. Matrices are row-major. D[m,n] (+)= A[m,k] * B[n,k]^T. An extent (m, n, k, rows, cols) is at
 *     most 2^31 - 1, a tensor at most 2^63 - 1 bytes. Leading dimensions are in elements. 0 means
 *     the same in every call: roundup(columns,16) for FP8 data, columns for other types, and the
 *     result of octile_quantized_layout_query for scales. FP8 data then take the query's
 *     data_bytes, which is more than rows * columns if columns is not a multiple of 16. Elements
 *     between the columns and a leading dimension are neither read nor written.
 *  6. Scales multiply: x ~ q * scale.
 *  7. Streams: `stream` is a CUstream (a cudaStream_t is the same pointer); null is the legacy
 *     default stream. Pointers are device pointers, unless the plan's device is "host". Kernels are
 *     launched with programmatic stream serialisation (in a graph: a programmatic edge) and wait
 *     for the preceding work themselves, so the stream's order holds. GEMMs of few tokens prefetch
 *     weights into L2 before waiting, and still see writes that land after that.
 *  8. Overlap: some kernels let the stream's next kernel start while they still run. If a caller
 *     launches a kernel after them with programmatic stream serialisation, that kernel must execute
 *     griddepcontrol.wait (cudaGridDependencySynchronize) before it touches memory. Kernels
 *     launched without that attribute need no change.
 *  9. Versions: the SONAME is the major version. Within a major version functions, enum values and
 *     struct tails are only added.
 * 10. Threads: handles may be used from several threads at once, but destroying one while another
 *     call uses it is undefined. A workspace belongs to one call in flight. A second destroy
 *     returns INVALID_ARGUMENT, unless a new handle has the same address; any other call on a
 *     destroyed handle is undefined.
 * 11. Features: fields that only some calls need are in a separate struct behind a pointer; null
 *     means that the call does not use the feature.
 * 12. Memory and threads may run out. A call for which the host has no memory returns
 *     OUT_OF_MEMORY. If no new thread can start, running threads do the work, and without any the
 *     caller does.
 * 13. Fork: a handle belongs to the process that made it. In a child of fork every call on it,
 *     destroy included, returns INVALID_ARGUMENT and frees nothing. The child may make its own
 *     handles. It has none of the library's descriptors, which are above 2, and none of its locks.
 *     A fork waits at most a second for calls that open or close one. The CUDA driver does not work
 *     in the child of a process that has used it.
 * 14. Signals: the library handles none and leaves the masks of its callers' threads alone. No call
 *     fails because of a signal, and signal handlers must not call the library. The library's
 *     threads block all signals except SIGPROF and those that a thread causes itself. NVRTC exits
 *     on SIGINT and SIGTERM, so kernels compile in octile-compiler processes, in separate sessions.
 *     SIGCHLD and wait() do not report them, only a wait for clones (__WCLONE, __WALL). They end
 *     with their library handle, with the process, and after a minute without work. If no process
 *     reaps orphans, or this process adopts them itself, a second process that shares its memory
 *     waits for a compiler while it runs. If no compiler can be started (the log says so) or
 *     OCTILE_COMPILER=in-process is set, NVRTC compiles in the caller's process and handles its
 *     signals meanwhile. The first prepare for a GPU that this library's tests have not run on
 *     starts octile-prover in the same way, until its tests end.
 * 15. Exit: a process may exit with handles alive, even while work runs in the background, without
 *     waiting. The log callback may be called until the process has ended.
 * 16. After dlclose the library stays loaded, and handles stay usable.
 * 17. Cancellation: pthread_cancel of a thread takes effect after its current call, callbacks
 *     included.
 * 18. Floating point: no result depends on the rounding mode, the flushing of subnormals or the
 *     traps of the calling thread. A call restores them before it returns. Callbacks run in the
 *     default environment.
 * 19. Stack: a call needs at most 64 KiB of its thread's stack, besides the needs of the CUDA
 *     driver, a callback and an NVRTC in the caller's process (rule 14).
 */
#ifndef OCTILE_OCTILE_H_
#define OCTILE_OCTILE_H_

#include <stddef.h>
#include <stdint.h>

#define OCTILE_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

#define OCTILE_VERSION_MAJOR 0
#define OCTILE_VERSION_MINOR 1
#define OCTILE_VERSION_PATCH 0

typedef enum octile_status {
  OCTILE_OK = 0,
  OCTILE_INVALID_ARGUMENT = 1, /* rule 3 */
  OCTILE_UNSUPPORTED = 2,  /* the support matrix refuses the combination, or the device lacks it */
  OCTILE_NOT_PREPARED = 3, /* run came before a prepare that covers this token count */
  OCTILE_NO_DRIVER = 4,    /* libcuda.so.1 cannot be opened, or has no device */
  OCTILE_NO_COMPILER = 5,  /* NVRTC cannot be opened and the kernel is not in the cache */
  OCTILE_COMPILE_FAILED = 6, /* the sentence has NVRTC's log, or how NVRTC ended: a crash, or the
                                limits of 10 minutes and 8 GiB for a compile */
  OCTILE_DEVICE_ERROR = 7,   /* a driver call failed; the sentence names it and its error */
  OCTILE_OFFLINE = 8,        /* the library is offline and the kernel is not in the cache */
  OCTILE_OUT_OF_MEMORY = 9,
  OCTILE_CAPTURING = 10, /* the stream captures, and run would need an unprepared kernel, or a call
                            would search */
  OCTILE_INTERNAL = 11,  /* a defect in this library: please report it */
  OCTILE_FILE_ERROR = 12 /* a file cannot be written: the disk is full, a folder is read-only. The
                            sentence names it and the system's reason */
} octile_status;

typedef enum octile_dtype {
  OCTILE_E4M3 = 1, /* OCP FP8 E4M3 (fn): maximum 448, no infinity */
  OCTILE_E5M2 = 2, /* OCP FP8 E5M2: maximum 57344 */
  OCTILE_BF16 = 3,
  OCTILE_FP16 = 4,
  OCTILE_FP32 = 5
} octile_dtype;

typedef enum octile_granularity {
  OCTILE_SCALE_NONE = 0,       /* not scaled */
  OCTILE_SCALE_PER_TENSOR = 1, /* fp32 [1] */
  OCTILE_SCALE_PER_ROW = 2,    /* fp32 [roundup(m,4)] */
  OCTILE_SCALE_1X128 = 3,      /* fp32 [ceil(k/128)][roundup(m,4)], m contiguous */
  OCTILE_SCALE_128X128 = 4,    /* fp32 [ceil(n/128)][scale_ld], scale_ld >= ceil(k/128) */
  OCTILE_SCALE_1X32 = 5,       /* E8M0 [m][roundup(ceil(k/32),4)] */
  OCTILE_SCALE_32X32 = 6       /* E8M0 [ceil(m/32)][roundup(ceil(k/32),4)] */
} octile_granularity;

typedef enum octile_scale_format {
  OCTILE_SCALE_FORMAT_DEFAULT = 0, /* f32; e8m0 for the MX granularities */
  OCTILE_SCALE_F32 = 1,
  OCTILE_SCALE_F32_POW2 = 2, /* fp32 restricted to powers of two */
  OCTILE_SCALE_UE8M0X4 = 3,  /* 1x128: an int32 holds the biased exponents of four consecutive
                                blocks of k, the first in the lowest byte;
                                [ceil(ceil(k/128)/4)][roundup(m,4)] */
  OCTILE_SCALE_E8M0 = 4,     /* the biased exponent of a power of two, one byte (OCP MX) */
  OCTILE_SCALE_BF16 = 5      /* the fp32 scale rounded to nearest even, for communication */
} octile_scale_format;

/* How an E8M0 scale, a power of two, is chosen. */
typedef enum octile_e8m0_rounding {
  OCTILE_E8M0_UP = 0,       /* the smallest power of two with which no finite element saturates */
  OCTILE_E8M0_OCP_FLOOR = 1 /* 2^floor(log2(amax)) over the format's largest power of two, as the
                               text of OCP MX 1.0 says; a block's largest elements may saturate */
} octile_e8m0_rounding;

typedef enum octile_log_level {
  OCTILE_LOG_DEBUG = 0,
  OCTILE_LOG_INFO = 1,
  OCTILE_LOG_WARNING = 2,
  OCTILE_LOG_ERROR = 3
} octile_log_level;

/* Called from any thread, one call at a time per library; must not call back into the library. */
typedef void (*octile_log_callback)(octile_log_level level, const char* message, void* user);

typedef struct octile_library octile_library;
typedef struct octile_plan octile_plan;

/* ---- the library ----------------------------------------------------------------------------- */

/* Writes the version of the library in use, which may differ from this header's. */
OCTILE_API void octile_version(int* major, int* minor, int* patch);

/* Returns the name, such as "OCTILE_INVALID_ARGUMENT". It is never null, even for a value that this
 * version does not know. */
OCTILE_API const char* octile_status_name(octile_status status);

/* Returns the sentence of this thread's last failing call, or "" if none failed. It is valid until
 * the thread's next call. It is UTF-8 of at most 8191 bytes; a longer one is cut, with " ..." at
 * its end. Bytes of a path or a file that are not UTF-8, control characters and marks that change
 * the direction of text are written as "\\x1b". The same is true of log messages. */
OCTILE_API const char* octile_last_error(void);

typedef struct octile_library_options {
  size_t struct_size;
  const char* cache_dir;   /* writable root; null: OCTILE_CACHE_DIR, else the XDG cache folder; "":
                              none. "{user}" in it stands for the user's number */
  const char* cache_roots; /* read-only roots, ':'-separated; null: OCTILE_CACHE_ROOTS; "": none */
  octile_log_callback log; /* null: no messages */
  void* log_user;
  octile_log_level log_level; /* least severe level delivered */
  int32_t offline;            /* nonzero: compile nothing and use cached kernels of any compiler;
                                 OCTILE_OFFLINE=1 does the same */
  int32_t disable_cache;      /* nonzero: neither read nor write a disk cache */
  int32_t compile_threads;    /* 0: one per core; at most 1024. Threads start when first needed, and
                                 at most as many octile-compilers (rule 14) */
} octile_library_options;

/* Makes a library handle. Driver and compiler are opened when first needed, not here.
 * options: null for all defaults. */
OCTILE_API octile_status octile_library_create(const octile_library_options* options,
                                               octile_library** library);
/* Destroys a handle and unloads its kernels. Work launched by its plans must have completed, and no
 * graph captured from them may run again. Its plans and layers must be destroyed first; otherwise
 * nothing is destroyed and the call returns INVALID_ARGUMENT. Waits for a running compilation. Null
 * is a no-op. */
OCTILE_API octile_status octile_library_destroy(octile_library* library);

/* ---- layouts --------------------------------------------------------------------------------- */

typedef struct octile_quantized_layout {
  size_t struct_size;
  int64_t data_rows, data_ld, data_bytes;    /* FP8 elements, with leading dimension 0 (rule 5) */
  int64_t scale_rows, scale_ld, scale_bytes; /* scales as stored, padding included */
} octile_quantized_layout;

/* Writes the sizes of a [rows, cols] tensor quantised as (dtype, granularity, format). transposed
 * nonzero: those of the columnwise copy, whose data is [cols][roundup(rows,16)] with zeros at the
 * end of every row. Errors: UNSUPPORTED. */
OCTILE_API octile_status octile_quantized_layout_query(octile_dtype dtype,
                                                       octile_granularity granularity,
                                                       octile_scale_format format, int64_t rows,
                                                       int64_t cols, int32_t transposed,
                                                       octile_quantized_layout* layout);

/* ---- recipes --------------------------------------------------------------------------------- */

typedef struct octile_tensor_type {
  octile_dtype dtype;
  octile_granularity granularity;
  octile_scale_format scale_format;
} octile_tensor_type;

/* The types of the tensors of a linear layer Y[m,n] = X[m,k] W[n,k]^T, and how its GEMMs sum. */
typedef struct octile_recipe {
  size_t struct_size;
  const char* name;                                /* valid as long as the library is loaded */
  octile_tensor_type activation, weight, gradient; /* X, W and dY, as quantisers write them */
  int32_t promote_forward, promote_backward; /* octile_gemm_desc.promote of Y, and of dX and dW */
  int32_t delayed;                           /* nonzero: scales come from earlier steps */
} octile_recipe;

/* Writes the recipe with this index. The first has index 0, and the first index without a recipe is
 * refused. Within a major version recipes are only added, at the end. */
OCTILE_API octile_status octile_recipe_at(int32_t index, octile_recipe* recipe);

/* ---- what quantising loses ------------------------------------------------------------------- */

/* A block of a matrix: elements that share a scale. */
typedef struct octile_loss_block {
  int64_t row, col, rows, cols;
  double noise_share; /* squared errors over squares, without the element that alone sets the scale,
                         if one does; 10 log10 of its inverse is the block's SNR in dB */
  double flushed_share; /* of the block's nonzero elements */
  double amax;          /* the largest finite magnitude */
  int64_t set_by_one;   /* nonzero: every other element is at most half as large as the largest */
} octile_loss_block;

/* The loss of quantising a matrix. Errors are x - code * scale; sums are in fp64. NaNs and
 * infinities are counted, and excluded from everything else. Sums and counts of several matrices
 * may be added. */
typedef struct octile_loss {
  size_t struct_size;
  int64_t elements, zeros, nans, infinities;
  double amax;
  double signal, noise;           /* the sums of x^2 and of the squared errors */
  double rest_signal, rest_noise; /* without elements that alone set the scale of their block */
  double bulk_signal, bulk_noise; /* without the blocks of those elements */
  int64_t nonzero, flushed;       /* finite nonzero elements; those whose code is zero */
  int64_t saturated;              /* beyond what rounds to the format's largest value */
  int64_t blocks, set_by_one;     /* blocks with a nonzero element */
  int64_t worst_count;
  octile_loss_block worst[4]; /* the blocks with the largest noise_share, the largest first */
} octile_loss;

/* Quantises x [rows, cols] of `source` (BF16, FP16 or FP32) in host memory to each of the types
 * with the bits of a plan on the device "host", discards the results, and writes the error of
 * types[i] to *losses[i]. count: 1 to 64. `sample` is the share of x to measure, above 0 and at
 * most 1, in evenly spread parts of about 500,000 elements, at least one; they have whole rows of
 * up to 32768 elements if a type has scales per row. All types are measured over the same elements.
 * ldx 0: cols. The call uses one thread per core. The result does not depend on their number.
 * Errors: UNSUPPORTED. */
OCTILE_API octile_status octile_measure_loss(octile_dtype source, const void* x, int64_t rows,
                                             int64_t cols, int64_t ldx,
                                             const octile_tensor_type* types, int32_t count,
                                             double sample, octile_loss* const* losses);

/* ---- plans ----------------------------------------------------------------------------------- */

#define OCTILE_DYNAMIC INT64_C(-1)
#define OCTILE_PROMOTE_NONE (-1)        /* the tensor core sums all of K */
#define OCTILE_BATCH_SHARED INT64_C(-1) /* all GEMMs of a batch use the first matrix */

/* Several tensors in one: the token groups of a mixture of experts, or their weights. Calls state
 * their places in octile_gemm_groups and octile_quantize_groups. */
typedef enum octile_grouping {
  OCTILE_GROUPS_NONE = 0,
  OCTILE_GROUPS_CONTIGUOUS = 1, /* groups follow one another in the rows; the call has offsets */
  OCTILE_GROUPS_MASKED = 2,     /* every group has memory for the same number of rows, and only its
                                   first rows are used; the call has counts */
  OCTILE_GROUPS_STACKED = 3 /* quantise plans: tensors of one shape, one after the other, each with
                               its own scales and copies, such as weights of experts */
} octile_grouping;

/* A GEMM's report on D, beside D itself. */
typedef enum octile_sentry {
  OCTILE_SENTRY_NONE = 0,
  OCTILE_SENTRY_WORD = 1,   /* whether an element is NaN or infinite: octile_gemm_monitor.sentry */
  OCTILE_SENTRY_SQUARES = 2 /* that, and the sum of D's squares: an octile_squares */
} octile_sentry;

/* The sentry of a plan with OCTILE_SENTRY_SQUARES: in device memory, 8-byte aligned, cleared by the
 * caller. Calls add to it, so that it can be shared by several GEMMs, such as those of all
 * gradients of a step. octile_sum_of_squares() reads it.
 *
 * The squares are those of the fp32 results before they are rounded to D's type. Each warp of a
 * kernel sums those of its part of a tile in fp32, and these sums are added exactly. So the sum has
 * the same bits at every call of a plan; other configurations may differ by fp32 rounding. A square
 * or a warp's sum beyond 3.4e38 is not finite, and below 1.4e-45 it is taken as zero. */
typedef struct octile_squares {
  uint32_t sentry; /* octile_gemm_monitor.sentry points here */
  uint32_t reserved;
  /* Each thread block adds to one of eight copies. Word i < 9 of a copy counts units of
   * 2^(32*i - 149), word 9 sums that are not finite. */
  uint64_t words[8][16];
} octile_squares;

/* Writes the sum, correctly rounded, or infinity if a sum was not finite. `squares` is in host
 * memory: a copy of the struct that GEMMs wrote. */
OCTILE_API octile_status octile_sum_of_squares(const octile_squares* squares, double* sum);

/* D[m,n] (+)= A[m,k] * B[n,k]^T + bias[n] for every token count. Tokens are in m, unless k is
 * OCTILE_DYNAMIC: then the GEMM sums over the tokens (weight gradients), and m states its rows.
 *
 * With groups there is one GEMM for each group (expert), which uses only the group's tokens.
 * - Tokens in m, contiguous groups: A and D hold the rows of all groups one after the other, A's
 *   scales are those of one tensor. B is [groups][n][ldb], its scales are `groups` tensors, one
 *   after the other. Groups may have any size. Rows in no group are neither read nor written.
 * - Tokens in m, masked groups: A is [groups][m][lda] and D [groups][m][ldd], with A's scales as
 *   `groups` tensors of m rows; B as above. Rows that do not exist are neither read nor written.
 * - With one scale a tensor, A and B have a scale for each group. With scales per row, those of
 *   B are [groups][n], and those of a masked group's rows of A begin at multiples of 4.
 * - Tokens in k, contiguous groups: A and B are transposed copies of contiguous groups
 *   (octile_plan_quantized_layout), in which group g's columns begin on a multiple of 128, and
 *   whose padding is zero. D is [groups][m][ldd]. The D of a group without tokens becomes zero, or
 *   stays if the plan accumulates.
 *
 * With a batch there are `batch` GEMMs of the same m, n and k, such as one for each attention head.
 * The matrices of A, B and D and the scales of A and B lie at constant strides, which calls state.
 * A and D of [tokens][heads][dim] have a stride of dim. Tokens are in m, scales are 1x128 or
 * 128x128, K is never split, and there are no groups, no bias and no FP8 D.
 *
 * With sums_batch there is one D, the sum of the batch's products: a weight gradient whose tokens
 * are in `batch` panels, one after the other, such as transposed copies [k][m/ranks] received from
 * ranks. A call's tokens are those of one panel. Panels are summed in order as the K-blocks of one
 * GEMM, so D has the bits of joined panels, each padded with zeros to a multiple of 128 tokens.
 * Scales are 1x128 in fp32, or one per tensor. A contiguous operand, [m][lda] with lda of at least
 * batch * tokens, has a stride of tokens. */
typedef struct octile_gemm_desc {
  size_t struct_size;
  int64_t n; /* multiple of 8 (D in FP8: of 16), >= 0 */
  int64_t k; /* >= 0, or OCTILE_DYNAMIC */
  int64_t m; /* >= 0; read if k is OCTILE_DYNAMIC, else 0 */

  octile_dtype a_dtype;
  octile_granularity a_granularity;
  octile_scale_format a_scale_format;
  octile_dtype b_dtype;
  octile_granularity b_granularity;
  octile_scale_format b_scale_format;
  octile_dtype d_dtype;
  /* D in FP8: OCTILE_SCALE_1X128 with fp32 scales (0: their default, OCTILE_SCALE_F32, or
   * OCTILE_SCALE_F32_POW2). D and its scales equal quantising the fp32 sums, after the bias. Else
   * 0. */
  octile_granularity d_granularity;
  octile_scale_format d_scale_format;

  int32_t promote;         /* K elements per fp32 promotion; 0: 128, with MX scales 32. 32, 64 or
                              128; with scales per row or per tensor 128, 256, 512 or
                              OCTILE_PROMOTE_NONE; with MX scales 32. OCTILE_PROMOTE_NONE with block
                              scales that are powers of two: the instruction multiplies them, on
                              compute capability 12.x */
  int32_t accumulate;      /* nonzero: D +=; D in bf16 or fp32 */
  int32_t batch_invariant; /* nonzero: a row's bits do not depend on m */
  octile_dtype bias_dtype; /* OCTILE_BF16 or OCTILE_FP32: calls give a vector [n] that is added to
                              the fp32 sums; 0: none */
  octile_sentry sentry;

  /* Several GEMMs in one. */
  octile_grouping grouping;
  int64_t groups;     /* 1 to 1024 with groups, else 0 */
  int64_t batch;      /* 1 to 1024 GEMMs at constant strides; 0: one GEMM, or those of groups */
  int32_t sums_batch; /* nonzero: D is the sum of the batch's products; k is OCTILE_DYNAMIC */
  int32_t reserved;   /* 0 */
} octile_gemm_desc;

/* Where the scale of a tensor comes from. */
typedef enum octile_scale_policy {
  OCTILE_SCALING_CURRENT = 0, /* from the tensor's own maximum */
  OCTILE_SCALING_DELAYED = 1  /* octile_quantize_delayed.encode_scale, one per tensor, which
                                 octile_scale_update_run derives from the maxima of earlier steps */
} octile_scale_policy;

typedef enum octile_quantize_output {
  OCTILE_ROWWISE = 1,
  OCTILE_TRANSPOSED = 2,
  OCTILE_ROWWISE_AND_TRANSPOSED = 3
} octile_quantize_output;

/* The operation on x. */
typedef enum octile_quantize_operation {
  OCTILE_QUANTIZE = 0,   /* q = fp8(x * encode); x may be FP8 with scales of its own */
  OCTILE_DEQUANTIZE = 1, /* q = x * scale, rounded to fp32 and then to q_dtype (bf16, fp16, fp32) */
  OCTILE_TRANSPOSE = 2,  /* q is the transposed codes of x, and its scales; no code is changed */
  OCTILE_GATHER = 3, /* q is rows of x by an index; x has scales by row, q has them as a GEMM reads
                        them; no code is changed (octile_quantize_gather) */
  OCTILE_AMAX = 4    /* raises octile_quantize_monitor.amax to the largest finite |x|, which
                        ranks reduce before they quantise parts of one tensor with
                        OCTILE_SCALING_DELAYED; q is not written. x is bf16, fp16 or fp32,
                        granularity OCTILE_SCALE_PER_TENSOR, output 0 or OCTILE_ROWWISE; of
                        other options only via_dtype may be given */
} octile_quantize_operation;

/* Memory layout of row-wise scales. BY_ROW, 1x128 in fp32: [rows][scale_ld], a row's ceil(cols/128)
 * scales, then ones up to a multiple of 4. So a row's codes and its scales can be one message: with
 * cols a multiple of 16, rows of ldq = cols + 4 * roundup(ceil(cols/128),4) bytes, whose scales
 * begin at q + cols with scale_ld = ldq / 4. */
typedef enum octile_scale_layout {
  OCTILE_SCALE_LAYOUT_LINEAR = 0,
  OCTILE_SCALE_LAYOUT_SWIZZLED = 1, /* E8M0: in tiles of 128 x 4, as block-scaled tensor cores read
                                       them */
  OCTILE_SCALE_LAYOUT_BY_ROW = 2    /* 1x128: those of a row together */
} octile_scale_layout;

/* A source that is quantised instead of x, and additional outputs of a call. */
typedef struct octile_quantize_fused_desc {
  size_t struct_size;
  const char* source;    /* a fused source by name ("silu_mul"), or an expression over x0 (x itself)
                            to x3; null: x */
  float norm_epsilon;    /* of source "rmsnorm"; > 0, 0: 1e-6 */
  int32_t bias_gradient; /* nonzero: a call also writes the sums of the source's columns */
  int32_t tap;           /* nonzero: a call also writes the fp32 values that are cast */
  int32_t weighted; /* nonzero: a factor of each row multiplies the source's values, in fp32; with a
                       source of at most three inputs, but not with norms */
} octile_quantize_fused_desc;

/* q[rows,cols], scales = quantise(x[rows,cols]) for every row count. */
typedef struct octile_quantize_desc {
  size_t struct_size;
  int64_t cols; /* >= 0 */
  octile_dtype x_dtype;
  octile_dtype q_dtype;
  octile_granularity granularity;
  octile_scale_format scale_format;
  octile_quantize_output output; /* 0: OCTILE_ROWWISE */

  /* How scales are made and kept. */
  float amax_epsilon;                 /* a smaller amax is raised to it; >= 0, finite */
  octile_e8m0_rounding e8m0_rounding; /* of E8M0 scales; 0: OCTILE_E8M0_UP */
  octile_scale_policy policy;
  octile_scale_layout scale_layout;

  /* Another operation than quantising, and scales of FP8 x. */
  octile_quantize_operation operation;
  octile_granularity x_granularity;
  octile_scale_format x_scale_format;

  octile_grouping grouping; /* several tensors. Ranges of one: octile/pieces.h */

  /* Nonzero: a call does nothing if x is unchanged since the previous call
   * (octile_quantize_change): for weights that are quantised once for many calls, and that other
   * code may write. x is bf16, fp16 or fp32, without source, groups or bias gradient. */
  int32_t skip_unchanged;

  const octile_quantize_fused_desc* fused; /* null: x is quantised, without other outputs */

  /* OCTILE_BF16: x, which is fp32 and has no source, is rounded to bf16 before anything else, so
   * that the result has the bits of quantising x in bf16; 0: x is taken as it is. */
  octile_dtype via_dtype;
  int32_t reserved; /* 0 */
} octile_quantize_desc;

/* Makes a plan. It stands for every token count; nothing is compiled yet.
 * device: "cuda:N" (a live GPU) or "cuda" (the GPU of the calling thread's current context, else
 * the first), the name of a known device ("h200": plan and compile without one), or "host". Names
 * of cards that have no kernels of the problem yet (a GEMM on "l40s") are UNSUPPORTED with the
 * support matrix's reason. On "host" the multi-threaded reference executor runs: pointers are host
 * pointers, the stream is ignored, run returns when the work is done, and nothing needs preparing.
 * Null: "cuda".
 * Errors: UNSUPPORTED, NO_DRIVER. */
OCTILE_API octile_status octile_gemm_plan_create(octile_library* library, const char* device,
                                                 const octile_gemm_desc* desc, octile_plan** plan);
OCTILE_API octile_status octile_quantize_plan_create(octile_library* library, const char* device,
                                                     const octile_quantize_desc* desc,
                                                     octile_plan** plan);
/* Makes a plan from a problem's canonical text, for example
 * "gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128". The '?' is the
 * token count, which calls state. If the text states it, the plan takes that count only. */
OCTILE_API octile_status octile_plan_create(octile_library* library, const char* device,
                                            const char* problem, octile_plan** plan);
/* Destroys a plan; null is a no-op. No call may be using it. Work already launched is unaffected.
 * Background work not yet begun is dropped. */
OCTILE_API octile_status octile_plan_destroy(octile_plan* plan);

typedef enum octile_prepare_flags {
  OCTILE_PREPARE_DEFAULT = 0, /* returns when every kernel of the range is ready */
  OCTILE_PREPARE_ASYNC = 1, /* returns when one generic kernel can run the whole range; the fastest
                               kernels follow in the background and are used once they are ready */
  OCTILE_PREPARE_TUNE = 2,  /* first searches for the fastest kernel of every bucket of the range
                               that no exact tuning record decides (octile_plan_prepare_with) */
} octile_prepare_flags;

/* Compiles or finds in the cache, and loads, the distinct kernels for token counts lo..hi (both
 * included, 0 <= lo <= hi), in parallel. Idempotent, and legal while streams capture, in any mode.
 * If the plan's device is a name, the kernels are compiled and cached only. flags:
 * octile_prepare_flags. If some kernels fail, the others are ready and the first error is returned.
 * Errors: NO_COMPILER, COMPILE_FAILED, OFFLINE, DEVICE_ERROR; with TUNE as
 * octile_plan_prepare_with. */
OCTILE_API octile_status octile_plan_prepare(octile_plan* plan, int64_t lo, int64_t hi,
                                             uint32_t flags);

typedef struct octile_prepare_options {
  size_t struct_size;
  double tune_seconds; /* with TUNE: time limit of all searches of the call; 0: the time they need,
                          about a second per bucket on 16 cores */
  void* stream;        /* with TUNE: the stream that the caller works with (rule 7) */
  uint32_t flags;      /* octile_prepare_flags */
  int32_t reserved;    /* 0 */
} octile_prepare_options;

/* Prepares as octile_plan_prepare does.
 *
 * With OCTILE_PREPARE_TUNE each bucket of the range that no exact tuning record decides is searched
 * first, at its largest token count, the longest first, as `octile tune` does (octile/tuning.h).
 * Candidates are compiled, verified and raced on the plan's device, by a thread of the library and
 * in its memory. Each decision is appended to tuning.jsonl of the cache folder for later calls and
 * processes; without a cache folder it lasts as long as the library handle. One process and thread
 * searches at a time, and the others use its decisions. A bucket that is undecided when the budget
 * is spent, or the search has failed, gets the kernel that the current records and the cost model
 * choose, and a later call continues. If the search fails, the kernels are ready and its error is
 * returned. With ASYNC too, a generic kernel runs first, the chosen ones follow, and a background
 * search replaces each as soon as it is decided; octile_plan_wait waits for it, and destroying the
 * plan ends it.
 *
 * Searches do not run in a capture: if `stream` or a default stream captures, or the plan's last
 * run returned CAPTURING, the call returns CAPTURING and prepares nothing. On "host", and for
 * problems that cannot be searched (OCTILE_AMAX), TUNE does nothing.
 *
 * With OCTILE_TUNING=prepare, or prepare:SECONDS for a budget of each call, every
 * octile_plan_prepare, octile_plan_prepare_with and octile_layer_prepare searches if it can. In a
 * capture, and on devices that are names, they only prepare. A search that fails is a warning.
 *
 * options: null for all defaults. TUNE on a plan whose device is a name is INVALID_ARGUMENT.
 * Errors: as octile_plan_prepare, CAPTURING. */
OCTILE_API octile_status octile_plan_prepare_with(octile_plan* plan, int64_t lo, int64_t hi,
                                                  const octile_prepare_options* options);
/* Waits for background work of this plan and returns its first error, once. */
OCTILE_API octile_status octile_plan_wait(octile_plan* plan);

/* Writes the canonical problem text, or a JSON object with problem, token_axis (the dimension that
 * holds the tokens: "m", "k" or "rows"), device and kernels. Kernels is an array of the kernels
 * prepared so far, each with:
 * - buckets: the largest token count of every bucket it serves. Bucket edges are 1, 2, 4, ... 128,
 *   then two in every doubling (192, 256, 384, ... 1024), then four (1280, 1536, 1792, 2048, ...).
 * - chosen_by: what chose the kernel for each of these buckets: "exact record", "near bucket" or
 *   "near shape" (a record of this device), "sister card" (a record of another) or "cost model";
 *   null if it is used only until the chosen one is ready.
 * - compile_ms: time of the compilation that made it, even if that was earlier.
 * - name, config, registers, smem_bytes, spill_store_bytes, spill_load_bytes, cubin_bytes, cache
 *   ("hit" or "miss"), template, source_digest.
 * The text is NUL-terminated UTF-8. size: in, the buffer's bytes; out, the bytes needed. A null
 * buffer queries. If the buffer is too small, the sentence says how many bytes are needed. */
OCTILE_API octile_status octile_plan_problem(octile_plan* plan, char* buffer, size_t* size);
OCTILE_API octile_status octile_plan_describe(octile_plan* plan, char* buffer, size_t* size);

/* Writes the workspace bytes that a run at this token count needs; if 0, null may be passed. A run
 * of stacked tensors needs this amount for each of them. */
OCTILE_API octile_status octile_plan_workspace_size(octile_plan* plan, int64_t tokens,
                                                    size_t* bytes);

/* Writes the sizes of one output of a quantise plan, taking its groups and scale layout into
 * account. rows: of x; if groups are masked or stacked, of each group. groups: 0 to 65536, stacked
 * 65535; 0 for a plan without groups. transposed nonzero: the columnwise copy.
 * - Without groups: as octile_quantized_layout_query; swizzled scales fill whole tiles of 128 x 4.
 * - Contiguous groups, row-wise: as one tensor of `rows` rows. Rows and scales outside every group
 *   are not touched, except the padding after the last group's scales.
 * - Contiguous groups, transposed: group g's columns begin on a multiple of 128, the sum of
 *   roundup(rows of i, 128) over the groups i before it, and end in zeros up to the next multiple.
 *   Its scales are those of its ceil(rows / 128) blocks (1x32: four times as many). data_ld is the
 *   maximum for `rows` rows in `groups` groups. Columns after the last group are not touched.
 * - Masked groups: `groups` tensors of [rows, cols], one after the other. Rows of a group from its
 *   count on are neither read nor written.
 * - Stacked tensors: `groups` tensors as without groups, one after the other.
 * - One scale per tensor: [groups]; an empty group's scale is that of an amax of 0.
 * INVALID_ARGUMENT for plans that do not quantise, plans of OCTILE_AMAX, and outputs that the plan
 * does not have. */
OCTILE_API octile_status octile_plan_quantized_layout(octile_plan* plan, int64_t rows,
                                                      int64_t groups, int32_t transposed,
                                                      octile_quantized_layout* layout);

/* ---- running ---------------------------------------------------------------------------------
 *
 * octile_gemm_run, octile_quantize_run and octile_scale_update_run enqueue work on `stream`. They
 * do not compile, allocate, synchronise or take a global lock, and are legal in stream capture.
 * Operands are read and results are written in stream order. The same plan and inputs give the same
 * bits. A kernel is launched in the thread's current context if that is on the plan's device, else
 * in the device's primary context. Errors: NOT_PREPARED, CAPTURING (not prepared, and the stream
 * captures), DEVICE_ERROR (also if the plan's device is a name). */

/* B_READY: the caller promises that no work still running in the stream writes B or B's scales.
 * That includes the kernel before a sequence of GEMMs of few tokens, all of which may start while
 * it runs. The kernel may then start early (programmatic dependent launch) and read them at once.
 * A, A's scales and D are not touched before the preceding work has ended. Saves up to 1 us per
 * call if GEMMs of few tokens follow each other. Has no effect on GEMMs that it would slow down:
 * those whose kernel does not let the next kernel start early (pdl=end in its configuration), reads
 * mostly A, or shares B in a cluster. */
typedef enum octile_run_flags {
  OCTILE_RUN_DEFAULT = 0,
  OCTILE_RUN_B_READY = 1,
} octile_run_flags;

/* Plans with groups (octile_grouping). */
typedef struct octile_gemm_groups {
  size_t struct_size;
  const int32_t* offsets;  /* contiguous groups, [groups + 1], on the device: the first token of
                              each, ascending, then the end of the last, at most `tokens`. Other
                              values are clamped: the result is undefined, but nothing outside the
                              tensors is touched */
  const int32_t* counts;   /* masked groups, [groups], on the device: the rows of each that exist,
                              clamped to 0 and `tokens` */
  int64_t expected_tokens; /* masked groups: average rows of a group, >= 0; 0: `tokens`. It selects
                              the kernel and does not change D */
} octile_gemm_groups;

/* Plans with a batch: elements from one matrix to the next, above 0 and less than 2^40 bytes. Each
 * may be smaller than the row stride, so that rows hold several matrices. Strides of scales are in
 * scales (UE8M0X4: in words); 0: a matrix's rows of scales times their leading dimension. Matrices
 * of D must not overlap: d_stride is at least (m-1) * ldd + n, or at least n with all of them side
 * by side in rows of ldd. With sums_batch all strides except a_stride and b_stride are 0: the
 * scales of the panels follow each other, [batch * ceil(tokens/128)][a_scale_ld]. A call without
 * this struct has zeros here. */
typedef struct octile_gemm_batch {
  size_t struct_size;
  int64_t a_stride;       /* multiple of 16; 0: m * lda */
  int64_t a_scale_stride; /* multiple of 4 */
  int64_t b_stride;       /* multiple of 16, or OCTILE_BATCH_SHARED; 0: n * ldb */
  int64_t b_scale_stride; /* multiple of 4, 128x128: any; or OCTILE_BATCH_SHARED */
  int64_t d_stride;       /* multiple of 16 bytes; 0: m * ldd */
} octile_gemm_batch;

/* Plans with FP8 D. */
typedef struct octile_gemm_d_scales {
  size_t struct_size;
  float* scale;     /* decode scales of D, written, [ceil(n/128)][scale_ld] as
                       octile_quantized_layout_query says; 4-byte aligned. Rows up to roundup(m,4)
                       are written, those after D's last as 1; with groups, only tokens' rows */
  int64_t scale_ld; /* >= roundup(m,4), a multiple of 4; 0: roundup(m,4) */
} octile_gemm_d_scales;

/* Plans with a sentry. */
typedef struct octile_gemm_monitor {
  size_t struct_size;
  uint32_t* sentry; /* set to 1 if an element of D as stored (FP8 D: the fp32 sum) is NaN or
                       infinite, and otherwise left as it is; 4-byte aligned. With
                       OCTILE_SENTRY_SQUARES: octile_squares.sentry */
} octile_gemm_monitor;

typedef struct octile_gemm_args {
  size_t struct_size;
  /* >= 0: the plan's dynamic dimension, m, or k if its problem text has k=?; for contiguous groups
   * the sum, for masked ones the rows allocated for each. With m = 0 nothing is done, and no
   * pointer is read. */
  int64_t tokens;

  /* Operands. a_scale has the layout of the plan's A granularity, aligned to 16 bytes if 1x128, to
   * 8 if per row (the first m are read), else to 4. a_scale_ld of 1x128 scales, the only fp32 ones
   * with more than one row: 0 is roundup(m,4); otherwise >= that and a multiple of 4. Per row as
   * 1x128; per tensor 0 or any >= 1. MX: bytes from one row's (32x32: 32 rows') E8M0 scales to the
   * next; 0: roundup(ceil(k/32),4); otherwise >= that and a multiple of 4. Bytes after the
   * ceil(k/32) scales of a row are ignored. */
  const void* a; /* [m][lda], 16-byte aligned */
  int64_t lda;   /* 0 (rule 5), or >= k and a multiple of 16 */
  const void* a_scale;
  int64_t a_scale_ld;
  const void* b;       /* [n][ldb], 16-byte aligned */
  int64_t ldb;         /* as lda */
  const void* b_scale; /* as a_scale, of B, whose rows are the columns of D */
  int64_t b_scale_ld;  /* 128x128: >= ceil(k/128); 0: roundup(ceil(k/128),4). Otherwise as
                          a_scale_ld, with n for m */
  const void* bias;    /* plans with a bias: [n], contiguous; aligned to two of its elements */
  void* d;             /* [m][ldd], 16-byte aligned; no operand may overlap it */
  int64_t ldd;         /* 0 (rule 5), or >= n and a multiple of 16 bytes */

  void* workspace; /* octile_plan_workspace_size bytes, 16-byte aligned; null if that is 0 */
  size_t workspace_bytes;
  uint32_t flags;   /* octile_run_flags */
  int32_t sm_limit; /* streaming multiprocessors that the kernel may occupy, >= 1 (it occupies at
                       least one cluster of its configuration); 0: all. D does not depend on it */

  /* Features; null: the call does not use it. */
  const octile_gemm_groups* groups;
  const octile_gemm_batch* batch;
  const octile_gemm_d_scales* d_scales;
  const octile_gemm_monitor* monitor;
} octile_gemm_args;

/* Enqueues the GEMM. The tensor core sums `promote` elements of K. These sums are added in fp32, in
 * K order; scales per row or per tensor multiply the result; then the bias is added, and the old D
 * if the plan accumulates. D is rounded once, to nearest even. With k = 0 the sum is empty: D
 * becomes the bias or 0, or stays if the plan accumulates and has no bias, and A and B may be null.
 * */
OCTILE_API octile_status octile_gemm_run(octile_plan* plan, const octile_gemm_args* args,
                                         void* stream);

/* Plans with groups (octile_grouping). Tensors with one value per group have one per group here. */
typedef struct octile_quantize_groups {
  size_t struct_size;
  int64_t group_count;    /* 0 to 65536, stacked tensors to 65535; with 0 nothing is done */
  const int32_t* offsets; /* contiguous groups, [group_count + 1]: the first row of each, ascending
                             from 0, then the rows of all, at most `rows` */
  const int32_t* counts; /* masked groups, [group_count]: the rows of each that exist. A count below
                            0 is taken as 0, one above `rows` as `rows`; the host
                            refuses both. x is [group_count][rows][ldx] and q
                            [group_count][rows][ldq], as those of stacked tensors are */
} octile_quantize_groups;

/* Plans with OCTILE_SCALING_DELAYED. octile_quantize_monitor.amax records the maximum for the next
 * scale. */
typedef struct octile_quantize_delayed {
  size_t struct_size;
  const float* encode_scale; /* [1], with groups one each: x is multiplied by it, and the scale is
                                1 / encode_scale */
} octile_quantize_delayed;

/* Plans with an octile_quantize_fused_desc. */
typedef struct octile_quantize_fused {
  size_t struct_size;
  const void* x1; /* inputs of the source beside x, of its type, laid out as x; of norms x1 is the
                     weight, and x2 and x3 a layer norm's bias and fp32 [rows], the means */
  const void* x2;
  const void* x3;
  int64_t ldx1, ldx2, ldx3;
  float* rstd;             /* [rows], source "rmsnorm": written, 1 / sqrt(mean(x^2) + norm_epsilon);
                              "rmsnorm_again" and "layernorm_again": read */
  float* bias_gradient;    /* [cols], plans with one: written, the sums of the source's columns */
  float* tap;              /* [rows][cols], plans with one: written, the values cast, as fp32 */
  const float* row_factor; /* [rows], plans with a weighted source */
} octile_quantize_fused;

/* The fingerprint of x for plans with octile_quantize_desc.skip_unchanged: in device memory,
 * aligned to 8 bytes, zero at first. It belongs to one x and one set of outputs, and its calls
 * follow each other in stream order. Zero `known` in that order whenever something else has written
 * the outputs. */
typedef struct octile_fingerprint {
  uint64_t sum[2];     /* of the contents at the last call */
  uint64_t partial[2]; /* zero between calls */
  uint32_t arrived;    /* zero between calls */
  uint32_t unchanged;  /* 1 if the last call had nothing to do, else 0 */
  uint32_t known;      /* 0: the next call quantises any x */
  uint32_t changes;    /* calls that quantised */
} octile_fingerprint;

/* Plans with octile_quantize_desc.skip_unchanged. A call reads x once on the device to compare it,
 * and quantises it if it has changed. A change is missed with a probability of about 2^-64. */
typedef struct octile_quantize_change {
  size_t struct_size;
  octile_fingerprint* state; /* one; of stacked tensors one each */
} octile_quantize_change;

/* Plans of OCTILE_GATHER. */
typedef struct octile_quantize_gather {
  size_t struct_size;
  const int32_t* index; /* [rows], on the device: row r of q is row index[r] of x. An index below 0
                           is taken as 0, one beyond x as its last row */
  int64_t x_rows;       /* rows of x, >= 1 */
} octile_quantize_gather;

/* Plans whose x is FP8. */
typedef struct octile_quantize_source_scales {
  size_t struct_size;
  const void* x_scale; /* layout of the plan's x granularity; of OCTILE_GATHER by row */
  int64_t x_scale_ld;  /* 0: as octile_quantized_layout_query says; by row: >= ceil(cols/128), 0:
                          roundup(ceil(cols/128),4) */
} octile_quantize_source_scales;

/* Statistics about the values of a call, written on the device. */
typedef struct octile_quantize_monitor {
  size_t struct_size;
  float* amax;         /* [1], with groups one each, plans with one scale per tensor: raised to the
                          largest finite |x|; null: not recorded */
  uint64_t* nonfinite; /* [1]: increased by the number of infinities and NaNs in x; null: not
                          counted */
  /* [1], with groups one each, plans with one scale per tensor that are not OCTILE_SCALING_DELAYED:
   * written, the factor that multiplied x. With it, a plan of OCTILE_SCALING_DELAYED can make
   * another copy of the same x with the same scale, without reading x for its maximum again. A call
   * that does nothing (no rows or columns, or skipped) does not write it. null: not written */
  float* encode_scale;
} octile_quantize_monitor;

typedef struct octile_quantize_args {
  size_t struct_size;
  int64_t rows;     /* >= 0; with 0 nothing is done, and no pointer is looked at */
  const void* x;    /* [rows][ldx], aligned to its element */
  int64_t ldx;      /* 0 (rule 5), or >= cols */
  void* q;          /* row-wise data [rows][ldq] */
  int64_t ldq;      /* 0 (rule 5), or >= cols; operands of a GEMM need a multiple of 16 */
  void* scale;      /* row-wise scales, layout of the plan's granularity */
  int64_t scale_ld; /* 0: as octile_quantized_layout_query says. Else 1x128: >= that and a multiple
                       of 4; 128x128: >= ceil(cols/128); swizzled: that alone; by row: >=
                       ceil(cols/128) */
  void* q_transposed; /* [cols][roundup(rows,16)]; null unless the plan has a transposed output */
  void* scale_transposed; /* as octile_quantized_layout_query says with transposed */
  void* workspace;        /* octile_plan_workspace_size bytes, 16-byte aligned; null if that is 0 */
  size_t workspace_bytes;
  /* [1]: if not 0 when the kernels begin, nothing is written, so that a graph replayed for every
   * microbatch quantises weights once a step; null: never. Null for plans with skip_unchanged. */
  const uint32_t* skip;

  /* Features; null: the call does not use it. */
  const octile_quantize_groups* groups;
  const octile_quantize_delayed* delayed;
  const octile_quantize_fused* fused;
  const octile_quantize_source_scales* source_scales;
  const octile_quantize_monitor* monitor;
  const octile_quantize_change* change;
  const octile_quantize_gather* gather;
} octile_quantize_args;

/* Enqueues the quantisation. Both outputs come from one read of x. With one scale per tensor, or
 * one per row and a transposed output, a kernel for the maxima reads x once before that. q and
 * scales are aligned to their elements.
 * - OCTILE_QUANTIZE, bit for bit (docs/numerics.md): amax over the finite elements of the block;
 *   encode = fp8_max / amax, correctly rounded; q = x * encode, rounded once to fp32, then to
 *   nearest even on the FP8 grid, saturating; scale = 1 / encode. Padding is written: scales 1,
 *   data 0. FP8 x is read as code * scale, rounded once to fp32; quantising it again takes one
 *   read.
 * - OCTILE_DEQUANTIZE: q, aligned to its element, is code * scale rounded to fp32 and then to
 *   q_dtype, both to nearest even. A NaN code or scale gives the NaN whose bits below the sign are
 *   all set. scale is null.
 * - OCTILE_TRANSPOSE: q_transposed and scale_transposed are the codes and scales of x.
 * - OCTILE_GATHER: q and scale are the codes and scales of rows of x.
 * - OCTILE_AMAX: x is [rows][cols] without gaps: ldx is 0 or cols. In stream order monitor->amax[0]
 *   becomes the larger of itself and the largest |x| that is finite, so zero it first. So the
 *   maximum covers all elements of several calls, and of ranks that reduce it (MAX).
 *   monitor->nonfinite counts as usual. q, scale and their transposed copies are null. With rows or
 *   cols 0 nothing is done. Errors: INVALID_ARGUMENT, which names the argument. */
OCTILE_API octile_status octile_quantize_run(octile_plan* plan, const octile_quantize_args* args,
                                             void* stream);

typedef enum octile_amax_choice {
  OCTILE_AMAX_LARGEST = 0, /* of the whole history */
  OCTILE_AMAX_LATEST = 1,  /* of this step: history[0] */
  OCTILE_AMAX_AVERAGE = 2  /* exponential: history[1] * (1 - share) + history[0] * share, kept in
                              history[1]; in the first step history[0] alone */
} octile_amax_choice;

typedef struct octile_scale_update_args {
  size_t struct_size;
  float* history;      /* [length][tensors], zero at first; octile_quantize_monitor.amax raises row
                          0 */
  float* encode_scale; /* [tensors], 1 at first */
  int64_t tensors;     /* >= 0; with 0 nothing is done */
  int64_t length;      /* >= 1; >= 2 with OCTILE_AMAX_AVERAGE */
  octile_amax_choice choice;
  int32_t margin;      /* the scale is for 2^margin times the amax; -126 to 126 */
  float average_share; /* of this step, with OCTILE_AMAX_AVERAGE; in (0, 1] */

  /* Several such states, all of them in the same launch. They share no element. */
  int64_t states;         /* >= 0; 0: 1 */
  int64_t history_stride; /* elements from a state's history to the next's; 0: length * tensors */
  int64_t scale_stride;   /* from a state's scales to the next's; 0: tensors */
} octile_scale_update_args;

/* Updates the scales of delayed scaling, once a step, all tensors in one launch. For each tensor it
 * chooses an amax from the history, taking values that are not finite as 0. It sets encode_scale =
 * fp8_max / amax * 2^-margin by the plan's format and epsilon, unless the amax is 0. Then it shifts
 * the history by one row and clears row 0. The plan must have delayed scaling and be prepared for
 * any count. Make one call for each of the two FP8 formats. */
OCTILE_API octile_status octile_scale_update_run(octile_plan* plan,
                                                 const octile_scale_update_args* args,
                                                 void* stream);

#ifdef __cplusplus
}
#endif
#endif /* OCTILE_OCTILE_H_ */
