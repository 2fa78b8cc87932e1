/* Calls that give or take structs, each in memory of other bytes: nothing behind a struct may be
 * read as a field of it or written. Compiled with the headers of the release, run with the library
 * of today. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "octile/layers.h"
#include "octile/octile.h"
#include "octile/pieces.h"
#include "octile/tuning.h"

enum { BEHIND = 256, OTHER = 0xA5, TOKENS = 32, N = 128, K = 256 };

/* A struct with other bytes behind it. IN gives it its fields. */
#define STRUCT(type, name)       \
  struct {                       \
    type is;                     \
    unsigned char after[BEHIND]; \
  } name;                        \
  memset(&(name), OTHER, sizeof(name))
#define IN(type, name, ...) \
  STRUCT(type, name);       \
  (name).is = (type) { .struct_size = sizeof(type), __VA_ARGS__ }
#define OUT(type, name) \
  STRUCT(type, name);   \
  (name).is.struct_size = sizeof(type)
#define CHECK_AFTER(name) \
  for (int i_ = 0; i_ < BEHIND; ++i_) CHECK((name).after[i_] == OTHER)

static void* memory(size_t bytes) {
  void* made = calloc(1, (bytes + 255) / 256 * 256 + 256);
  if (made == NULL) exit(2);
  return (void*)(((uintptr_t)made + 255) / 256 * 256);
}

static float* numbers(int rows, int cols) {
  float* made = memory((size_t)(rows * cols) * sizeof(float));
  for (int i = 0; i < rows * cols; ++i) made[i] = (float)(i * 7 % 17 - 8) / 8.0F;
  return made;
}

typedef struct copy {
  void *codes, *scales, *codes_t, *scales_t;
} copy;

static copy quantize(octile_library* library, octile_granularity granularity, int rows, int cols) {
  OUT(octile_quantized_layout, layout);
  CHECK(octile_quantized_layout_query(OCTILE_E4M3, granularity, OCTILE_SCALE_FORMAT_DEFAULT, rows,
                                      cols, 0, &layout.is) == OCTILE_OK);
  CHECK_AFTER(layout);
  IN(octile_quantize_desc, desc, .cols = cols, .x_dtype = OCTILE_FP32, .q_dtype = OCTILE_E4M3,
     .granularity = granularity, .output = OCTILE_ROWWISE_AND_TRANSPOSED);
  octile_plan* plan = NULL;
  CHECK(octile_quantize_plan_create(library, "host", &desc.is, &plan) == OCTILE_OK);
  IN(octile_prepare_options, prepare, .flags = OCTILE_PREPARE_DEFAULT);
  CHECK(octile_plan_prepare_with(plan, 1, TOKENS, &prepare.is) == OCTILE_OK);
  const copy made = {memory((size_t)layout.is.data_bytes), memory((size_t)layout.is.scale_bytes),
                     memory((size_t)(rows + 16) * (size_t)cols),
                     memory((size_t)(rows + 128) * (size_t)cols)};
  uint64_t nonfinite = 0;
  IN(octile_quantize_monitor, monitor, .nonfinite = &nonfinite);
  IN(octile_quantize_args, args, .rows = rows, .x = numbers(rows, cols), .q = made.codes,
     .scale = made.scales, .q_transposed = made.codes_t, .scale_transposed = made.scales_t,
     .monitor = &monitor.is);
  CHECK(octile_quantize_run(plan, &args.is, NULL) == OCTILE_OK);
  CHECK(octile_plan_destroy(plan) == OCTILE_OK);
  return made;
}

static void fused(octile_library* library) {
  IN(octile_quantize_fused_desc, source, .source = "silu_mul", .tap = 1);
  IN(octile_quantize_desc, desc, .cols = K, .x_dtype = OCTILE_FP32, .q_dtype = OCTILE_E4M3,
     .granularity = OCTILE_SCALE_1X128, .fused = &source.is);
  octile_plan* plan = NULL;
  CHECK(octile_quantize_plan_create(library, "host", &desc.is, &plan) == OCTILE_OK);
  IN(octile_quantize_fused, inputs, .x1 = numbers(TOKENS, K),
     .tap = memory(TOKENS * K * sizeof(float)));
  IN(octile_quantize_args, args, .rows = TOKENS, .x = numbers(TOKENS, K), .q = memory(TOKENS * K),
     .scale = memory(TOKENS * K), .fused = &inputs.is);
  CHECK(octile_quantize_run(plan, &args.is, NULL) == OCTILE_OK);
  CHECK(octile_plan_destroy(plan) == OCTILE_OK);
}

static void delayed(octile_library* library) {
  IN(octile_quantize_desc, desc, .cols = K, .x_dtype = OCTILE_FP32, .q_dtype = OCTILE_E4M3,
     .granularity = OCTILE_SCALE_PER_TENSOR, .policy = OCTILE_SCALING_DELAYED);
  octile_plan* plan = NULL;
  CHECK(octile_quantize_plan_create(library, "host", &desc.is, &plan) == OCTILE_OK);
  float encode = 1, history[2] = {0, 0}, scale = 0;
  IN(octile_quantize_delayed, scales, .encode_scale = &encode);
  IN(octile_quantize_monitor, monitor, .amax = history);
  IN(octile_quantize_args, args, .rows = TOKENS, .x = numbers(TOKENS, K), .q = memory(TOKENS * K),
     .scale = &scale, .delayed = &scales.is, .monitor = &monitor.is);
  CHECK(octile_quantize_run(plan, &args.is, NULL) == OCTILE_OK);
  CHECK(history[0] == 1.0F);
  IN(octile_scale_update_args, update, .history = history, .encode_scale = &encode, .tensors = 1,
     .length = 2);
  CHECK(octile_scale_update_run(plan, &update.is, NULL) == OCTILE_OK);
  CHECK(encode == 448.0F);
  CHECK(octile_plan_destroy(plan) == OCTILE_OK);
}

/* Weights that are quantised if they have changed. */
static void unchanged(octile_library* library) {
  IN(octile_quantize_desc, desc, .cols = K, .x_dtype = OCTILE_FP32, .q_dtype = OCTILE_E4M3,
     .granularity = OCTILE_SCALE_128X128, .skip_unchanged = 1);
  octile_plan* plan = NULL;
  CHECK(octile_quantize_plan_create(library, "host", &desc.is, &plan) == OCTILE_OK);
  octile_fingerprint state = {.known = 0};
  IN(octile_quantize_change, change, .state = &state);
  IN(octile_quantize_args, args, .rows = N, .x = numbers(N, K), .q = memory(N * K),
     .scale = memory(N * K), .change = &change.is);
  CHECK(octile_quantize_run(plan, &args.is, NULL) == OCTILE_OK);
  CHECK(state.unchanged == 0 && state.changes == 1);
  CHECK(octile_quantize_run(plan, &args.is, NULL) == OCTILE_OK);
  CHECK(state.unchanged == 1 && state.changes == 1);
  CHECK(octile_plan_destroy(plan) == OCTILE_OK);
}

/* Rows with their scales beside them, gathered in the opposite order. */
static void gathered(octile_library* library) {
  IN(octile_quantize_desc, sends, .cols = K, .x_dtype = OCTILE_FP32, .q_dtype = OCTILE_E4M3,
     .granularity = OCTILE_SCALE_1X128, .scale_layout = OCTILE_SCALE_LAYOUT_BY_ROW);
  octile_plan* plan = NULL;
  CHECK(octile_quantize_plan_create(library, "host", &sends.is, &plan) == OCTILE_OK);
  unsigned char *codes = memory(TOKENS * K), *moved = memory(TOKENS * K);
  void* scales = memory(TOKENS * K);
  IN(octile_quantize_args, args, .rows = TOKENS, .x = numbers(TOKENS, K), .q = codes,
     .scale = scales);
  CHECK(octile_quantize_run(plan, &args.is, NULL) == OCTILE_OK);
  CHECK(octile_plan_destroy(plan) == OCTILE_OK);
  IN(octile_quantize_desc, desc, .operation = OCTILE_GATHER, .cols = K, .x_dtype = OCTILE_E4M3,
     .x_granularity = OCTILE_SCALE_1X128, .q_dtype = OCTILE_E4M3,
     .granularity = OCTILE_SCALE_1X128);
  CHECK(octile_quantize_plan_create(library, "host", &desc.is, &plan) == OCTILE_OK);
  int32_t index[TOKENS];
  for (int i = 0; i < TOKENS; ++i) index[i] = TOKENS - 1 - i;
  IN(octile_quantize_gather, gather, .index = index, .x_rows = TOKENS);
  IN(octile_quantize_source_scales, from, .x_scale = scales);
  IN(octile_quantize_args, moves, .rows = TOKENS, .x = codes, .q = moved,
     .scale = memory(TOKENS * K), .source_scales = &from.is, .gather = &gather.is);
  CHECK(octile_quantize_run(plan, &moves.is, NULL) == OCTILE_OK);
  for (int i = 0; i < TOKENS; ++i)
    CHECK(memcmp(moved + (size_t)i * K, codes + (size_t)index[i] * K, K) == 0);
  CHECK(octile_plan_destroy(plan) == OCTILE_OK);
}

static void gemm(octile_library* library) {
  const copy a = quantize(library, OCTILE_SCALE_1X128, TOKENS, K);
  const copy b = quantize(library, OCTILE_SCALE_128X128, N, K);
  IN(octile_gemm_desc, desc, .n = N, .k = K, .a_dtype = OCTILE_E4M3,
     .a_granularity = OCTILE_SCALE_1X128, .b_dtype = OCTILE_E4M3,
     .b_granularity = OCTILE_SCALE_128X128, .d_dtype = OCTILE_E4M3,
     .d_granularity = OCTILE_SCALE_1X128, .sentry = OCTILE_SENTRY_WORD);
  octile_plan* plan = NULL;
  CHECK(octile_gemm_plan_create(library, "host", &desc.is, &plan) == OCTILE_OK);
  uint32_t word = 0;
  IN(octile_gemm_d_scales, scales, .scale = memory(N * TOKENS));
  IN(octile_gemm_monitor, monitor, .sentry = &word);
  IN(octile_gemm_args, args, .tokens = TOKENS, .a = a.codes, .a_scale = a.scales, .b = b.codes,
     .b_scale = b.scales, .d = memory(TOKENS * N), .d_scales = &scales.is, .monitor = &monitor.is);
  CHECK(octile_gemm_run(plan, &args.is, NULL) == OCTILE_OK);
  CHECK(word == 0 && scales.is.scale[0] > 0);
  CHECK(octile_plan_destroy(plan) == OCTILE_OK);

  IN(octile_gemm_desc, grouped, .n = N, .k = K, .a_dtype = OCTILE_E4M3,
     .a_granularity = OCTILE_SCALE_1X128, .b_dtype = OCTILE_E4M3,
     .b_granularity = OCTILE_SCALE_128X128, .d_dtype = OCTILE_FP32,
     .grouping = OCTILE_GROUPS_CONTIGUOUS, .groups = 1);
  CHECK(octile_gemm_plan_create(library, "host", &grouped.is, &plan) == OCTILE_OK);
  const int32_t offsets[2] = {0, TOKENS};
  IN(octile_gemm_groups, groups, .offsets = offsets);
  args.is.d = memory(TOKENS * N * sizeof(float));
  args.is.groups = &groups.is;
  args.is.d_scales = NULL;
  args.is.monitor = NULL;
  CHECK(octile_gemm_run(plan, &args.is, NULL) == OCTILE_OK);
  CHECK(octile_plan_destroy(plan) == OCTILE_OK);
}

/* Two products with one B give the rows of one product of twice the rows. */
static void batch(octile_library* library) {
  const copy a = quantize(library, OCTILE_SCALE_1X128, 2 * TOKENS, K);
  const copy b = quantize(library, OCTILE_SCALE_128X128, N, K);
  float* d[2];
  for (int matrices = 1; matrices <= 2; ++matrices) {
    IN(octile_gemm_desc, desc, .n = N, .k = K, .a_dtype = OCTILE_E4M3,
       .a_granularity = OCTILE_SCALE_1X128, .b_dtype = OCTILE_E4M3,
       .b_granularity = OCTILE_SCALE_128X128, .d_dtype = OCTILE_FP32,
       .batch = matrices == 1 ? 0 : 2);
    octile_plan* plan = NULL;
    CHECK(octile_gemm_plan_create(library, "host", &desc.is, &plan) == OCTILE_OK);
    IN(octile_gemm_batch, strides, .a_scale_stride = TOKENS, .b_stride = OCTILE_BATCH_SHARED,
       .b_scale_stride = OCTILE_BATCH_SHARED);
    d[matrices - 1] = memory(2 * TOKENS * N * sizeof(float));
    IN(octile_gemm_args, args, .tokens = 2 * TOKENS / matrices, .a = a.codes, .a_scale = a.scales,
       .a_scale_ld = 2 * TOKENS, .b = b.codes, .b_scale = b.scales, .d = d[matrices - 1],
       .batch = matrices == 1 ? NULL : &strides.is);
    CHECK(octile_gemm_run(plan, &args.is, NULL) == OCTILE_OK);
    CHECK(octile_plan_destroy(plan) == OCTILE_OK);
  }
  CHECK(d[0][0] != 0 && memcmp(d[0], d[1], 2 * TOKENS * N * sizeof(float)) == 0);
}

static void layer(octile_library* library) {
  IN(octile_layer_desc, desc, .recipe = "blockwise", .n = N, .k = K, .dtype = OCTILE_FP32);
  octile_layer* made = NULL;
  CHECK(octile_layer_create(library, "host", &desc.is, &made) == OCTILE_OK);
  const uint32_t uses = OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_WEIGHT_GRADIENT;
  size_t forward = 0, backward = 0;
  CHECK(octile_layer_workspace_size(made, TOKENS, uses, &forward, &backward) == OCTILE_OK);
  OUT(octile_quantized_layout, layout);
  CHECK(octile_layer_copy_layout(made, OCTILE_LAYER_X, 0, TOKENS, &layout.is) == OCTILE_OK);
  CHECK_AFTER(layout);
  IN(octile_layer_operand, x, .source = numbers(TOKENS, K));
  IN(octile_layer_operand, w, .source = numbers(N, K));
  IN(octile_layer_operand, dy, .source = numbers(TOKENS, N));
  IN(octile_layer_forward_args, ahead, .tokens = TOKENS, .x = &x.is, .w = &w.is,
     .y = memory(TOKENS * N * 4), .workspace = memory(forward), .workspace_bytes = forward);
  CHECK(octile_layer_forward(made, &ahead.is, NULL) == OCTILE_OK);
  IN(octile_layer_backward_args, back, .tokens = TOKENS, .dy = &dy.is, .x = &x.is, .w = &w.is,
     .dx = memory(TOKENS * K * 4), .dw = memory(N * K * 4), .workspace = memory(backward),
     .workspace_bytes = backward);
  CHECK(octile_layer_backward(made, &back.is, NULL) == OCTILE_OK);
  CHECK(octile_layer_copy_layout(made, OCTILE_LAYER_W, 0, TOKENS, &layout.is) == OCTILE_OK);
  IN(octile_layer_operand, one, .source = numbers(N, K),
     .rowwise = {memory((size_t)layout.is.data_bytes), memory((size_t)layout.is.scale_bytes)});
  IN(octile_layer_quantize_args, alone, .tensor = OCTILE_LAYER_W, .operand = &one.is,
     .workspace = memory(backward), .workspace_bytes = backward);
  CHECK(octile_layer_quantize(made, &alone.is, NULL) == OCTILE_OK);
  CHECK(octile_layer_destroy(made) == OCTILE_OK);
}

static void delayed_layer(octile_library* library) {
  IN(octile_layer_desc, desc, .recipe = "delayed", .n = N, .k = K, .dtype = OCTILE_FP32,
     .history = 1);
  octile_layer* made = NULL;
  CHECK(octile_layer_create(library, "host", &desc.is, &made) == OCTILE_OK);
  float scaling[4] = {1, 1, 7, 14}; /* the encode scales of X and dY, and their maxima */
  IN(octile_layer_update_args, update, .scaling = scaling);
  CHECK(octile_layer_update_scales(made, &update.is, NULL) == OCTILE_OK);
  CHECK(scaling[0] == 64 && scaling[1] != 1 && scaling[2] == 0 && scaling[3] == 0);
  CHECK(octile_layer_destroy(made) == OCTILE_OK);
}

/* A pass that makes the copy of a weight, and one that finds it. */
static void weight(octile_library* library) {
  IN(octile_layer_desc, desc, .recipe = "blockwise", .n = N, .k = K, .dtype = OCTILE_FP32);
  octile_layer* layer = NULL;
  octile_weight* made = NULL;
  CHECK(octile_layer_create(library, "host", &desc.is, &layer) == OCTILE_OK);
  CHECK(octile_weight_create(layer, &made) == OCTILE_OK);
  OUT(octile_quantized_layout, layout);
  CHECK(octile_layer_copy_layout(layer, OCTILE_LAYER_W, 0, 0, &layout.is) == OCTILE_OK);
  const octile_layer_copy kept = {memory((size_t)layout.is.data_bytes),
                                  memory((size_t)layout.is.scale_bytes)};
  void* source = numbers(N, K);
  for (int pass = 0; pass < 2; ++pass) {
    IN(octile_weight_call, call, .uses = OCTILE_LAYER_WITHOUT_BACKWARD, .trusted = 1, .stamp = 5);
    IN(octile_layer_operand, w, .source = source, .rowwise = kept);
    CHECK(octile_weight_begin(made, &call.is, &w.is, NULL) == OCTILE_OK);
    CHECK(w.is.state == (pass == 0 ? OCTILE_LAYER_QUANTIZE : OCTILE_LAYER_CURRENT));
    CHECK_AFTER(w);
    CHECK(octile_weight_end(made, NULL) == OCTILE_OK);
  }
  CHECK(octile_weight_destroy(made) == OCTILE_OK);
  CHECK(octile_layer_destroy(layer) == OCTILE_OK);
}

static void pieces(octile_library* library) {
  IN(octile_pieces_desc, desc, .x_dtype = OCTILE_FP32, .q_dtype = OCTILE_E4M3,
     .granularity = OCTILE_SCALE_PER_TENSOR);
  float amax = 0, scale = 0;
  IN(octile_piece, piece, .rows = N, .cols = K, .length = N * K, .x = numbers(N, K),
     .q = memory(N * K), .amax = &amax, .scale = &scale);
  octile_pieces* made = NULL;
  CHECK(octile_pieces_create(library, "host", &desc.is, &piece.is, 1, &made) == OCTILE_OK);
  for (int step = OCTILE_PIECES_AMAX; step <= OCTILE_PIECES_CAST; ++step)
    CHECK(octile_pieces_run(made, (octile_pieces_step)step, 0, 1, NULL) == OCTILE_OK);
  CHECK(amax == 1.0F && scale > 0);
  CHECK(octile_pieces_destroy(made) == OCTILE_OK);
}

static void others(octile_library* library) {
  OUT(octile_recipe, recipe);
  CHECK(octile_recipe_at(0, &recipe.is) == OCTILE_OK);
  CHECK(strcmp(recipe.is.name, "blockwise") == 0);
  CHECK_AFTER(recipe);
  OUT(octile_loss, loss);
  const octile_tensor_type type = {OCTILE_E4M3, OCTILE_SCALE_1X128, OCTILE_SCALE_F32_POW2};
  octile_loss* const losses[] = {&loss.is};
  CHECK(octile_measure_loss(OCTILE_BF16, numbers(4, 256), 4, 256, 0, &type, 1, 1, losses) ==
        OCTILE_OK);
  CHECK(loss.is.elements == 4 * 256 && loss.is.blocks == 8);
  CHECK_AFTER(loss);
  const char* problem = "quantize rows=? cols=256 x=bf16 q=e4m3:1x128 out=row";
  OUT(octile_tune_result, result);
  IN(octile_tune_options, options, .problems = &problem, .problem_count = 1, .budget_seconds = 1);
  /* The structs are read before the device is refused. */
  CHECK(octile_tune(library, "h100", &options.is, &result.is) == OCTILE_INVALID_ARGUMENT);
  CHECK(strstr(octile_last_error(), "device is \"h100\"") != NULL);
  CHECK_AFTER(result);
}

int main(void) {
  octile_library* library = NULL;
  IN(octile_library_options, options, .cache_dir = "", .cache_roots = "");
  CHECK(octile_library_create(&options.is, &library) == OCTILE_OK);
  gemm(library);
  batch(library);
  fused(library);
  delayed(library);
  unchanged(library);
  gathered(library);
  layer(library);
  delayed_layer(library);
  weight(library);
  pieces(library);
  others(library);
  CHECK(octile_library_destroy(library) == OCTILE_OK);
  return failures == 0 ? 0 : 1;
}
