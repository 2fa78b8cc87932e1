/* Uses octile/tuning.h and liboctile.so from C, without a GPU: records are written, merged, loaded
 * and found, and searches name the GPU that they lack. */
#define _GNU_SOURCE
#include "octile/tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "octile/layers.h"

static const char* const kProblem =
    "gemm m=? n=136 k=2944 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";

/* Returns whether what chooses the configuration at 64 tokens is `expected`. */
static int is_chosen_by(octile_library* library, const char* expected) {
  char text[8192], wanted[64];
  size_t size = sizeof text;
  CHECK(octile_records_find(library, "h200", kProblem, 64, text, &size) == OCTILE_OK);
  snprintf(wanted, sizeof wanted, "\"chosen_by\":\"%s\"", expected);
  return strstr(text, wanted) != NULL;
}

/* Writes a record of the configuration that is chosen, as a person would. */
static void write_record(octile_library* library, const char* path) {
  char text[8192];
  size_t size = sizeof text;
  CHECK(octile_records_find(library, "h200", kProblem, 64, text, &size) == OCTILE_OK);
  const char* config = strstr(text, "\"config\":\"");
  FILE* file = fopen(path, "w");
  CHECK(config != NULL && file != NULL);
  if (config == NULL || file == NULL) return;
  config += strlen("\"config\":\"");
  fprintf(file,
          "{\"version\":1,\"problem\":\"%s\",\"bucket\":64,\"tokens\":64,\"device\":\"h200\","
          "\"sm_count\":132,\"winner\":{\"config\":\"%.*s\"}}\n",
          kProblem, (int)strcspn(config, "\""), config);
  fclose(file);
}

static int32_t never(const octile_tune_progress* progress, void* user) {
  (void)progress;
  (void)user;
  CHECK(!"nothing is searched here");
  return 1;
}

int main(void) {
  char folder[] = "/tmp/octile-tuning-XXXXXX", path[64], merged_path[64];
  CHECK(mkdtemp(folder) != NULL);
  snprintf(path, sizeof path, "%s/a.jsonl", folder);
  snprintf(merged_path, sizeof merged_path, "%s/all.jsonl", folder);
  const octile_library_options options = {
      .struct_size = sizeof options, .cache_dir = "", .cache_roots = ""};
  octile_library* library = NULL;
  CHECK(octile_library_create(&options, &library) == OCTILE_OK);

  CHECK(is_chosen_by(library, "cost model"));
  write_record(library, path);
  const char* const paths[] = {path, path};
  octile_records_merged merged = {.struct_size = sizeof merged};
  CHECK(octile_records_merge(library, paths, 2, merged_path, &merged) == OCTILE_OK);
  CHECK(merged.files == 2 && merged.records == 1 && merged.conflicts == 0 && merged.bad_lines == 0);
  const char* const set[] = {merged_path};
  CHECK(octile_records_load(library, set, 1) == OCTILE_OK);
  CHECK(is_chosen_by(library, "exact record"));
  CHECK(octile_records_load(library, NULL, 0) == OCTILE_OK);
  CHECK(is_chosen_by(library, "cost model"));

  const octile_tune_options questions = {.struct_size = sizeof questions,
                                         .problems = &kProblem,
                                         .problem_count = 1,
                                         .budget_seconds = 1,
                                         .progress = never};
  octile_tune_result result = {.struct_size = sizeof result};
  CHECK(octile_tune(library, "h200", &questions, &result) == OCTILE_INVALID_ARGUMENT);
  const octile_prepare_options prepare = {
      .struct_size = sizeof prepare, .tune_seconds = 1, .flags = OCTILE_PREPARE_TUNE};
  octile_plan* plan = NULL;
  CHECK(octile_plan_create(library, "host", kProblem, &plan) == OCTILE_OK);
  CHECK(octile_plan_prepare_with(plan, 1, 64, &prepare) == OCTILE_OK);
  CHECK(octile_layer_prepare_with(NULL, 1, 64, 0, &prepare) == OCTILE_INVALID_ARGUMENT);
  CHECK(octile_plan_destroy(plan) == OCTILE_OK);
  CHECK(octile_library_destroy(library) == OCTILE_OK);
  remove(path);
  remove(merged_path);
  rmdir(folder);
  return failures == 0 ? 0 : 1;
}
