/* Every call with leading dimensions of 0 reads the layout that a quantiser writes with 0, for
 * every number of columns. Each tensor has the bytes that the size queries state and ends where
 * memory ends that may not be touched, so that a read or write beyond it ends the program. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "octile/octile.h"

enum { TOKENS = 5, N = 16, GROUPS = 2, MOST_COLS = 300 };

static void fail(const char* what, int64_t cols) {
  fprintf(stderr, "%s with %lld columns; last error: %s\n", what, (long long)cols,
          octile_last_error());
  exit(1);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Memory from one arena whose pages alternate between usable and not. Everything is given back at
 * once. */
enum { PLACES = 64, PLACE_BYTES = 64 * 1024 };
static unsigned char* arena;
static int places;

static void make_arena(void) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const size_t step = PLACE_BYTES + page;
  arena = mmap(NULL, PLACES * step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (arena == MAP_FAILED) exit(2);
  for (size_t i = 0; i < PLACES; ++i) {
    if (mprotect(arena + i * step + PLACE_BYTES, page, PROT_NONE) != 0) exit(2);
  }
}

/* Returns `bytes` bytes, all 0xA5, behind which no byte may be touched. */
static void* guarded(int64_t bytes) {
  if (bytes > PLACE_BYTES || places == PLACES) exit(2);
  const size_t step = PLACE_BYTES + (size_t)sysconf(_SC_PAGESIZE);
  unsigned char* end = arena + (size_t)places++ * step + PLACE_BYTES;
  return memset(end - bytes, 0xA5, (size_t)bytes);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static octile_library* library;

static octile_plan* plan_of(const char* text, int64_t cols) {
  octile_plan* plan = NULL;
  if (octile_plan_create(library, "host", text, &plan) != OCTILE_OK) fail(text, cols);
  return plan;
}

typedef struct copy {
  void *codes, *scale;
} copy;

static copy room_for(octile_plan* plan, int64_t rows, int64_t groups, int32_t transposed) {
  octile_quantized_layout layout = {.struct_size = sizeof layout};
  if (octile_plan_quantized_layout(plan, rows, groups, transposed, &layout) != OCTILE_OK)
    fail("octile_plan_quantized_layout", 0);
  return (copy){guarded(layout.data_bytes), guarded(layout.scale_bytes)};
}

/* Runs a quantise plan of x, which is fp32, or FP8 with scales. `out` is "row", "col" or "both"; an
 * output that is not asked for is null. */
static void quantise(const char* x_type, const char* q_type, const char* out, int64_t rows,
                     int64_t cols, copy x, const octile_quantize_groups* groups, copy* row,
                     copy* col) {
  char text[160];
  snprintf(text, sizeof text, "quantize rows=? cols=%lld x=%s q=%s out=%s%s", (long long)cols,
           x_type, q_type, out,
           groups == NULL            ? ""
           : groups->offsets != NULL ? " group=contiguous"
                                     : " group=masked");
  octile_plan* plan = plan_of(text, cols);
  const int64_t count = groups == NULL ? 0 : groups->group_count;
  if (row != NULL) *row = room_for(plan, rows, count, 0);
  if (col != NULL) *col = room_for(plan, rows, count, 1);
  const octile_quantize_source_scales scales = {.struct_size = sizeof scales, .x_scale = x.scale};
  const octile_quantize_args args = {.struct_size = sizeof args,
                                     .rows = rows,
                                     .x = x.codes,
                                     .q = row == NULL ? NULL : row->codes,
                                     .scale = row == NULL ? NULL : row->scale,
                                     .q_transposed = col == NULL ? NULL : col->codes,
                                     .scale_transposed = col == NULL ? NULL : col->scale,
                                     .groups = groups,
                                     .source_scales = x.scale == NULL ? NULL : &scales};
  if (octile_quantize_run(plan, &args, NULL) != OCTILE_OK) fail(text, cols);
  octile_plan_destroy(plan);
}

static float* dequantise(const char* type, int64_t rows, int64_t cols, copy x) {
  char text[160];
  snprintf(text, sizeof text, "dequantize rows=? cols=%lld x=%s q=fp32 out=row", (long long)cols,
           type);
  octile_plan* plan = plan_of(text, cols);
  float* values = guarded(rows * cols * 4);
  const octile_quantize_source_scales scales = {.struct_size = sizeof scales, .x_scale = x.scale};
  const octile_quantize_args args = {.struct_size = sizeof args,
                                     .rows = rows,
                                     .x = x.codes,
                                     .q = values,
                                     .source_scales = &scales};
  if (octile_quantize_run(plan, &args, NULL) != OCTILE_OK) fail(text, cols);
  octile_plan_destroy(plan);
  return values;
}

static copy transpose(const char* type, int64_t rows, int64_t cols, copy x) {
  char text[160];
  snprintf(text, sizeof text, "transpose rows=? cols=%lld x=%s q=%s out=col", (long long)cols, type,
           type);
  octile_plan* plan = plan_of(text, cols);
  const copy made = room_for(plan, rows, 0, 1);
  const octile_quantize_source_scales scales = {.struct_size = sizeof scales, .x_scale = x.scale};
  const octile_quantize_args args = {.struct_size = sizeof args,
                                     .rows = rows,
                                     .x = x.codes,
                                     .q_transposed = made.codes,
                                     .scale_transposed = made.scale,
                                     .source_scales = &scales};
  if (octile_quantize_run(plan, &args, NULL) != OCTILE_OK) fail(text, cols);
  octile_plan_destroy(plan);
  return made;
}

/* D[rows,N] = A B^T of a text, whose operands follow "gemm ". */
static float* multiply(const char* text, int64_t cols, int64_t tokens, int64_t rows_of_d, copy a,
                       copy b, const octile_gemm_groups* groups) {
  octile_plan* plan = plan_of(text, cols);
  float* d = guarded(rows_of_d * N * 4);
  octile_gemm_args args = {.struct_size = sizeof args, .tokens = tokens, .groups = groups};
  args.a = a.codes, args.a_scale = a.scale;
  args.b = b.codes, args.b_scale = b.scale;
  args.d = d;
  if (octile_gemm_run(plan, &args, NULL) != OCTILE_OK) fail(text, cols);
  octile_plan_destroy(plan);
  return d;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static float* numbers(int64_t rows, int64_t cols, int seed) {
  float* x = guarded(rows * cols * 4);
  for (int64_t i = 0; i < rows * cols; ++i) x[i] = (float)((i * 7 + seed) % 23 - 11) / 8;
  return x;
}

/* Compares d[rows][N] with a[rows][depth] b[N][depth]^T, to fp32's rounding. */
static void expect_product(const char* text, const float* d, const float* a, const float* b,
                           int64_t rows, int64_t depth) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < N; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t p = 0; p < depth; ++p) {
        const double product = (double)a[i * depth + p] * (double)b[j * depth + p];
        sum += product, magnitude += fabs(product);
      }
      if (!(fabs((double)d[i * N + j] - sum) <= magnitude * 1e-5)) fail(text, depth);
    }
  }
}

/* Compares fp32 values with the quantised ones. E4M3 keeps 3 bits of a value, and what is far below
 * the largest of its block less. */
static void expect_near(const char* text, const float* values, const float* x, int64_t count,
                        int64_t cols) {
  for (int64_t i = 0; i < count; ++i) {
    if (!(fabsf(values[i] - x[i]) <= fabsf(x[i]) / 15 + 0.01F)) fail(text, cols);
  }
}

/* Row-wise copies: what is quantised is multiplied, dequantised, transposed and quantised again. */
static void check_rowwise(const char* a_type, const char* b_type, const char* promote,
                          int64_t cols) {
  float *x = numbers(TOKENS, cols, 1), *w = numbers(N, cols, 5);
  copy a, b, again;
  quantise("fp32", a_type, "row", TOKENS, cols, (copy){x, NULL}, NULL, &a, NULL);
  quantise("fp32", b_type, "row", N, cols, (copy){w, NULL}, NULL, &b, NULL);
  const float *a_values = dequantise(a_type, TOKENS, cols, a), *b_values;
  b_values = dequantise(b_type, N, cols, b);
  expect_near("dequantised A", a_values, x, TOKENS * cols, cols);
  expect_near("dequantised B", b_values, w, N * cols, cols);
  char text[200];
  snprintf(text, sizeof text, "gemm m=? n=%d k=%lld a=%s b=%s d=fp32 acc=0 promote=%s", N,
           (long long)cols, a_type, b_type, promote);
  const float* d = multiply(text, cols, TOKENS, TOKENS, a, b, NULL);
  expect_product(text, d, a_values, b_values, TOKENS, cols);

  if (strcmp(a_type, "e4m3:1x128") == 0) {
    quantise("e4m3:1x128", "e4m3:1x128", "row", TOKENS, cols, a, NULL, &again, NULL);
    expect_near("quantised again", dequantise(a_type, TOKENS, cols, again), x, TOKENS * cols, cols);
    /* The transposed copy of B is an operand of a GEMM that sums over its N rows. */
    const copy flipped = transpose(b_type, N, cols, b);
    copy dy;
    quantise("fp32", "e4m3:1x128", "row", N, N, (copy){numbers(N, N, 3), NULL}, NULL, &dy, NULL);
    char back[200];
    snprintf(back, sizeof back, "gemm m=? n=%lld k=%d a=e4m3:1x128 b=%s d=fp32 acc=0 promote=128",
             (long long)cols, N, b_type);
    if (cols % 8 == 0) {
      octile_plan* plan = plan_of(back, cols);
      const octile_gemm_args args = {.struct_size = sizeof args,
                                     .tokens = N,
                                     .a = dy.codes,
                                     .a_scale = dy.scale,
                                     .b = flipped.codes,
                                     .b_scale = flipped.scale,
                                     .d = guarded(N * cols * 4)};
      if (octile_gemm_run(plan, &args, NULL) != OCTILE_OK) fail(back, cols);
      octile_plan_destroy(plan);
    }
  }
  places = 0;
}

/* Transposed copies, whose columns are the tokens: D[N,N] sums over `tokens`. */
static void check_transposed(int64_t tokens) {
  float *x = numbers(tokens, N, 1), *dy = numbers(tokens, N, 5);
  copy a, b, row;
  quantise("fp32", "e4m3:1x128", "both", tokens, N, (copy){dy, NULL}, NULL, &row, &a);
  quantise("fp32", "e4m3:1x128", "col", tokens, N, (copy){x, NULL}, NULL, NULL, &b);
  char text[200];
  snprintf(text, sizeof text,
           "gemm m=%d n=%d k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=0 promote=128", N, N);
  const float* d = multiply(text, tokens, tokens, N, a, b, NULL);
  for (int i = 0; i < N; ++i) {
    for (int j = 0; j < N; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        const double product = (double)dy[t * N + i] * (double)x[t * N + j];
        sum += product, magnitude += fabs(product);
      }
      /* Each operand is off by 1/16 at most. */
      if (!(fabs((double)d[i * N + j] - sum) <= magnitude / 7 + 0.01)) fail(text, tokens);
    }
  }
  places = 0;
}

/* Groups of tokens with a matrix B each. Masked groups have room for TOKENS rows each. */
static void check_groups(int masked, int64_t cols) {
  static const int32_t offsets[GROUPS + 1] = {0, 2, TOKENS}, counts[GROUPS] = {3, TOKENS};
  const octile_quantize_groups groups = {.struct_size = sizeof groups,
                                         .group_count = GROUPS,
                                         .offsets = masked ? NULL : offsets,
                                         .counts = masked ? counts : NULL};
  const int64_t rows = masked ? GROUPS * TOKENS : TOKENS;
  float *x = numbers(rows, cols, 1), *w = numbers(N, cols, 5);
  copy a, one, b;
  quantise("fp32", "e4m3:1x128", "row", TOKENS, cols, (copy){x, NULL}, &groups, &a, NULL);
  quantise("fp32", "e4m3:128x128", "row", N, cols, (copy){w, NULL}, NULL, &one, NULL);
  /* B of both groups is the same matrix. */
  octile_quantized_layout layout = {.struct_size = sizeof layout};
  if (octile_quantized_layout_query(OCTILE_E4M3, OCTILE_SCALE_128X128, OCTILE_SCALE_F32, N, cols, 0,
                                    &layout) != OCTILE_OK)
    fail("octile_quantized_layout_query", cols);
  b.codes = guarded(GROUPS * layout.data_bytes), b.scale = guarded(GROUPS * layout.scale_bytes);
  for (int g = 0; g < GROUPS; ++g) {
    memcpy((char*)b.codes + g * layout.data_bytes, one.codes, (size_t)layout.data_bytes);
    memcpy((char*)b.scale + g * layout.scale_bytes, one.scale, (size_t)layout.scale_bytes);
  }
  char text[200];
  snprintf(text, sizeof text,
           "gemm m=? n=%d k=%lld a=e4m3:1x128 b=e4m3:128x128 d=fp32 acc=0 promote=128 groups=%d "
           "group=%s",
           N, (long long)cols, GROUPS, masked ? "masked" : "contiguous");
  const octile_gemm_groups experts = {.struct_size = sizeof experts,
                                      .offsets = masked ? NULL : offsets,
                                      .counts = masked ? counts : NULL};
  const float* d = multiply(text, cols, TOKENS, rows, a, b, &experts);
  const float* w_values = dequantise("e4m3:128x128", N, cols, one);
  for (int64_t row = 0; row < rows; ++row) {
    if (masked && row % TOKENS >= counts[row / TOKENS]) continue;
    copy alone;
    quantise("fp32", "e4m3:1x128", "row", 1, cols, (copy){x + row * cols, NULL}, NULL, &alone,
             NULL);
    expect_product(text, d + row * N, dequantise("e4m3:1x128", 1, cols, alone), w_values, 1, cols);
  }
  places = 0;
}

int main(void) {
  make_arena();
  if (octile_library_create(NULL, &library) != OCTILE_OK) return 1;
  for (int64_t cols = 1; cols <= MOST_COLS; ++cols) {
    check_rowwise("e4m3:1x128", "e4m3:128x128", "128", cols);
    check_rowwise("e4m3:row", "e4m3:row", "128", cols);
    check_rowwise("e4m3:tensor", "e4m3:tensor", "128", cols);
    check_rowwise("e4m3:1x32", "e4m3:32x32", "32", cols);
    check_transposed(cols);
    if (cols % 37 == 1) check_groups(0, cols), check_groups(1, cols);
  }
  octile_library_destroy(library);
  return 0;
}
