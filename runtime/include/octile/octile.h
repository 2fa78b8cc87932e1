/* Octile: FP8 quantise and GEMM kernels, generated, compiled, cached and run at run time.
 *
 * Conventions, stated once:
 *  1. Every struct begins with `struct_size`, set by the caller to sizeof of the struct it was
 *     compiled with. Bytes the caller does not know of are taken as zero; a larger struct than the
 *     library knows is accepted where its unknown tail is all zero, refused otherwise.
 *  2. Enums are append-only and every value is explicit.
 *  3. Every call returns an octile_status. A failing call leaves its outputs untouched and a
 *     sentence in octile_last_error() of the calling thread: the argument, its value, what is
 *     allowed.
 *  4. Nothing is printed, aborted or thrown across this boundary. Messages go to the log callback.
 *  5. Matrices are row-major; leading dimensions are in elements, and 0 means packed (see each).
 *     D[m,n] (+)= A[m,k] * B[n,k]^T. An extent (m, n, k, rows, cols) is at most 2^31 - 1, a tensor
 *     at most 2^63 - 1 bytes.
 *  6. A scale multiplies: x ~ q * scale.
 *  7. Device pointers, except where a plan's device is "host". `stream` is a CUstream (a
 *     cudaStream_t is the same pointer); null is the legacy default stream. Kernels are launched
 *     with programmatic stream serialisation and wait by themselves for the work before them: the
 *     stream's order holds, and captured behind a kernel they make a programmatic edge. Some let
 *     the stream's next kernel start beside them: one of the caller's own that asks for
 *     programmatic serialisation must wait (griddepcontrol.wait) before it touches memory. Products
 *     of few tokens ask for weights into L2 before they wait; what is written there until the work
 *     before them ends is what they read.
 *  8. Handles may be used from several threads at once, except that destroying one while another
 *     call uses it is undefined. A workspace belongs to one call in flight.
 *  9. Version policy: the SONAME is the major version. Within a major version functions, enum
 *     values and struct tails are only added.
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
  OCTILE_INVALID_ARGUMENT = 1, /* the sentence names the argument, its value and what is allowed */
  OCTILE_UNSUPPORTED = 2,    /* a combination the support matrix refuses, or a device without it */
  OCTILE_NOT_PREPARED = 3,   /* run before prepare covered this token count */
  OCTILE_NO_DRIVER = 4,      /* libcuda.so.1 cannot be opened, or has no device */
  OCTILE_NO_COMPILER = 5,    /* NVRTC cannot be opened and the kernel is not in the cache */
  OCTILE_COMPILE_FAILED = 6, /* the sentence carries NVRTC's log */
  OCTILE_DEVICE_ERROR = 7,   /* a driver call failed; the sentence names it and its error */
  OCTILE_OFFLINE = 8,        /* offline, and the kernel is not in the cache */
  OCTILE_OUT_OF_MEMORY = 9,
  OCTILE_CAPTURING = 10, /* not possible inside a stream capture: run of what is unprepared */
  OCTILE_INTERNAL = 11   /* a defect in this library: please report it */
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
  OCTILE_SCALE_F32_POW2 = 2,    /* fp32 restricted to powers of two */
  OCTILE_SCALE_UE8M0X4 = 3, /* 1x128: the biased exponents of four consecutive blocks of k in an
                                   int32, the first in the lowest byte;
                                   [ceil(ceil(k/128)/4)][roundup(m,4)] */
  OCTILE_SCALE_E8M0 = 4,        /* the biased exponent of a power of two, one byte (OCP MX) */
  OCTILE_SCALE_BF16 = 5         /* the fp32 scale rounded to nearest even, for communication */
} octile_scale_format;

/* Which power of two an E8M0 scale is. */
typedef enum octile_e8m0_rounding {
  OCTILE_E8M0_UP = 0,       /* the smallest that lets no finite element saturate */
  OCTILE_E8M0_OCP_FLOOR = 1 /* 2^floor(log2(amax)) over the format's largest power of two: the text
                               of OCP MX 1.0; the largest elements of a block may saturate */
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

/* Version of the library in use, which may differ from this header's. */
OCTILE_API void octile_version(int* major, int* minor, int* patch);

/* "OCTILE_INVALID_ARGUMENT"; never null, also for a value this version does not know. */
OCTILE_API const char* octile_status_name(octile_status status);

/* The sentence of this thread's last failing call; "" if none. Valid until its next call. */
OCTILE_API const char* octile_last_error(void);

typedef struct octile_library_options {
  size_t struct_size;
  const char* cache_dir;   /* writable root; null: OCTILE_CACHE_DIR, else the XDG cache folder;
                              "": none */
  const char* cache_roots; /* read-only roots, ':'-separated; null: OCTILE_CACHE_ROOTS; "": none */
  octile_log_callback log; /* null: no messages */
  void* log_user;
  octile_log_level log_level; /* least severe level delivered */
  int32_t offline;            /* nonzero: never compile, take cached kernels of any compiler; also
                                 OCTILE_OFFLINE=1 */
  int32_t disable_cache;      /* nonzero: neither read nor write a disk cache */
  int32_t compile_threads;    /* 0: one per core; at most 1024. Started on first need */
} octile_library_options;

/* Makes a library handle. Opens neither driver nor compiler: that happens on first need.
 * options: null for all defaults. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. */
OCTILE_API octile_status octile_library_create(const octile_library_options* options,
                                               octile_library** library);
/* Destroys a handle and unloads its kernels: work launched by its plans must have completed, and no
 * graph captured from them may run again. Its plans must be destroyed first (INVALID_ARGUMENT
 * otherwise, and nothing is destroyed). Waits for a compilation that is running. Null is
 * a no-op. */
OCTILE_API octile_status octile_library_destroy(octile_library* library);

/* ---- layouts --------------------------------------------------------------------------------- */

typedef struct octile_quantized_layout {
  size_t struct_size;
  int64_t data_rows, data_ld, data_bytes;    /* FP8 elements */
  int64_t scale_rows, scale_ld, scale_bytes; /* scales as stored, padding included */
} octile_quantized_layout;

/* Sizes of a [rows, cols] tensor quantised as (dtype, granularity, format). transposed nonzero: the
 * columnwise copy, data [cols][roundup(rows,16)]. Errors: INVALID_ARGUMENT, UNSUPPORTED. */
OCTILE_API octile_status octile_quantized_layout_query(octile_dtype dtype,
                                                       octile_granularity granularity,
                                                       octile_scale_format format, int64_t rows,
                                                       int64_t cols, int32_t transposed,
                                                       octile_quantized_layout* layout);

/* ---- plans ----------------------------------------------------------------------------------- */

#define OCTILE_DYNAMIC ((int64_t)-1)
#define OCTILE_PROMOTE_NONE (-1) /* all of K is summed by the tensor core */

/* D[m,n] (+)= A[m,k] * B[n,k]^T for every token count m. */
typedef struct octile_gemm_desc {
  size_t struct_size;
  int64_t n; /* multiple of 8, >= 0 */
  int64_t k; /* multiple of 16, >= 0 */
  octile_dtype a_dtype;
  octile_granularity a_granularity;
  octile_scale_format a_scale_format;
  octile_dtype b_dtype;
  octile_granularity b_granularity;
  octile_scale_format b_scale_format;
  octile_dtype d_dtype;
  int32_t accumulate;      /* nonzero: D += */
  int32_t promote;         /* K elements per fp32 promotion; 0: 128; or OCTILE_PROMOTE_NONE */
  int32_t batch_invariant; /* nonzero: a row's bits do not depend on m */
} octile_gemm_desc;

/* Where the scale of a tensor comes from. */
typedef enum octile_scale_policy {
  OCTILE_SCALING_CURRENT = 0, /* its own maximum */
  OCTILE_SCALING_DELAYED = 1  /* per tensor: octile_quantize_args.encode_scale, which
                                octile_scale_update_run derives from the maxima of earlier steps */
} octile_scale_policy;

typedef enum octile_quantize_output {
  OCTILE_ROWWISE = 1,
  OCTILE_TRANSPOSED = 2,
  OCTILE_ROWWISE_AND_TRANSPOSED = 3
} octile_quantize_output;

/* What becomes of x. */
typedef enum octile_quantize_operation {
  OCTILE_QUANTIZE = 0,   /* q = fp8(x * encode); x may be FP8 with scales of its own */
  OCTILE_DEQUANTIZE = 1, /* q = x * scale, rounded to fp32 and then to q_dtype (bf16, fp16, fp32) */
  OCTILE_TRANSPOSE = 2   /* the codes of x and its scales, transposed and not touched */
} octile_quantize_operation;

/* Several tensors in one: the token groups of a mixture of experts. */
typedef enum octile_grouping {
  OCTILE_GROUPS_NONE = 0,
  OCTILE_GROUPS_CONTIGUOUS =
      1,                   /* groups follow one another in the rows; octile_quantize_args.offsets */
  OCTILE_GROUPS_MASKED = 2 /* groups of as many rows each, of which the first
                              octile_quantize_args.counts exist */
} octile_grouping;

/* Quantising a flat range of the elements of a row-major tensor, the rest of which lies elsewhere
 * (a weight split over optimizer shards): every shard raises the maxima of the blocks it touches,
 * the caller reduces them over the shards, every shard quantises its range. */
typedef enum octile_shard_step {
  OCTILE_SHARD_NONE = 0,
  OCTILE_SHARD_AMAX = 1,
  OCTILE_SHARD_CAST = 2
} octile_shard_step;

/* How E8M0 scales lie in memory. */
typedef enum octile_scale_layout {
  OCTILE_SCALE_LAYOUT_LINEAR = 0,
  OCTILE_SCALE_LAYOUT_SWIZZLED = 1 /* in tiles of 128 x 4, as block-scaled tensor cores read them */
} octile_scale_layout;

/* q[rows,cols], scales = quantise(x[rows,cols]) for every row count. */
typedef struct octile_quantize_desc {
  size_t struct_size;
  int64_t cols; /* >= 0 */
  octile_dtype x_dtype;
  octile_dtype q_dtype;
  octile_granularity granularity;
  octile_scale_format scale_format;
  octile_quantize_output output;      /* 0: OCTILE_ROWWISE */
  float amax_epsilon;                 /* an amax below it is raised to it; >= 0, finite */
  octile_e8m0_rounding e8m0_rounding; /* of E8M0 scales; 0: OCTILE_E8M0_UP */
  octile_scale_policy policy;
  octile_quantize_operation operation;
  octile_granularity x_granularity;   /* of FP8 x, which has scales */
  octile_scale_format x_scale_format; /* of FP8 x */
  const char* source;    /* what is quantised in place of x: a fused source by name ("silu_mul") or
                            an expression over x0 (x itself) to x3; null: x */
  float norm_epsilon;    /* of source "rmsnorm"; > 0, 0: 1e-6 */
  int32_t bias_gradient; /* nonzero: also the sums of the source's columns */
  int32_t tap;           /* nonzero: also the fp32 values that the cast sees */
  octile_grouping grouping;
  octile_shard_step shard;
  octile_scale_layout scale_layout;
} octile_quantize_desc;

/* Makes a plan. It stands for every token count; nothing is compiled yet.
 * device: "cuda:N" (a live GPU) or "cuda" (that of the calling thread's current context, else the
 *   first), the name of a known device ("h200": plan and compile without one), or "host" (the
 *   multi-threaded reference executor; pointers are host pointers, the stream is ignored, run
 *   returns when the work is done, and nothing needs preparing). Null: "cuda".
 * Errors: INVALID_ARGUMENT, UNSUPPORTED, NO_DRIVER. */
OCTILE_API octile_status octile_gemm_plan_create(octile_library* library, const char* device,
                                                 const octile_gemm_desc* desc, octile_plan** plan);
OCTILE_API octile_status octile_quantize_plan_create(octile_library* library, const char* device,
                                                     const octile_quantize_desc* desc,
                                                     octile_plan** plan);
/* The same from a problem's canonical text, for example
 * "gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128". Where the text
 * states the token count, the plan takes that count only. */
OCTILE_API octile_status octile_plan_create(octile_library* library, const char* device,
                                            const char* problem, octile_plan** plan);
/* Null is a no-op. No call may be using the plan; work already launched is unaffected. Background
 * work not yet begun is dropped. */
OCTILE_API octile_status octile_plan_destroy(octile_plan* plan);

typedef enum octile_prepare_flags {
  OCTILE_PREPARE_DEFAULT = 0, /* returns when every kernel of the range is ready */
  OCTILE_PREPARE_ASYNC = 1,   /* returns when one generic kernel serves the whole range; the fastest
                                 ones follow in the background and are taken up when ready */
} octile_prepare_flags;

/* Compiles or finds in the cache, and loads, the distinct kernels for token counts lo..hi (both
 * included, 0 <= lo <= hi), in parallel. Idempotent. Legal while streams capture, in any mode:
 * kernels are loaded by the library's own threads, in the relaxed capture mode. Where the plan's
 * device is a name, compiles and caches only. flags: octile_prepare_flags. Where some kernels fail,
 * the others are ready and the first error is returned.
 * Errors: INVALID_ARGUMENT, NO_COMPILER, COMPILE_FAILED, OFFLINE, OUT_OF_MEMORY, DEVICE_ERROR. */
OCTILE_API octile_status octile_plan_prepare(octile_plan* plan, int64_t lo, int64_t hi,
                                             uint32_t flags);
/* Waits for background work of this plan and returns its first error, once. */
OCTILE_API octile_status octile_plan_wait(octile_plan* plan);

/* Writes the canonical problem text, or a JSON object: problem, device, and kernels, an array of
 * the kernels prepared so far, each with buckets (the largest token count of every bucket it
 * serves; these are 1, 2, 4, ... 128, then two in every doubling, 192, 256, 384, ... 1024, then
 * four, 1280, 1536, 1792, 2048, ...),
 * chosen_by (for each of these "record", "near record" or "model", by what the kernel was chosen;
 * null where it serves until the chosen one is ready), name, config, registers, smem_bytes,
 * spill_store_bytes, spill_load_bytes, compile_ms (of the compile that made it, whenever that was),
 * cubin_bytes, cache ("hit" or "miss"), template, source_digest. NUL-terminated UTF-8.
 * size: in, the buffer's bytes; out, the bytes needed. A null buffer queries.
 * Errors: INVALID_ARGUMENT where the buffer is too small; the sentence says what is needed. */
OCTILE_API octile_status octile_plan_problem(octile_plan* plan, char* buffer, size_t* size);
OCTILE_API octile_status octile_plan_describe(octile_plan* plan, char* buffer, size_t* size);

/* Workspace bytes a run at this token count needs; 0 where null may be passed. */
OCTILE_API octile_status octile_plan_workspace_size(octile_plan* plan, int64_t tokens,
                                                    size_t* bytes);

/* Sizes of one output of a quantise plan, in which its groups and the layout of its scales count.
 * rows: of x; of each group where they are masked. groups: 0 to 65536; 0 for a plan without.
 * transposed nonzero: the columnwise copy.
 * - Without groups: as octile_quantized_layout_query; swizzled scales fill whole tiles of 128 x 4.
 * - Contiguous groups, row-wise: as one tensor of `rows` rows. Rows and scales of no group are not
 *   touched, but for the padding behind the last group's scales.
 * - Contiguous groups, transposed: group g's columns begin on a multiple of 128, the sum of
 *   roundup(rows of i, 128) over the groups i before it, and end in zeros up to the next multiple;
 *   its scales are those of its ceil(rows / 128) blocks (1x32: of four times as many). data_ld is
 *   the most that `rows` rows in `groups` groups can take; what is behind the last group is not
 *   touched.
 * - Masked groups: `groups` tensors of [rows, cols], one behind the other; of each, rows from its
 *   count on are neither read nor written.
 * - One scale a tensor: [groups]; an empty group's is that of an amax of 0.
 * Errors: INVALID_ARGUMENT (no quantise plan, an output it does not have, rows, groups). */
OCTILE_API octile_status octile_plan_quantized_layout(octile_plan* plan, int64_t rows,
                                                      int64_t groups, int32_t transposed,
                                                      octile_quantized_layout* layout);

/* ---- running --------------------------------------------------------------------------------- */

typedef enum octile_run_flags {
  OCTILE_RUN_DEFAULT = 0,
  OCTILE_RUN_B_READY = 1, /* the kernel may start while the work before it in the stream still
                             runs (programmatic dependent launch), and reads B and B's scales at
                             once: nothing that may still run may write those. A, A's scales and D
                             are not touched before that work has ended. Up to 1 us less a call
                             where products of few tokens follow each other; has no effect on
                             products that would lose by it: whose kernel lets nothing start beside
                             it (pdl=end of its configuration), reads mostly A, or shares B in
                             a cluster */
} octile_run_flags;

typedef struct octile_gemm_args {
  size_t struct_size;
  int64_t m;           /* >= 0; 0 does nothing, and no pointer is looked at */
  const void* a;       /* [m][lda], 16-byte aligned */
  int64_t lda;         /* >= k, multiple of 16; 0: k */
  const void* a_scale; /* layout of the plan's A granularity; 16-byte aligned */
  int64_t a_scale_ld;  /* 0: packed, roundup(m,4); else >= that and a multiple of 4 */
  const void* b;       /* [n][ldb], 16-byte aligned */
  int64_t ldb;         /* >= k, multiple of 16; 0: k */
  const void* b_scale; /* layout of the plan's B granularity; 4-byte aligned */
  int64_t b_scale_ld;  /* 0: roundup(ceil(k/128),4); else >= ceil(k/128) */
  void* d;             /* [m][ldd], 16-byte aligned */
  int64_t ldd;         /* >= n, row stride a multiple of 16 bytes; 0: n */
  void* workspace;     /* octile_plan_workspace_size bytes, 16-byte aligned; null where 0 */
  size_t workspace_bytes;
  uint32_t flags; /* octile_run_flags */
} octile_gemm_args;

/* Enqueues the product on `stream`. Neither compiles, allocates, synchronises nor takes a global
 * lock; legal in stream capture. Products are summed by the tensor core over `promote` elements of
 * K and then added in fp32, in K order; D is rounded once, to nearest even. Same plan, same inputs,
 * same bits. Operands are read and D written in stream order; none may overlap D. With k = 0 the
 * sum is empty: D becomes 0, or stays where the plan accumulates, and A and B may be null. Launched
 * in the thread's current context where that is on the plan's device, else in the device's primary
 * context.
 * Errors: INVALID_ARGUMENT, NOT_PREPARED, CAPTURING (not prepared, and the stream captures),
 * DEVICE_ERROR (also where the plan's device is a name). */
OCTILE_API octile_status octile_gemm_run(octile_plan* plan, const octile_gemm_args* args,
                                         void* stream);

typedef struct octile_quantize_args {
  size_t struct_size;
  int64_t rows;     /* >= 0; 0 does nothing, and no pointer is looked at */
  const void* x;    /* [rows][ldx], aligned to its element */
  int64_t ldx;      /* >= cols; 0: cols */
  void* q;          /* row-wise data [rows][ldq] */
  int64_t ldq;      /* >= cols; 0: cols */
  void* scale;      /* row-wise scales, layout of the plan's granularity */
  int64_t scale_ld; /* 0: as octile_quantized_layout_query says; else 1x128: >= that and a multiple
                       of 4; 128x128: >= ceil(cols/128); swizzled: that alone */
  void* q_transposed; /* [cols][roundup(rows,16)]; null unless the plan has a transposed output */
  void* scale_transposed; /* as octile_quantized_layout_query says with transposed */
  void* workspace;        /* octile_plan_workspace_size bytes, 16-byte aligned; null where 0 */
  size_t workspace_bytes;
  const float* encode_scale; /* [1], delayed scaling only: x is multiplied by it, the scale is 1 / encode;
                          with groups one each */
  float* amax; /* [1], plans with one scale per tensor: raised to the largest finite |x|; with
                  groups one each; null: not kept */
  const uint32_t* skip; /* [1]: where not 0 when the kernels begin, nothing is written (weights
                           quantised once a step, in a graph replayed for every microbatch);
                           null: never */
  const void* x_scale;  /* of FP8 x, layout of the plan's x granularity */
  int64_t x_scale_ld;   /* 0: as octile_quantized_layout_query says */
  const void* x1;       /* further inputs of a fused source, of x's type, as x */
  const void* x2;
  const void* x3;
  int64_t ldx1, ldx2, ldx3;
  float* rstd;            /* [rows], source "rmsnorm", whose weight is x1: written,
                             1 / sqrt(mean(x^2) + norm_epsilon) */
  float* bias_gradient;   /* [cols], plans with one: written, the sums of the source's columns */
  float* tap;             /* [rows][cols], plans with one: written, what was quantised, as fp32 */
  const int32_t* offsets; /* [groups + 1], contiguous groups: the first row of each, from 0 on
                             ascending, then the rows of all, at most `rows` */
  const int32_t* counts;  /* [groups], masked groups: the rows of each that exist; below 0 is
                             taken as 0, above `rows` as `rows`; x is [groups][rows][ldx] and q
                             [groups][rows][ldq] */
  int64_t groups;         /* 0 to 65536; 0 does nothing where the plan has groups */
  int64_t shard_start;    /* flat range: its first element in [rows][cols]; x and q point to that
                             element, and lie flat from there on */
  int64_t shard_length;   /* its elements; 0 does nothing */
  float* shard_amax;      /* largest finite |x| of every block of the whole tensor, laid out as the
                             granularity's fp32 scales (1x32: as many fp32 as scales), zero before
                             the first shard. The cast reads it and writes the scales of the blocks
                             it touches, in the whole tensor's array `scale` */
  uint64_t* nonfinite;    /* [1]: raised by the infinities and NaNs of x, each counted once a call;
                             null: not counted */
} octile_quantize_args;

/* Enqueues the quantisation on `stream`; rules as octile_gemm_run. Both outputs come from one read
 * of x; with one scale per tensor, or per row and a transposed output, a kernel before reads x too,
 * to find the maxima. q and scales may have any alignment their element allows. Arithmetic, bit for
 * bit: amax over the finite elements of the block; encode = fp8_max / amax correctly rounded; q = x
 * * encode rounded once to fp32, then to nearest even on the FP8 grid, saturating; scale = 1 /
 * encode (docs/numerics.md). Padding is written: scales 1, data 0. FP8 x is read as code * scale,
 * rounded once to fp32: quantising it again takes one read.
 * OCTILE_DEQUANTIZE: q, aligned to its element, is code * scale rounded to fp32 and then to
 * q_dtype, both to nearest even; a NaN of code or scale gives the NaN whose bits below the sign are
 * set; scale is null. OCTILE_TRANSPOSE: q_transposed and scale_transposed are the codes and scales
 * of x. */
OCTILE_API octile_status octile_quantize_run(octile_plan* plan, const octile_quantize_args* args,
                                             void* stream);

typedef enum octile_amax_choice {
  OCTILE_AMAX_LARGEST = 0, /* of the whole history */
  OCTILE_AMAX_LATEST = 1,  /* of this step: history[0] */
  OCTILE_AMAX_AVERAGE = 2  /* exponential: history[1] * (1 - share) + history[0] * share, kept in
                              history[1]; the first step's alone */
} octile_amax_choice;

typedef struct octile_scale_update_args {
  size_t struct_size;
  float* history;  /* [length][tensors], zero at first; row 0 is what octile_quantize_args.amax
                      raised */
  float* encode_scale;   /* [tensors], 1 at first */
  int64_t tensors; /* >= 0; 0 does nothing */
  int64_t length;  /* >= 1; >= 2 with OCTILE_AMAX_AVERAGE */
  octile_amax_choice choice;
  int32_t margin;      /* the scale leaves room for 2^margin times the amax; -126 to 126 */
  float average_share; /* of this step, with OCTILE_AMAX_AVERAGE; in (0, 1] */
} octile_scale_update_args;

/* Delayed scaling, once a step, all tensors in one launch: chooses an amax of each from its history
 * (what is not finite counts as 0), sets encode = fp8_max / amax * 2^-margin by the plan's format
 * and epsilon, leaves it where the amax is 0, moves the history on by one row and clears row 0. The
 * plan: of delayed scaling, prepared for any count. Tensors of both FP8 formats need a call each.
 * Errors: as octile_quantize_run. */
OCTILE_API octile_status octile_scale_update_run(octile_plan* plan,
                                                 const octile_scale_update_args* args,
                                                 void* stream);

#ifdef __cplusplus
}
#endif
#endif /* OCTILE_OCTILE_H_ */
