/* One linear layer in FP8 on the host: quantise X and W, then Y = X W^T. On a GPU the same calls
 * take device pointers, "cuda:0" instead of "host", and octile_plan_prepare before the first run.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "octile/octile.h"

enum { M = 4, N = 256, K = 512 };

static void* quantise(octile_library* library, octile_granularity granularity, int64_t rows,
                      const uint16_t* x, void** scale) {
  octile_quantized_layout layout = {.struct_size = sizeof layout};
  octile_quantize_desc desc = {.struct_size = sizeof desc,
                               .cols = K,
                               .x_dtype = OCTILE_BF16,
                               .q_dtype = OCTILE_E4M3,
                               .granularity = granularity};
  octile_plan* plan = NULL;
  octile_quantized_layout_query(OCTILE_E4M3, granularity, OCTILE_SCALE_FORMAT_DEFAULT, rows, K, 0,
                                &layout);
  void* q = aligned_alloc(16, (size_t)layout.data_bytes);
  *scale = aligned_alloc(16, (size_t)layout.scale_bytes);
  octile_quantize_args args = {
      .struct_size = sizeof args, .rows = rows, .x = x, .q = q, .scale = *scale};
  if (octile_quantize_plan_create(library, "host", &desc, &plan) != OCTILE_OK ||
      octile_quantize_run(plan, &args, NULL) != OCTILE_OK) {
    fprintf(stderr, "%s\n", octile_last_error());
    exit(1);
  }
  octile_plan_destroy(plan);
  return q;
}

int main(void) {
  static uint16_t x[M * K], w[N * K], y[M * N];  /* bf16 bits */
  for (int i = 0; i < M * K; ++i) x[i] = 0x3f80; /* 1.0 */
  for (int i = 0; i < N * K; ++i) w[i] = 0x3f00; /* 0.5 */

  octile_library* library = NULL;
  octile_plan* gemm = NULL;
  if (octile_library_create(NULL, &library) != OCTILE_OK) return 1;
  void *x_scale = NULL, *w_scale = NULL;
  void* x_codes = quantise(library, OCTILE_SCALE_1X128, M, x, &x_scale);
  void* w_codes = quantise(library, OCTILE_SCALE_128X128, N, w, &w_scale);

  octile_gemm_args args = {.struct_size = sizeof args,
                           .tokens = M,
                           .a = x_codes,
                           .a_scale = x_scale,
                           .b = w_codes,
                           .b_scale = w_scale,
                           .d = y};
  if (octile_plan_create(
          library, "host",
          "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
          &gemm) != OCTILE_OK ||
      octile_gemm_run(gemm, &args, NULL) != OCTILE_OK) {
    fprintf(stderr, "%s\n", octile_last_error());
    return 1;
  }
  printf("y[0][0] = 0x%04x, which is 256\n", y[0]); /* 512 * 1.0 * 0.5 */

  octile_plan_destroy(gemm);
  octile_library_destroy(library);
  free(x_codes), free(x_scale), free(w_codes), free(w_scale);
  return y[0] == 0x4380 && y[M * N - 1] == 0x4380 ? 0 : 1;
}
