/* Uses the public header and liboctile.so from C: plans on the host, quantises both operands,
 * multiplies them, and compares with sums computed here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "octile/octile.h"

#define M 5
#define N 136 /* past one 128-wide block, a multiple of 8 */
#define K 272 /* two blocks and a tail of 16 */

/* Returns the bf16 value of a small multiple of 1/8, whose fp32 bits end in zeros. */
static uint16_t bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return (uint16_t)(bits >> 16);
}

static float from_bf16(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof(result));
  return result;
}

static void* zeroed(int64_t bytes) {
  void* memory = aligned_alloc(256, (size_t)((bytes + 255) / 256 * 256));
  if (memory == NULL) exit(2);
  memset(memory, 0, (size_t)((bytes + 255) / 256 * 256));
  return memory;
}

struct quantized {
  void* data;
  void* scale;
};

static struct quantized quantize(octile_library* library, octile_granularity granularity,
                                 int64_t rows, int64_t cols) {
  octile_quantized_layout layout = {.struct_size = sizeof(layout)};
  CHECK(octile_quantized_layout_query(OCTILE_E4M3, granularity, OCTILE_SCALE_FORMAT_DEFAULT, rows,
                                      cols, 0, &layout) == OCTILE_OK);
  const octile_quantize_desc desc = {.struct_size = sizeof(desc),
                                     .cols = cols,
                                     .x_dtype = OCTILE_BF16,
                                     .q_dtype = OCTILE_E4M3,
                                     .granularity = granularity};
  octile_plan* plan = NULL;
  CHECK(octile_quantize_plan_create(library, "host", &desc, &plan) == OCTILE_OK);
  uint16_t* x = zeroed(rows * cols * 2);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) x[r * cols + c] = bf16(element((int)r, (int)c));
  const struct quantized q = {zeroed(layout.data_bytes), zeroed(layout.scale_bytes)};
  const octile_quantize_args args = {
      .struct_size = sizeof(args), .rows = rows, .x = x, .q = q.data, .scale = q.scale};
  CHECK(octile_quantize_run(plan, &args, NULL) == OCTILE_OK);
  CHECK(octile_plan_destroy(plan) == OCTILE_OK);
  free(x);
  return q;
}

static void check_product(const uint16_t* d) {
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j) {
      double exact = 0;
      double magnitude = 0;
      for (int p = 0; p < K; ++p) {
        exact += (double)element(i, p) * element(j, p);
        magnitude += fabs((double)element(i, p) * element(j, p));
      }
      /* E4M3 keeps 3 bits, so the relative error of each operand is at most 2^-4. */
      const double error = fabs((double)from_bf16(d[i * N + j]) - exact);
      if (error > magnitude / 8) {
        fprintf(stderr, "D[%d][%d] is off by %g of %g\n", i, j, error, magnitude);
        ++failures;
      }
    }
  }
}

/* Transposes two groups of rows with an empty one between. Each begins at a multiple of 128. */
static void check_groups(octile_library* library) {
  const octile_quantize_desc desc = {.struct_size = sizeof(desc),
                                     .cols = 8,
                                     .x_dtype = OCTILE_BF16,
                                     .q_dtype = OCTILE_E4M3,
                                     .granularity = OCTILE_SCALE_1X128,
                                     .output = OCTILE_TRANSPOSED,
                                     .grouping = OCTILE_GROUPS_CONTIGUOUS};
  const int32_t offsets[] = {0, 3, 3, 5};
  octile_plan* plan = NULL;
  CHECK(octile_quantize_plan_create(library, "host", &desc, &plan) == OCTILE_OK);
  octile_quantized_layout layout = {.struct_size = sizeof(layout)};
  CHECK(octile_plan_quantized_layout(plan, 5, 3, 1, &layout) == OCTILE_OK);
  CHECK(layout.data_rows == 8 && layout.data_ld == 3 * 128);
  uint16_t* x = zeroed(5 * 8 * 2);
  for (int i = 0; i < 5 * 8; ++i) x[i] = bf16(1.0F + (float)(i / 8));
  unsigned char* q = zeroed(layout.data_bytes);
  float* scale = zeroed(layout.scale_bytes);
  uint64_t nonfinite = 0;
  const octile_quantize_groups groups = {
      .struct_size = sizeof(groups), .group_count = 3, .offsets = offsets};
  const octile_quantize_monitor monitor = {.struct_size = sizeof(monitor), .nonfinite = &nonfinite};
  const octile_quantize_args args = {.struct_size = sizeof(args),
                                     .rows = 5,
                                     .x = x,
                                     .q_transposed = q,
                                     .scale_transposed = scale,
                                     .groups = &groups,
                                     .monitor = &monitor};
  CHECK(octile_quantize_run(plan, &args, NULL) == OCTILE_OK);
  CHECK(q[2] == 0x7e && q[3] == 0);             /* the first group's largest row, then its tail */
  CHECK(q[128 + 1] == 0x7e && q[128 + 2] == 0); /* the same for the last group */
  CHECK(scale[0] < scale[8]);                   /* their blocks have amax 3 and 5 */
  CHECK(nonfinite == 0);
  CHECK(octile_plan_destroy(plan) == OCTILE_OK);
  free(x);
  free(q);
  free(scale);
}

int main(void) {
  int major = -1;
  int minor = -1;
  int patch = -1;
  octile_version(&major, &minor, &patch);
  CHECK(major == OCTILE_VERSION_MAJOR && minor == OCTILE_VERSION_MINOR);
  CHECK(strcmp(octile_status_name(OCTILE_NOT_PREPARED), "OCTILE_NOT_PREPARED") == 0);
  CHECK(strcmp(octile_last_error(), "") == 0);

  const octile_library_options options = {
      .struct_size = sizeof(options), .disable_cache = 1, .log_level = OCTILE_LOG_WARNING};
  octile_library* library = NULL;
  CHECK(octile_library_create(&options, &library) == OCTILE_OK);
  const struct quantized a = quantize(library, OCTILE_SCALE_1X128, M, K);
  const struct quantized b = quantize(library, OCTILE_SCALE_128X128, N, K);

  octile_plan* plan = NULL;
  CHECK(octile_plan_create(library, "host",
                           "gemm m=? n=136 k=272 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 "
                           "promote=128",
                           &plan) == OCTILE_OK);
  size_t workspace = 1;
  CHECK(octile_plan_workspace_size(plan, M, &workspace) == OCTILE_OK && workspace == 0);
  CHECK(octile_plan_prepare(plan, 0, 4096, OCTILE_PREPARE_DEFAULT) == OCTILE_OK);
  uint16_t* d = zeroed(M * N * 2);
  const octile_gemm_args args = {.struct_size = sizeof(args),
                                 .tokens = M,
                                 .a = a.data,
                                 .a_scale = a.scale,
                                 .b = b.data,
                                 .b_scale = b.scale,
                                 .d = d};
  CHECK(octile_gemm_run(plan, &args, NULL) == OCTILE_OK);
  check_product(d);

  check_groups(library);
  CHECK(octile_library_destroy(library) == OCTILE_INVALID_ARGUMENT);
  CHECK(strstr(octile_last_error(), "1 plan") != NULL);
  CHECK(octile_plan_destroy(plan) == OCTILE_OK);
  CHECK(octile_library_destroy(library) == OCTILE_OK);
  free(a.data);
  free(a.scale);
  free(b.data);
  free(b.scale);
  free(d);
  if (failures == 0) printf("the host layer holds\n");
  return failures == 0 ? 0 : 1;
}
