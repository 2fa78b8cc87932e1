/* Trains a linear layer in FP8: 20 steps of gradient descent towards a layer that is known. It uses
 * the public header alone, and the types of the recipe `blockwise:f32`:
 *
 *   forward           Y   = X W^T + bias   X: 1x128, W: 128x128                    Y: bf16
 *   input gradients   dX  = dY W           dY: 1x128, W transposed: 128x128        dX: bf16
 *   weight gradients  dW += dY^T X         dY and X transposed, both 1x128         dW: fp32
 *
 * A step has two microbatches of different token counts; one plan serves both. W is quantised once
 * a step, with its transposed copy, and dW and the bias's gradient collect both microbatches. X and
 * dY are quantised once a microbatch: one read writes the row-wise and the transposed copy.
 *
 * The gradients of the first step are compared with FP64. The program fails if they are off, if the
 * sentry sees a value that is not finite, or if the loss does not fall to a tenth.
 *
 * It runs on "host". On a GPU the same calls take device pointers, "cuda:0" instead of "host", the
 * workspaces that octile_plan_workspace_size states, and octile_plan_prepare before the first run.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "octile/octile.h"

enum { IN = 256, OUT = 128, STEPS = 20, MICROBATCHES = 2, MOST_TOKENS = 256, TOKENS = 256 + 200 };
static const int64_t microbatch_tokens[MICROBATCHES] = {256, 200};
static const float learning_rate = 1.5F;

/* bf16 tensors are kept as bits. The weights and the bias that are trained are fp32. */
static _Alignas(16) uint16_t x[TOKENS * IN], y[TOKENS * OUT], dy[TOKENS * OUT], dx[TOKENS * IN];
static _Alignas(16) uint16_t bias_bf16[OUT];
static _Alignas(16) float w[OUT * IN], dw[OUT * IN], bias[OUT], dbias[OUT];
static float target[TOKENS * OUT];
static uint32_t sentry; /* one word for all GEMMs: becomes 1 if a value they write is not finite */

static void check(octile_status status, const char* call) {
  if (status == OCTILE_OK) return;
  fprintf(stderr, "linear_step: %s: %s: %s\n", call, octile_status_name(status),
          octile_last_error());
  exit(1);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static float from_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

/* Rounds to nearest, ties to even. The program makes no NaN. */
static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

/* Returns the next of a fixed sequence of numbers in [-1, 1). */
static float uniform(void) {
  static uint64_t state = 1;
  state = state * 6364136223846793005U + 1442695040888963407U;
  return (float)(state >> 40) / (float)(1 << 23) - 1.0F;
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* One plan serves every token count. Its problem is a text here; octile_gemm_desc and
 * octile_quantize_desc say the same in fields. The sizes are OUT and IN. */
#define FPROP \
  "gemm m=? n=128 k=256 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 bias=bf16 sentry=1"
#define DGRAD "gemm m=? n=256 k=128 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 sentry=1"
#define WGRAD "gemm m=128 n=256 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 sentry=1"
#define QUANTIZE_X "quantize rows=? cols=256 x=bf16 q=e4m3:1x128 out=both"
#define QUANTIZE_W "quantize rows=? cols=256 x=fp32 q=e4m3:128x128 out=both"
#define QUANTIZE_DY "quantize rows=? cols=128 x=bf16 q=e4m3:1x128 out=both dbias=1"

static octile_plan* make_plan(octile_library* library, const char* problem) {
  octile_plan* plan = NULL;
  check(octile_plan_create(library, "host", problem, &plan), problem);
  return plan;
}

typedef struct copy {
  void *codes, *scale;
} copy;

typedef struct quantizer {
  octile_plan* plan;
  copy rowwise, transposed;
} quantizer;

/* Returns memory for one copy of up to `rows` rows, aligned as operands of a GEMM are. */
static copy allocate_copy(octile_plan* plan, int64_t rows, int32_t transposed) {
  octile_quantized_layout layout = {.struct_size = sizeof layout};
  check(octile_plan_quantized_layout(plan, rows, 0, transposed, &layout), "layout");
  const copy made = {aligned_alloc(16, (size_t)(layout.data_bytes + 15) / 16 * 16),
                     aligned_alloc(16, (size_t)(layout.scale_bytes + 15) / 16 * 16)};
  if (made.codes == NULL || made.scale == NULL) exit(1);
  return made;
}

static quantizer make_quantizer(octile_library* library, const char* problem, int64_t rows) {
  octile_plan* plan = make_plan(library, problem);
  return (quantizer){plan, allocate_copy(plan, rows, 0), allocate_copy(plan, rows, 1)};
}

static void destroy_quantizer(quantizer* q) {
  check(octile_plan_destroy(q->plan), "octile_plan_destroy");
  free(q->rowwise.codes), free(q->rowwise.scale);
  free(q->transposed.codes), free(q->transposed.scale);
}

typedef struct layer {
  quantizer x, w, dy;
  octile_plan *fprop, *dgrad, *wgrad;
} layer;

/* ---- one microbatch -------------------------------------------------------------------------- */

/* Writes both copies from one read of `source`. The plan of dY also sums the columns, which are the
 * bias's gradient; the others take null. */
static void quantize(const quantizer* to, int64_t rows, const void* source, float* column_sums) {
  const octile_quantize_fused fused = {.struct_size = sizeof fused, .bias_gradient = column_sums};
  const octile_quantize_args args = {.struct_size = sizeof args,
                                     .rows = rows,
                                     .x = source,
                                     .q = to->rowwise.codes,
                                     .scale = to->rowwise.scale,
                                     .q_transposed = to->transposed.codes,
                                     .scale_transposed = to->transposed.scale,
                                     .fused = &fused};
  check(octile_quantize_run(to->plan, &args, NULL), "octile_quantize_run");
}

/* D (+)= A B^T. The added bias is null, except in the forward pass. */
static void multiply(octile_plan* plan, int64_t tokens, copy a, copy b, void* d,
                     const void* added_bias) {
  const octile_gemm_args args = {.struct_size = sizeof args,
                                 .tokens = tokens,
                                 .a = a.codes,
                                 .a_scale = a.scale,
                                 .b = b.codes,
                                 .b_scale = b.scale,
                                 .d = d,
                                 .bias = added_bias,
                                 .sentry = &sentry};
  check(octile_gemm_run(plan, &args, NULL), "octile_gemm_run");
}

/* Runs one microbatch forward and backward, for tokens from `first` on. It fills y, dy and dx, adds
 * to dw and dbias, and returns the sum of (Y - target)^2 / 2. */
static double run_microbatch(const layer* l, int64_t first, int64_t tokens) {
  quantize(&l->x, tokens, x + first * IN, NULL);
  multiply(l->fprop, tokens, l->x.rowwise, l->w.rowwise, y + first * OUT, bias_bf16);

  double loss = 0;
  for (int64_t i = first * OUT; i < (first + tokens) * OUT; ++i) {
    const float error = from_bf16(y[i]) - target[i];
    loss += 0.5 * (double)error * (double)error;
    dy[i] = to_bf16(error / TOKENS);
  }

  float column_sums[OUT];
  quantize(&l->dy, tokens, dy + first * OUT, column_sums);
  for (int j = 0; j < OUT; ++j) dbias[j] += column_sums[j];
  multiply(l->dgrad, tokens, l->dy.rowwise, l->w.transposed, dx + first * IN, NULL);
  multiply(l->wgrad, tokens, l->dy.transposed, l->x.transposed, dw, NULL);
  return loss;
}

/* ---- the check against FP64 ------------------------------------------------------------------ */

/* A matrix in bf16 or fp32; the other pointer is null. Element (i, j) is at i * row + j * col. */
typedef struct matrix {
  const uint16_t* bf16;
  const float* fp32;
  int64_t row, col;
} matrix;

static double element(matrix m, int64_t i, int64_t j) {
  const int64_t at = i * m.row + j * m.col;
  return (double)(m.fp32 != NULL ? m.fp32[at] : from_bf16(m.bf16[at]));
}

/* Compares D with the sums of a[i][p] * b[p][j], in FP64 on the values before quantising, and
 * returns 1 if it holds. Rounding to E4M3 changes an operand by up to 1/16, and these errors
 * mostly cancel in a sum. So each element may be off by 1/32 of sum |a * b|, and the
 * root-mean-square error may be 1/20 of the gradients'. */
static int holds(const char* name, matrix d, matrix a, matrix b, int rows, int cols, int depth) {
  double worst = 0, error_squares = 0, squares = 0;
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < cols; ++j) {
      double exact = 0, magnitude = 0;
      for (int p = 0; p < depth; ++p) {
        const double product = element(a, i, p) * element(b, p, j);
        exact += product;
        magnitude += fabs(product);
      }
      const double error = element(d, i, j) - exact;
      worst = fmax(worst, fabs(error) / magnitude);
      error_squares += error * error;
      squares += exact * exact;
    }
  }
  const double relative = sqrt(error_squares / squares);
  printf("%s against FP64: worst error %.5f of sum |a * b|, root-mean-square error %.4f\n", name,
         worst, relative);
  return worst <= 1.0 / 32 && relative <= 1.0 / 20;
}

static int gradients_hold(void) {
  const matrix mx = {x, NULL, IN, 1}, mdx = {dx, NULL, IN, 1};
  const matrix mw = {NULL, w, IN, 1}, mdw = {NULL, dw, IN, 1};
  const matrix mdy = {dy, NULL, OUT, 1}, mdy_transposed = {dy, NULL, 1, OUT};
  const int dx_holds = holds("dX", mdx, mdy, mw, TOKENS, IN, OUT);
  const int dw_holds = holds("dW", mdw, mdy_transposed, mx, OUT, IN, TOKENS);
  return dx_holds && dw_holds;
}

/* ---- training -------------------------------------------------------------------------------- */

/* Makes tokens, the layer's first weights, and the results of the layer that is to be found. */
static void make_data(void) {
  static float w_target[OUT * IN];
  float bias_target[OUT];
  for (int i = 0; i < TOKENS * IN; ++i) x[i] = to_bf16(uniform());
  for (int i = 0; i < OUT * IN; ++i) w[i] = uniform() / 16, w_target[i] = uniform() / 16;
  for (int j = 0; j < OUT; ++j) bias_target[j] = uniform();
  for (int i = 0; i < TOKENS; ++i) {
    for (int j = 0; j < OUT; ++j) {
      float sum = bias_target[j];
      for (int p = 0; p < IN; ++p) sum += from_bf16(x[i * IN + p]) * w_target[j * IN + p];
      target[i * OUT + j] = sum;
    }
  }
}

/* Runs a step on all microbatches without changing the weights, and returns the mean loss. */
static double run_step(const layer* l) {
  double loss = 0;
  memset(dw, 0, sizeof dw);
  memset(dbias, 0, sizeof dbias);
  for (int j = 0; j < OUT; ++j) bias_bf16[j] = to_bf16(bias[j]);
  quantize(&l->w, OUT, w, NULL);
  for (int64_t m = 0, first = 0; m < MICROBATCHES; first += microbatch_tokens[m++]) {
    loss += run_microbatch(l, first, microbatch_tokens[m]) / TOKENS;
  }
  return loss;
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "host") != 0) {
    fprintf(stderr, "linear_step: device is \"%s\"; allowed: host, where the tensors are\n",
            argv[1]);
    return 2;
  }
  octile_library* library = NULL;
  check(octile_library_create(NULL, &library), "octile_library_create");
  layer l = {make_quantizer(library, QUANTIZE_X, MOST_TOKENS),
             make_quantizer(library, QUANTIZE_W, OUT),
             make_quantizer(library, QUANTIZE_DY, MOST_TOKENS),
             make_plan(library, FPROP),
             make_plan(library, DGRAD),
             make_plan(library, WGRAD)};
  make_data();

  double first_loss = 0, loss = 0;
  int right = 1;
  for (int step = 0; step < STEPS && right; ++step) {
    loss = run_step(&l);
    printf("step %2d: loss %.5f, sentry %u\n", step, loss, (unsigned)sentry);
    right = sentry == 0 && (step > 0 || gradients_hold());
    if (step == 0) first_loss = loss;
    for (int i = 0; i < OUT * IN; ++i) w[i] -= learning_rate * dw[i];
    for (int j = 0; j < OUT; ++j) bias[j] -= learning_rate * dbias[j];
  }
  right = right && loss < first_loss / 10;
  if (!right) fprintf(stderr, "linear_step: the gradients, the sentry or the loss is wrong\n");

  destroy_quantizer(&l.x), destroy_quantizer(&l.w), destroy_quantizer(&l.dy);
  check(octile_plan_destroy(l.fprop), "octile_plan_destroy");
  check(octile_plan_destroy(l.dgrad), "octile_plan_destroy");
  check(octile_plan_destroy(l.wgrad), "octile_plan_destroy");
  check(octile_library_destroy(library), "octile_library_destroy");
  return right ? 0 : 1;
}
