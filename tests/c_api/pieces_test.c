/* Uses octile/pieces.h and liboctile.so from C: two weights, cut over three ranks as a sharded
 * optimizer holds them, on the host. All ranks together write what quantising each whole weight
 * writes. */
#include "octile/pieces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { RANKS = 3, WEIGHTS = 2, FIRST = 160 * 96, SECOND = 48 * 200, ALL = FIRST + SECOND };
static const int64_t kRows[WEIGHTS] = {160, 48}, kCols[WEIGHTS] = {96, 200};
static const int64_t kBegin[WEIGHTS] = {0, FIRST};

/* The optimizer's flat buffer of fp32 masters, and the buffer of the gathered codes. */
static float masters[ALL];
static uint8_t gathered[ALL], expected[ALL];

typedef struct weight {
  float amax[8];
  float scale[8], scale_transposed[8], expected_scale[8], expected_scale_transposed[8];
  uint8_t transposed[200 * 160], expected_transposed[200 * 160];
} weight;
static weight weights[WEIGHTS];

/* The part of a weight that a rank's equal share of the flat buffer holds. */
static octile_piece piece_of(int w, int64_t begin, int64_t end) {
  const int64_t elements = kRows[w] * kCols[w];
  int64_t start = begin - kBegin[w], stop = end - kBegin[w];
  if (start < 0) start = 0;
  if (start > elements) start = elements;
  if (stop < start) stop = start;
  if (stop > elements) stop = elements;
  return (octile_piece){.struct_size = sizeof(octile_piece),
                        .rows = kRows[w],
                        .cols = kCols[w],
                        .start = start,
                        .length = stop - start,
                        .x = masters + kBegin[w] + start,
                        .q = gathered + kBegin[w] + start,
                        .amax = weights[w].amax,
                        .scale = weights[w].scale,
                        .scale_transposed = weights[w].scale_transposed,
                        .q_gathered = gathered + kBegin[w],
                        .q_transposed = weights[w].transposed};
}

static void quantise_whole(octile_library* library) {
  for (int w = 0; w < WEIGHTS; ++w) {
    char text[128];
    snprintf(text, sizeof text, "quantize rows=? cols=%d x=fp32 q=e4m3:128x128 out=both via=bf16",
             (int)kCols[w]);
    octile_plan* plan = NULL;
    CHECK(octile_plan_create(library, "host", text, &plan) == OCTILE_OK);
    const octile_quantize_args args = {.struct_size = sizeof args,
                                       .rows = kRows[w],
                                       .x = masters + kBegin[w],
                                       .q = expected + kBegin[w],
                                       .ldq = kCols[w],
                                       .scale = weights[w].expected_scale,
                                       .q_transposed = weights[w].expected_transposed,
                                       .scale_transposed = weights[w].expected_scale_transposed};
    CHECK(octile_quantize_run(plan, &args, NULL) == OCTILE_OK);
    CHECK(octile_plan_destroy(plan) == OCTILE_OK);
  }
}

int main(void) {
  for (int i = 0; i < ALL; ++i)
    masters[i] = element(i, i / 7) * (1.0F + (float)(i % 1000) / 3000.0F);
  octile_library* library = NULL;
  const octile_library_options options = {.struct_size = sizeof options, .cache_dir = ""};
  CHECK(octile_library_create(&options, &library) == OCTILE_OK);
  const octile_pieces_desc desc = {.struct_size = sizeof desc,
                                   .x_dtype = OCTILE_FP32,
                                   .via_dtype = OCTILE_BF16,
                                   .q_dtype = OCTILE_E4M3,
                                   .granularity = OCTILE_SCALE_128X128};

  octile_pieces* ranks[RANKS] = {NULL};
  for (int r = 0; r < RANKS; ++r) {
    octile_piece pieces[WEIGHTS];
    for (int w = 0; w < WEIGHTS; ++w)
      pieces[w] = piece_of(w, (int64_t)ALL * r / RANKS, (int64_t)ALL * (r + 1) / RANKS);
    CHECK(octile_pieces_create(library, "host", &desc, pieces, WEIGHTS, &ranks[r]) == OCTILE_OK);
  }
  CHECK(octile_library_destroy(library) == OCTILE_INVALID_ARGUMENT);
  CHECK(strstr(octile_last_error(), "3 sets of pieces") != NULL);

  /* Between these steps ranks would reduce the maxima and gather the codes; here they share them.
   */
  for (int step = OCTILE_PIECES_AMAX; step <= OCTILE_PIECES_TRANSPOSE; ++step)
    for (int r = 0; r < RANKS; ++r)
      CHECK(octile_pieces_run(ranks[r], (octile_pieces_step)step, 0, WEIGHTS, NULL) == OCTILE_OK);
  quantise_whole(library);
  CHECK(memcmp(gathered, expected, sizeof gathered) == 0);
  for (int w = 0; w < WEIGHTS; ++w) {
    CHECK(memcmp(weights[w].scale, weights[w].expected_scale, sizeof weights[w].scale) == 0);
    CHECK(memcmp(weights[w].scale_transposed, weights[w].expected_scale_transposed,
                 sizeof weights[w].scale_transposed) == 0);
    CHECK(memcmp(weights[w].transposed, weights[w].expected_transposed,
                 sizeof weights[w].transposed) == 0);
  }

  for (int r = 0; r < RANKS; ++r) CHECK(octile_pieces_destroy(ranks[r]) == OCTILE_OK);
  CHECK(octile_pieces_destroy(NULL) == OCTILE_OK);
  CHECK(octile_library_destroy(library) == OCTILE_OK);
  if (failures == 0) printf("pieces: %d weights over %d ranks\n", WEIGHTS, RANKS);
  return failures == 0 ? 0 : 1;
}
