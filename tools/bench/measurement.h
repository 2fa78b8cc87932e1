// The measurements of `octile bench`. What differs between the families of kernels is one file
// each: gemm_bench.cc, quantize_bench.cc. A family without such a file is not timed.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "generator/families.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/measure/timing.h"
#include "runtime/tuner/gpu_decider.h"
#include "tools/common/handles.h"
#include "tools/peers/cublaslt.h"

namespace octile::tools {

struct BenchContext {
  const LibraryHandle& library;
  const GpuSession& gpu;
  std::shared_ptr<const CublasLt> cublaslt;  // null: no such baseline
  int rounds = 30;
  bool b_ready = false;  // GEMMs are timed with OCTILE_RUN_B_READY
  int slots = 0;         // sets of a quantiser's tensors that take turns; 0: beyond twice L2
  // If it is not null, a problem runs as the winner of a search and not as a plan's choice.
  tuner::GpuDecider* search = nullptr;
  double search_seconds = 0;  // for each problem
};

struct BenchResult {
  Problem problem;
  std::int64_t tokens = 0;
  Json kernel;     // as octile_plan_describe documents it
  Json search;     // the decision of the search; null: none
  bool ok = true;  // false if the check before timing failed
  std::string check;
  Timing ours;
  std::optional<Timing> baseline;
  double ratio = 0;                   // baseline / ours, median over rounds
  std::optional<double> tflops;       // set by families that compute
  double tbps = 0;                    // bytes read and written, by time
  std::optional<double> scale_share;  // share of those bytes that are a quantiser's scales
};
Json to_json(const BenchResult& result);

// Host time in microseconds a call. A round is a batch of calls that the device has room to queue;
// the batches of both take turns.
struct HostOverhead {
  Timing ours;  // octile_gemm_run with new pointers and another token count every call
  Timing bare;  // a launch of an empty kernel without parameters, by the driver alone
};

// ---- any family

// Checks the results, then times the problem at a token count. Errors: those of preparing, running
// and measuring; a wrong result is no error.
Result<BenchResult> bench(const BenchContext& context, const Problem& problem, std::int64_t tokens);

// Returns what the results' table calls the problem.
std::string bench_label(const Problem& problem, std::int64_t tokens);

// Returns nothing for families whose calls are not timed this way.
Result<std::optional<HostOverhead>> host_overhead(const BenchContext& context,
                                                  const Problem& problem);

// ---- one family

// Checked against FP64, as is the baseline, cuBLASLt.
Result<BenchResult> bench(const BenchContext& context, const GemmProblem& problem,
                          std::int64_t tokens);
std::string bench_label(const GemmProblem& problem, std::int64_t tokens);
Result<std::optional<HostOverhead>> host_overhead(const BenchContext& context,
                                                  const GemmProblem& problem);

// Checked bit for bit against the host reference, up to 2^25 elements. The baseline is a stream
// with the data's mix of reads and writes, over as many bytes, those of the scales included. If a
// first pass has to find maxima, the stream reads x twice too.
Result<BenchResult> bench(const BenchContext& context, const QuantizeProblem& problem,
                          std::int64_t rows);
std::string bench_label(const QuantizeProblem& problem, std::int64_t rows);
Result<std::optional<HostOverhead>> host_overhead(const BenchContext& context,
                                                  const QuantizeProblem& problem);

// ---- a family without a benchmark

template <typename P>
Result<BenchResult> bench(const BenchContext&, const P& problem, std::int64_t /*tokens*/) {
  return fail(ErrorCode::kUnsupported, fmt::format("'{}' is of family {}, which has no benchmark",
                                                   to_text(problem), Family<P>::kName));
}
template <typename P>
std::string bench_label(const P& problem, std::int64_t tokens) {
  return to_text(with_tokens(problem, tokens));
}
template <typename P>
Result<std::optional<HostOverhead>> host_overhead(const BenchContext&, const P&) {
  return std::nullopt;
}

// ---- steps that the families share

struct PreparedPlan {
  PlanHandle plan;
  Json kernel;  // the first of those prepared
};
Result<PreparedPlan> prepare_plan(const BenchContext& context, const Problem& problem,
                                  std::int64_t lo, std::int64_t hi);

// Searches at result.tokens, and notes in the result what was found. Returns the candidate that
// won; context.search keeps its kernel until the next search.
Result<int> search_first(const BenchContext& context, const Problem& problem, BenchResult& result);

// Times the contenders in one interleaved run. The first is ours; the fastest of the others, if
// there are any, is the baseline.
Status compare(const BenchContext& context, const std::vector<Contender>& contenders,
               std::size_t slots, BenchResult& result);

template <typename Slot>
const Slot& slot_at(const std::vector<Slot>& slots, int i) {
  return slots[static_cast<std::size_t>(i)];
}

}  // namespace octile::tools
