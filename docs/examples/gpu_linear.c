/* A linear layer in FP8 on a GPU: Y = X W^T. Memory, the stream and the timing are the CUDA
 * driver's, everything else is the public header's. After `make install`:
 *
 *   cc -std=c11 -O2 gpu_linear.c -I/usr/local/cuda/include $(pkg-config --cflags --libs octile) \
 *      -lcuda -lm -o gpu_linear
 *   ./gpu_linear            # or a device: ./gpu_linear 1
 *
 * To compile it takes the toolkit's cuda.h, and to start the driver's libcuda.so.1: without a
 * driver the loader says "error while loading shared libraries" before the program begins.
 *
 * The steps are those of every program: plans, sizes, memory, prepare, workspaces, run. A program
 * that uses the CUDA runtime API passes what cudaMalloc and cudaStreamCreate return; the types are
 * the same.
 *
 * The program fails if Y is off. It also shows how an error is handled: before the kernels are
 * there, a run says OCTILE_NOT_PREPARED, and the program prepares them.
 */
#include <cuda.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "octile/octile.h"

/* IN is not a multiple of 16, so rows of codes have a gap behind them: see rule 5 of the header. */
enum { TOKENS = 300, IN = 1000, OUT = 768, RUNS = 100 };
#define QUANTISE_X "quantize rows=? cols=1000 x=bf16 q=e4m3:1x128 out=row"
#define QUANTISE_W "quantize rows=? cols=1000 x=bf16 q=e4m3:128x128 out=row"
#define MULTIPLY "gemm m=? n=768 k=1000 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128"

/* ---- errors ---------------------------------------------------------------------------------- */

/* The sentence is the thread's until its next call. */
static void check(octile_status status, const char* call) {
  if (status == OCTILE_OK) return;
  fprintf(stderr, "gpu_linear: %s: %s: %s\n", call, octile_status_name(status),
          octile_last_error());
  exit(1);
}

static void check_cuda(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* sentence = NULL;
  cuGetErrorString(result, &sentence);
  fprintf(stderr, "gpu_linear: %s: %s\n", call, sentence != NULL ? sentence : "unknown error");
  exit(1);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static float from_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

/* Fills a matrix with numbers from -0.25 to 0.75 that bf16 holds. */
static void fill(uint16_t* x, size_t count, uint64_t seed) {
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    const float value = (float)(seed >> 57) / 128 - 0.25F;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    x[i] = (uint16_t)(bits >> 16);
  }
}

/* Compares every 97th element of Y with its sum in FP64. Rounding to E4M3 changes an operand by up
 * to 1/16, and these errors mostly cancel, so an element may be off by 1/32 of sum |x * w|. */
static int holds(const uint16_t* x, const uint16_t* w, const uint16_t* y) {
  double worst = 0;
  for (size_t i = 0; i < (size_t)TOKENS * OUT; i += 97) {
    const uint16_t *row = x + i / OUT * IN, *column = w + i % OUT * IN;
    double sum = 0, magnitude = 0;
    for (int p = 0; p < IN; ++p) {
      const double product = (double)from_bf16(row[p]) * (double)from_bf16(column[p]);
      sum += product, magnitude += fabs(product);
    }
    worst = fmax(worst, fabs((double)from_bf16(y[i]) - sum) / magnitude);
  }
  printf("worst error %.5f of sum |x * w|\n", worst);
  return worst <= 1.0 / 32;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Returns device memory, or null for no bytes. cuMemAlloc aligns it to 256 bytes, which is more
 * than any operand needs. */
static void* allocate(size_t bytes) {
  CUdeviceptr memory = 0;
  if (bytes > 0) check_cuda(cuMemAlloc(&memory, bytes), "cuMemAlloc");
  return (void*)(uintptr_t)memory;
}

static void release(void* memory) {
  if (memory != NULL) check_cuda(cuMemFree((CUdeviceptr)(uintptr_t)memory), "cuMemFree");
}

static void* upload(const void* from, size_t bytes, CUstream stream) {
  void* memory = allocate(bytes);
  check_cuda(cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)memory, from, bytes, stream),
             "cuMemcpyHtoDAsync");
  return memory;
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* A plan with the workspace of one call in flight. */
typedef struct step {
  octile_plan* plan;
  void* workspace;
  size_t workspace_bytes;
} step;

static step make_step(octile_library* library, const char* device, const char* problem,
                      int64_t tokens) {
  step made = {NULL, NULL, 0};
  check(octile_plan_create(library, device, problem, &made.plan), problem);
  check(octile_plan_workspace_size(made.plan, tokens, &made.workspace_bytes),
        "octile_plan_workspace_size");
  made.workspace = allocate(made.workspace_bytes);
  return made;
}

static void destroy_step(step* s) {
  check(octile_plan_destroy(s->plan), "octile_plan_destroy");
  release(s->workspace);
}

typedef struct quantised {
  void *codes, *scale;
} quantised;

/* Allocates codes and scales as the plan lays them out, and enqueues the quantisation of x. */
static quantised quantise(const step* s, int64_t rows, const void* x, CUstream stream) {
  octile_quantized_layout layout = {.struct_size = sizeof layout};
  check(octile_plan_quantized_layout(s->plan, rows, 0, 0, &layout), "layout");
  const quantised q = {allocate((size_t)layout.data_bytes), allocate((size_t)layout.scale_bytes)};
  const octile_quantize_args args = {.struct_size = sizeof args,
                                     .rows = rows,
                                     .x = x,
                                     .q = q.codes,
                                     .scale = q.scale,
                                     .workspace = s->workspace,
                                     .workspace_bytes = s->workspace_bytes};
  octile_status status = octile_quantize_run(s->plan, &args, stream);
  if (status == OCTILE_NOT_PREPARED) {
    /* The kernels for this token count are compiled, or found in the cache, and loaded. A program
     * that knows its token counts does this when it starts, for the whole range at once. */
    printf("%s; preparing\n", octile_last_error());
    check(octile_plan_prepare(s->plan, rows, rows, OCTILE_PREPARE_DEFAULT), "octile_plan_prepare");
    status = octile_quantize_run(s->plan, &args, stream);
  }
  check(status, "octile_quantize_run");
  return q;
}

/* ---- the layer ------------------------------------------------------------------------------- */

/* Enqueues the GEMM once, then RUNS times between two events. Returns the milliseconds of one. */
static float multiply(const step* s, quantised x, quantised w, void* y, CUstream stream) {
  const octile_gemm_args args = {.struct_size = sizeof args,
                                 .tokens = TOKENS,
                                 .a = x.codes,
                                 .a_scale = x.scale,
                                 .b = w.codes,
                                 .b_scale = w.scale,
                                 .d = y,
                                 .workspace = s->workspace,
                                 .workspace_bytes = s->workspace_bytes};
  CUevent begin, end;
  float milliseconds = 0;
  check_cuda(cuEventCreate(&begin, CU_EVENT_DEFAULT), "cuEventCreate");
  check_cuda(cuEventCreate(&end, CU_EVENT_DEFAULT), "cuEventCreate");
  check(octile_gemm_run(s->plan, &args, stream), "octile_gemm_run");
  check_cuda(cuEventRecord(begin, stream), "cuEventRecord");
  for (int i = 0; i < RUNS; ++i) check(octile_gemm_run(s->plan, &args, stream), "octile_gemm_run");
  check_cuda(cuEventRecord(end, stream), "cuEventRecord");
  check_cuda(cuEventSynchronize(end), "cuEventSynchronize");
  check_cuda(cuEventElapsedTime(&milliseconds, begin, end), "cuEventElapsedTime");
  check_cuda(cuEventDestroy(begin), "cuEventDestroy");
  check_cuda(cuEventDestroy(end), "cuEventDestroy");
  return milliseconds / RUNS;
}

static int run_layer(octile_library* library, const char* device, CUstream stream) {
  static uint16_t x[TOKENS * IN], w[OUT * IN], y[TOKENS * OUT]; /* bf16 */
  fill(x, (size_t)TOKENS * IN, 1);
  fill(w, (size_t)OUT * IN, 2);
  step of_x = make_step(library, device, QUANTISE_X, TOKENS);
  step of_w = make_step(library, device, QUANTISE_W, OUT);
  step gemm = make_step(library, device, MULTIPLY, TOKENS);
  check(octile_plan_prepare(gemm.plan, TOKENS, TOKENS, OCTILE_PREPARE_DEFAULT),
        "octile_plan_prepare");

  void *x_bf16 = upload(x, sizeof x, stream), *w_bf16 = upload(w, sizeof w, stream);
  void* y_bf16 = allocate(sizeof y);
  const quantised x_fp8 = quantise(&of_x, TOKENS, x_bf16, stream);
  const quantised w_fp8 = quantise(&of_w, OUT, w_bf16, stream);
  const float milliseconds = multiply(&gemm, x_fp8, w_fp8, y_bf16, stream);
  check_cuda(cuMemcpyDtoHAsync(y, (CUdeviceptr)(uintptr_t)y_bf16, sizeof y, stream),
             "cuMemcpyDtoHAsync");
  check_cuda(cuStreamSynchronize(stream), "cuStreamSynchronize");
  printf("Y[%d,%d] in %.2f us\n", TOKENS, OUT, (double)milliseconds * 1000);
  const int right = holds(x, w, y);

  void* memory[] = {x_bf16, w_bf16, y_bf16, x_fp8.codes, x_fp8.scale, w_fp8.codes, w_fp8.scale};
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; ++i) release(memory[i]);
  destroy_step(&of_x), destroy_step(&of_w), destroy_step(&gemm);
  return right;
}

int main(int argc, char** argv) {
  const int ordinal = argc > 1 ? atoi(argv[1]) : 0;
  char device[32];
  snprintf(device, sizeof device, "cuda:%d", ordinal);
  CUdevice gpu;
  CUcontext context;
  CUstream stream;
  check_cuda(cuInit(0), "cuInit");
  check_cuda(cuDeviceGet(&gpu, ordinal), "cuDeviceGet");
  check_cuda(cuDevicePrimaryCtxRetain(&context, gpu), "cuDevicePrimaryCtxRetain");
  check_cuda(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  check_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");

  octile_library* library = NULL;
  check(octile_library_create(NULL, &library), "octile_library_create");
  const int right = run_layer(library, device, stream);
  check(octile_library_destroy(library), "octile_library_destroy");

  check_cuda(cuStreamDestroy(stream), "cuStreamDestroy");
  check_cuda(cuDevicePrimaryCtxRelease(gpu), "cuDevicePrimaryCtxRelease");
  if (!right) fprintf(stderr, "gpu_linear: Y is wrong\n");
  return right ? 0 : 1;
}
