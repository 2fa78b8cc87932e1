/* Octile tuning: searches for the fastest configurations on this machine's GPU, and records of the
 * decisions.
 *
 * A question is a problem at a token count on a device. A search compiles candidates, verifies
 * their results, and races the correct ones. Its decision is a tuning record, a line of
 * tuning.jsonl in a folder (FORMAT.md, section 6). Plans choose their kernels by the records of
 * their library handle: octile_plan_prepare_with and OCTILE_PREPARE_TUNE of octile.h search for one
 * plan, octile_tune for any questions.
 *
 * The rules of octile/octile.h apply here. Any number of threads may make these calls. The calls of
 * a library handle search one after the other. Processes that share a folder divide the questions:
 * each searches those whose locks it gets, waits for the decisions of the others, and uses them.
 * They take turns to time on a GPU. While a call waits, its callback is called and may end it, and
 * its time budget runs. */
#ifndef OCTILE_TUNING_H_
#define OCTILE_TUNING_H_

#include "octile/octile.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum octile_tune_event {
  OCTILE_TUNE_PLANNED = 1,   /* before the first question */
  OCTILE_TUNE_BEGAN = 2,     /* a question begins */
  OCTILE_TUNE_RACING = 3,    /* about ten times a second in between */
  OCTILE_TUNE_DECIDED = 4,   /* its decision is stored */
  OCTILE_TUNE_UNDECIDED = 5, /* its time was up, the device's memory is too small for its operands,
                                or no candidate gives correct results */
  OCTILE_TUNE_WAITING = 6    /* about ten times a second while other threads and processes have the
                                turns of all questions */
} octile_tune_event;

typedef struct octile_tune_progress {
  size_t struct_size; /* set by the library */
  octile_tune_event event;
  const char* problem; /* of the question, valid during the callback; PLANNED and WAITING: null */
  int64_t tokens;      /* PLANNED and WAITING: 0 */
  int64_t questions, decided; /* all of them, and those with a record by now */
  double seconds_left;        /* of the budget */
  double best_us, default_us; /* microseconds a call of the fastest candidate so far, and of the
                                 default; 0: not timed yet */
} octile_tune_progress;

/* A nonzero result ends the search: the current question stays undecided, earlier decisions are
 * kept. Called by a thread of the library while octile_tune waits for it, one call at a time. It
 * must not call the library with the same handle. */
typedef int32_t (*octile_tune_callback)(const octile_tune_progress* progress, void* user);

typedef struct octile_tune_options {
  size_t struct_size;
  const char* const* problems; /* [problem_count] canonical texts */
  int64_t problem_count;       /* 1 to 100000; up to 1000000 questions in all */
  const int64_t* tokens; /* [token_count], each 1 to 2^31 - 1: the counts at which each problem is
                            searched. A problem whose text states its count is searched at that */
  int64_t token_count;   /* 0 to 100000; 0: the largest count of every bucket up to 16384 */
  double budget_seconds; /* for all questions together; 0: the time they need. The longest come
                            first */
  const char* folder;    /* its tuning.jsonl gets the decisions; null: the cache folder, and without
                            one the library handle. Decisions in another folder are used once
                            they are loaded */
  octile_tune_callback progress; /* null: none */
  void* progress_user;
  void* stream; /* the caller's (rule 7): if it or a default stream captures, the call is refused */
  int32_t force;    /* nonzero: also search questions that the folder's records decide */
  int32_t reserved; /* 0 */
} octile_tune_options;

typedef struct octile_tune_result {
  size_t struct_size;
  int64_t questions; /* different ones: = known + decided + undecided */
  int64_t known;     /* decided before, or by others meanwhile */
  int64_t decided;   /* by this call */
  int64_t undecided; /* another call continues with them */
  int32_t cancelled; /* 1 if the callback ended the search */
  int32_t reserved;  /* 0 */
} octile_tune_result;

/* Searches the questions on a live GPU and returns when all are decided, the budget is spent or the
 * callback has ended the search. Each decision is stored at once, and used for later plans and
 * buckets that are prepared later. The search needs device memory for operands, at least twice the
 * L2, and measures best on a device without other work. The call may exceed its budget by one
 * compile or one verification. device: "cuda", "cuda:N" or null, as for octile_plan_create. result:
 * null: not wanted. Errors: UNSUPPORTED (a problem without kernels on the device, or one that no
 * search has operands for), CAPTURING, NO_DRIVER, DEVICE_ERROR, FILE_ERROR (a decision cannot be
 * stored). */
OCTILE_API octile_status octile_tune(octile_library* library, const char* device,
                                     const octile_tune_options* options,
                                     octile_tune_result* result);

/* Writes what selects the configuration of a problem at a token count on a device, as a JSON object
 * with problem, tokens, bucket (its largest token count), device, sm_count, chosen_by ("exact
 * record", "near bucket", "near shape", "sister card" or "cost model"), config, reason (a sentence
 * that also names unused records, and why) and record (the record that chose it, as in its line;
 * null if the cost model did). Needs no GPU. device: as for octile_plan_create, but not "host".
 * tokens: 0 to 2^31 - 1; the count that the problem's text states, if it states one. buffer and
 * size: as for octile_plan_problem. Errors: UNSUPPORTED, NO_DRIVER. */
OCTILE_API octile_status octile_records_find(octile_library* library, const char* device,
                                             const char* problem, int64_t tokens, char* buffer,
                                             size_t* size);

/* From now on the records of these files, merged as by octile_records_merge, replace those of the
 * cache folder and the read-only roots, so that all ranks of a job make the same choices. Later
 * decisions of this handle take precedence over them; the library's own set comes after them.
 * Prepared buckets keep their kernels. A file is read once. With OCTILE_TUNING=off no record is
 * used, and the call changes nothing. paths: [count] files, and folders, which stand for their
 * tuning.jsonl and tuning.d/ *.jsonl. Only regular files, or links to them; a FIFO is refused
 * without waiting. 128 MiB together. count: 0 to 100000; 0: the records of the cache folder and the
 * roots are used again. Lines that are not records are named in a warning and left out. */
OCTILE_API octile_status octile_records_load(octile_library* library, const char* const* paths,
                                             int64_t count);

typedef struct octile_records_merged {
  size_t struct_size;
  int64_t files, records;
  int64_t conflicts; /* decisions that differ between two files; the newer stays */
  int64_t bad_lines; /* lines that are not records, and are left out */
} octile_records_merged;

/* Merges files of records into one, as `octile tune merge` does: of lines that decide the same
 * question the newest stays, unchanged, and the result depends neither on the order of the files
 * nor on repeated files. Bad lines and conflicts are named by file and line, in warnings and in
 * messages of level INFO. paths and count: as for octile_records_load; count is 1 or more. out: the
 * file to write, which is replaced whole and keeps its mode; it may be one of the files read.
 * Records that others append to it meanwhile stay, and other merges into it wait. result: may be
 * null. Errors: FILE_ERROR (out cannot be written, or others write it for a minute). */
OCTILE_API octile_status octile_records_merge(octile_library* library, const char* const* paths,
                                              int64_t count, const char* out,
                                              octile_records_merged* result);

#ifdef __cplusplus
}
#endif
#endif /* OCTILE_TUNING_H_ */
