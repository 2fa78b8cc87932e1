/* Trains a linear layer in FP8: 20 steps of gradient descent towards a layer that is known. It uses
 * octile/layers.h and the recipe `blockwise`, in which X and dY have a scale for each 1x128 block
 * and W for each 128x128 block:
 *
 *   forward    Y   = X W^T + bias     Y: bf16
 *   backward   dX  = dY W             dX: bf16
 *              dW += dY^T X           dW: fp32
 *              db  = the sums of dY's columns
 *
 * A step has two microbatches of different token counts. octile_weight knows that W is quantised
 * once a step, with its transposed copy. Forward keeps X's transposed copy for backward, and dW and
 * db collect both microbatches. When it is trained, the layer serves from the codes alone.
 *
 * The gradients of the first step are compared with FP64. The program fails if they are off, if the
 * sentry sees a value that is not finite, if the loss does not fall to a tenth, or if serving gives
 * other results.
 *
 * It runs on "host". On a GPU the same calls take device pointers and a stream, and "cuda:0"
 * instead of "host".
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "octile/layers.h"

enum { IN = 256, OUT = 128, STEPS = 20, MICROBATCHES = 2, MOST_TOKENS = 256, TOKENS = 256 + 200 };
static const int64_t microbatch_tokens[MICROBATCHES] = {256, 200};
static const float learning_rate = 1.5F;

/* bf16 tensors are kept as bits. The weights and the bias that are trained are fp32. */
static _Alignas(16) uint16_t x[TOKENS * IN], y[TOKENS * OUT], dy[TOKENS * OUT], dx[TOKENS * IN];
static _Alignas(16) uint16_t bias_bf16[OUT];
static _Alignas(16) float w[OUT * IN], dw[OUT * IN], bias[OUT], dbias[OUT];
static float target[TOKENS * OUT];
static uint32_t sentry[3]; /* of Y, dX and dW: becomes 1 if an element is not finite */

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

/* ---- the layer ------------------------------------------------------------------------------- */

/* The calls' work: forward keeps X for backward, W's copies last a step, and there are all three
 * gradients. */
static const uint32_t uses = OCTILE_LAYER_KEEP_X | OCTILE_LAYER_KEEP_W |
                             OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_WEIGHT_GRADIENT |
                             OCTILE_LAYER_BIAS_GRADIENT;
static const uint32_t serving = OCTILE_LAYER_HELD_W | OCTILE_LAYER_WITHOUT_BACKWARD;

typedef struct linear {
  octile_layer* layer;
  octile_weight* weight;          /* knows when W's copies are stale */
  octile_layer_copy w_copies[2];  /* of W, and of W^T */
  uint64_t step;                  /* counts the optimizer's writes */
  octile_layer_copy x_transposed; /* what backward needs of X */
  void* workspace;
  size_t workspace_bytes;
} linear;

static void* allocate(int64_t bytes) {
  void* memory = aligned_alloc(16, (size_t)(bytes + 15) / 16 * 16);
  if (memory == NULL) exit(1);
  return memory;
}

static octile_layer_copy allocate_copy(octile_layer* layer, octile_layer_tensor tensor,
                                       int32_t transposed) {
  octile_quantized_layout layout = {.struct_size = sizeof layout};
  check(octile_layer_copy_layout(layer, tensor, transposed, MOST_TOKENS, &layout),
        "octile_layer_copy_layout");
  return (octile_layer_copy){allocate(layout.data_bytes), allocate(layout.scale_bytes)};
}

static linear make_linear(octile_library* library) {
  const octile_layer_desc desc = {.struct_size = sizeof desc,
                                  .recipe = "blockwise",
                                  .n = OUT,
                                  .k = IN,
                                  .dtype = OCTILE_BF16,
                                  .weight_dtype = OCTILE_FP32,
                                  .accumulate = 1,
                                  .bias_dtype = OCTILE_BF16,
                                  .sentry = 1};
  linear l = {.step = 0};
  check(octile_layer_create(library, "host", &desc, &l.layer), "octile_layer_create");
  check(octile_layer_prepare(l.layer, 1, MOST_TOKENS, uses), "octile_layer_prepare");
  check(octile_layer_prepare(l.layer, 1, MOST_TOKENS, serving), "octile_layer_prepare");
  check(octile_weight_create(l.layer, &l.weight), "octile_weight_create");
  for (int i = 0; i < 2; ++i) l.w_copies[i] = allocate_copy(l.layer, OCTILE_LAYER_W, i);
  l.x_transposed = allocate_copy(l.layer, OCTILE_LAYER_X, 1);
  size_t forward = 0, backward = 0;
  check(octile_layer_workspace_size(l.layer, MOST_TOKENS, uses, &forward, &backward),
        "octile_layer_workspace_size");
  l.workspace_bytes = forward > backward ? forward : backward;
  l.workspace = allocate((int64_t)l.workspace_bytes);
  return l;
}

static void destroy_linear(linear* l) {
  check(octile_weight_destroy(l->weight), "octile_weight_destroy");
  check(octile_layer_destroy(l->layer), "octile_layer_destroy");
  for (int i = 0; i < 2; ++i) free(l->w_copies[i].codes), free(l->w_copies[i].scales);
  free(l->x_transposed.codes), free(l->x_transposed.scales);
  free(l->workspace);
}

/* Returns W as a pass has to read it: it is quantised if the step has written it since. This
 * program writes W nowhere else, so the weight is trusted. */
static octile_layer_operand begin_weight(linear* l, uint32_t pass) {
  const octile_weight_call call = {
      .struct_size = sizeof call, .uses = uses | pass, .trusted = 1, .stamp = l->step};
  octile_layer_operand of_w = {.struct_size = sizeof of_w,
                               .source = w,
                               .rowwise = l->w_copies[0],
                               .transposed = l->w_copies[1]};
  check(octile_weight_begin(l->weight, &call, &of_w, NULL), "octile_weight_begin");
  return of_w;
}

/* Runs one microbatch forward and backward, for tokens from `first` on. It fills y, dy and dx, adds
 * to dw and dbias, and returns the sum of (Y - target)^2 / 2. */
static double run_microbatch(linear* l, int64_t first, int64_t tokens) {
  octile_layer_operand of_x = {
      .struct_size = sizeof of_x, .source = x + first * IN, .transposed = l->x_transposed};
  octile_layer_operand of_w = begin_weight(l, OCTILE_LAYER_WITHOUT_BACKWARD);
  const octile_layer_forward_args ahead = {.struct_size = sizeof ahead,
                                           .tokens = tokens,
                                           .x = &of_x,
                                           .w = &of_w,
                                           .y = y + first * OUT,
                                           .bias = bias_bf16,
                                           .workspace = l->workspace,
                                           .workspace_bytes = l->workspace_bytes,
                                           .sentry = sentry};
  check(octile_layer_forward(l->layer, &ahead, NULL), "octile_layer_forward");
  check(octile_weight_end(l->weight, NULL), "octile_weight_end");
  of_x.state = OCTILE_LAYER_CURRENT;

  double loss = 0;
  for (int64_t i = first * OUT; i < (first + tokens) * OUT; ++i) {
    const float error = from_bf16(y[i]) - target[i];
    loss += 0.5 * (double)error * (double)error;
    dy[i] = to_bf16(error / TOKENS);
  }

  float column_sums[OUT];
  of_w = begin_weight(l, OCTILE_LAYER_WITHOUT_FORWARD);
  const octile_layer_operand of_dy = {.struct_size = sizeof of_dy, .source = dy + first * OUT};
  const octile_layer_backward_args back = {.struct_size = sizeof back,
                                           .tokens = tokens,
                                           .dy = &of_dy,
                                           .x = &of_x,
                                           .w = &of_w,
                                           .dx = dx + first * IN,
                                           .dw = dw,
                                           .bias_gradient = column_sums,
                                           .workspace = l->workspace,
                                           .workspace_bytes = l->workspace_bytes,
                                           .sentry = sentry};
  check(octile_layer_backward(l->layer, &back, NULL), "octile_layer_backward");
  check(octile_weight_end(l->weight, NULL), "octile_weight_end");
  for (int j = 0; j < OUT; ++j) dbias[j] += column_sums[j];
  return loss;
}

/* Runs the first microbatch again with W held as its codes, which are all that serving needs.
 * Returns 1 if Y has the bits that it has with W. */
static int serves(linear* l) {
  static _Alignas(16) uint16_t served[MOST_TOKENS * OUT];
  const octile_layer_operand of_w = {
      .struct_size = sizeof of_w, .state = OCTILE_LAYER_CODES, .rowwise = l->w_copies[0]};
  const octile_layer_operand of_x = {.struct_size = sizeof of_x, .source = x};
  const octile_layer_forward_args ahead = {.struct_size = sizeof ahead,
                                           .tokens = microbatch_tokens[0],
                                           .x = &of_x,
                                           .w = &of_w,
                                           .y = served,
                                           .bias = bias_bf16,
                                           .workspace = l->workspace,
                                           .workspace_bytes = l->workspace_bytes,
                                           .sentry = sentry};
  check(octile_layer_forward(l->layer, &ahead, NULL), "octile_layer_forward");
  return memcmp(served, y, sizeof(uint16_t) * (size_t)(microbatch_tokens[0] * OUT)) == 0;
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
static double run_step(linear* l) {
  double loss = 0;
  memset(dw, 0, sizeof dw);
  memset(dbias, 0, sizeof dbias);
  for (int j = 0; j < OUT; ++j) bias_bf16[j] = to_bf16(bias[j]);
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
  linear l = make_linear(library);
  make_data();

  double first_loss = 0, loss = 0;
  int right = 1;
  for (int step = 0; step < STEPS && right; ++step) {
    loss = run_step(&l);
    const unsigned seen = sentry[0] | sentry[1] | sentry[2];
    printf("step %2d: loss %.5f, sentry %u\n", step, loss, seen);
    right = seen == 0 && (step > 0 || gradients_hold());
    if (step == 0) first_loss = loss;
    if (step == STEPS - 1) right = right && serves(&l);
    for (int i = 0; i < OUT * IN; ++i) w[i] -= learning_rate * dw[i];
    ++l.step;
    for (int j = 0; j < OUT; ++j) bias[j] -= learning_rate * dbias[j];
  }
  right = right && loss < first_loss / 10;
  if (!right)
    fprintf(stderr,
            "linear_step: the gradients, the sentry, the loss or what is served is wrong\n");

  destroy_linear(&l);
  check(octile_library_destroy(library), "octile_library_destroy");
  return right ? 0 : 1;
}
