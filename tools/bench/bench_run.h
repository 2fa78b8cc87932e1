// The measurements of `octile bench`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "generator/families.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/measure/timing.h"
#include "runtime/tuner/gpu_decider.h"
#include "tools/bench/cublaslt.h"
#include "tools/common/handles.h"

namespace octile::tools {

struct BenchContext {
  const LibraryHandle& library;
  const GpuSession& gpu;
  std::shared_ptr<const CublasLt> cublaslt;  // null: no such baseline
  int rounds = 30;
  // Not null: problems run as the winner of a search of that many seconds, not as a plan's choice.
  tuner::GpuDecider* search = nullptr;
  double search_seconds = 0;
  bool overlap = false;  // products are timed with OCTILE_RUN_B_READY
};

struct BenchResult {
  Problem problem;
  std::int64_t tokens = 0;
  Json kernel;     // of octile_plan_describe
  Json search;     // what the search found; null: none
  bool ok = true;  // of the check before timing
  std::string check;
  Timing ours;
  bool has_baseline = false;
  Timing baseline;
  double ratio = 0;        // baseline / ours, median over rounds
  double tflops = 0;       // of a product
  double tbps = 0;         // bytes read and written once each
  double scale_share = 0;  // of a quantiser's bytes, and of the baseline's
};

// Checked against FP64 first; the baseline, where there is one, too.
Result<BenchResult> bench_gemm(const BenchContext& context, const GemmProblem& problem,
                               std::int64_t m);
// Checked bit for bit against the host reference first, up to 2^25 elements; the baseline is a
// stream of the data's read:write mix over as many bytes, those of scales included. Where a first
// pass has to find maxima, the stream reads x twice too.
Result<BenchResult> bench_quantize(const BenchContext& context, const QuantizeProblem& problem,
                                   std::int64_t rows);

// Host time, microseconds a call; one "round" is a batch the device has room to queue. The batches
// of both take turns.
struct LaunchTimings {
  Timing ours;  // octile_gemm_run with new pointers and another token count every call
  Timing bare;  // the driver alone: a launch of an empty kernel without parameters
};
Result<LaunchTimings> bench_launch(const BenchContext& context, const GemmProblem& problem);

Json to_json(const BenchResult& result);

// ---- what the measurements share ----------------------------------------------------------------

struct PreparedPlan {
  PlanHandle plan;
  Json kernel;  // the first of those prepared
};
Result<PreparedPlan> prepare_plan(const BenchContext& context, const Problem& problem,
                                  std::int64_t lo, std::int64_t hi);

// The candidate that wins a search for result.tokens, which context.search keeps until the next
// one; what the search found goes into the result.
Result<int> search_first(const BenchContext& context, const Problem& problem, BenchResult& result);

// Ours, the first, alone or beside others in one interleaved run; the fastest of those is the
// baseline.
Status compare(const BenchContext& context, const std::vector<Contender>& contenders,
               std::size_t slots, BenchResult& result);

}  // namespace octile::tools
