/* Uses octile/layers.h and liboctile.so from C: one step of a linear layer on the host, compared
 * with the sums of the values before quantising, and what C callers meet first when they are wrong.
 */
#include "octile/layers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { M = 24, N = 32, K = 48 };

static _Alignas(16) float x[M * K], w[N * K], dy[M * N], y[M * N], dx[M * K], dw[N * K];
static float db[N];

static void fill(float* values, int rows, int cols, int seed) {
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < cols; ++j) values[i * cols + j] = element(i + seed, j);
}

/* Element (i, j) of a matrix is at i * row + j * col. */
typedef struct matrix {
  const float* values;
  int row, col;
} matrix;

/* Checks D = A B of values that E4M3 holds to 1/16. */
static void check_product(const float* d, matrix a, matrix b, int rows, int cols, int depth) {
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < cols; ++j) {
      double exact = 0, magnitude = 0;
      for (int p = 0; p < depth; ++p) {
        const double product =
            (double)a.values[i * a.row + p * a.col] * (double)b.values[p * b.row + j * b.col];
        exact += product;
        magnitude += fabs(product);
      }
      CHECK(fabs((double)d[i * cols + j] - exact) <= magnitude / 16);
    }
  }
}

static void run_step(octile_layer* layer) {
  const uint32_t uses = OCTILE_LAYER_KEEP_X | OCTILE_LAYER_INPUT_GRADIENT |
                        OCTILE_LAYER_WEIGHT_GRADIENT | OCTILE_LAYER_BIAS_GRADIENT;
  CHECK(octile_layer_prepare(layer, 1, M, uses) == OCTILE_OK);
  size_t forward = 0, backward = 0;
  CHECK(octile_layer_workspace_size(layer, M, uses, &forward, &backward) == OCTILE_OK);
  const size_t bytes = forward > backward ? forward : backward;
  octile_quantized_layout layout = {.struct_size = sizeof layout};
  CHECK(octile_layer_copy_layout(layer, OCTILE_LAYER_X, 1, M, &layout) == OCTILE_OK);
  CHECK(layout.data_rows == K && layout.data_ld == 32);
  void* workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
  void* codes = aligned_alloc(16, (size_t)(layout.data_bytes + 15) / 16 * 16);
  void* scales = aligned_alloc(16, (size_t)(layout.scale_bytes + 15) / 16 * 16);
  if (workspace == NULL || codes == NULL || scales == NULL) exit(2);

  octile_layer_operand of_x = {.struct_size = sizeof of_x, .source = x};
  of_x.transposed.codes = codes;
  of_x.transposed.scales = scales;
  const octile_layer_operand of_w = {.struct_size = sizeof of_w, .source = w};
  const octile_layer_operand of_dy = {.struct_size = sizeof of_dy, .source = dy};
  const octile_layer_forward_args ahead = {.struct_size = sizeof ahead,
                                           .tokens = M,
                                           .x = &of_x,
                                           .w = &of_w,
                                           .y = y,
                                           .workspace = workspace,
                                           .workspace_bytes = bytes};
  CHECK(octile_layer_forward(layer, &ahead, NULL) == OCTILE_OK);
  of_x.state = OCTILE_LAYER_CURRENT;
  const octile_layer_backward_args back = {.struct_size = sizeof back,
                                           .tokens = M,
                                           .dy = &of_dy,
                                           .x = &of_x,
                                           .w = &of_w,
                                           .dx = dx,
                                           .dw = dw,
                                           .bias_gradient = db,
                                           .workspace = workspace,
                                           .workspace_bytes = bytes};
  CHECK(octile_layer_backward(layer, &back, NULL) == OCTILE_OK);
  free(workspace), free(codes), free(scales);
}

static void check_errors(octile_library* library, octile_layer_desc desc, octile_layer* layer) {
  octile_layer* none = NULL;
  desc.recipe = "fp4";
  CHECK(octile_layer_create(library, "host", &desc, &none) == OCTILE_INVALID_ARGUMENT);
  CHECK(strstr(octile_last_error(), "desc->recipe is 'fp4'; allowed are blockwise") != NULL);
  CHECK(none == NULL);
  CHECK(octile_layer_forward(layer, NULL, NULL) == OCTILE_INVALID_ARGUMENT);
  CHECK(octile_layer_forward(NULL, NULL, NULL) == OCTILE_INVALID_ARGUMENT);
  CHECK(octile_library_destroy(library) == OCTILE_INVALID_ARGUMENT);
  CHECK(strstr(octile_last_error(), "library has 1 layer;") != NULL);
}

int main(void) {
  octile_library* library = NULL;
  CHECK(octile_library_create(NULL, &library) == OCTILE_OK);
  const octile_layer_desc desc = {
      .struct_size = sizeof desc, .recipe = "blockwise", .n = N, .k = K, .dtype = OCTILE_FP32};
  octile_layer* layer = NULL;
  CHECK(octile_layer_create(library, "host", &desc, &layer) == OCTILE_OK);
  if (failures != 0) return 1;
  fill(x, M, K, 0), fill(w, N, K, 3), fill(dy, M, N, 5);
  run_step(layer);
  const matrix mx = {x, K, 1}, mw = {w, K, 1}, mdy = {dy, N, 1};
  const matrix w_transposed = {w, 1, K}, dy_transposed = {dy, 1, N};
  check_product(y, mx, w_transposed, M, N, K);
  check_product(dx, mdy, mw, M, K, N);
  check_product(dw, dy_transposed, mx, N, K, M);
  for (int j = 0; j < N; ++j) {
    double sum = 0;
    for (int i = 0; i < M; ++i) sum += (double)dy[i * N + j];
    CHECK(fabs((double)db[j] - sum) <= 1e-5);
  }
  check_errors(library, desc, layer);
  CHECK(octile_layer_destroy(layer) == OCTILE_OK);
  CHECK(octile_layer_destroy(layer) == OCTILE_INVALID_ARGUMENT);
  CHECK(octile_layer_destroy(NULL) == OCTILE_OK);
  CHECK(octile_library_destroy(library) == OCTILE_OK);
  return failures == 0 ? 0 : 1;
}
