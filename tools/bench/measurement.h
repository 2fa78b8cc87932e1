// The measurements of `octile bench`. Each family of kernels has a file of its own: gemm_bench.cc,
// quantize_bench.cc. A family without such a file is not timed.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "generator/families.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/measure/loaded_template.h"
#include "runtime/measure/record.h"
#include "runtime/measure/timing.h"
#include "runtime/tuner/gpu_decider.h"
#include "tools/common/handles.h"
#include "tools/peers/cublaslt.h"

namespace octile::tools {

struct BenchContext {
  const LibraryHandle& library;
  const GpuSession& gpu;
  LoadedTemplates& templates;                // the yardsticks' kernels
  std::shared_ptr<const CublasLt> cublaslt;  // null: no such baseline
  int rounds = 30;
  bool b_ready = false;  // GEMMs are timed with OCTILE_RUN_B_READY
  int slots = 0;         // sets of a quantiser's tensors that take turns; 0: beyond twice L2
  // If it is not null, a problem runs as the winner of a search and not as a plan's choice.
  tuner::GpuDecider* search = nullptr;
  double search_seconds = 0;          // for each problem
  std::string tool = "octile bench";  // that the records name
};

// ---- any family

// Checks the results, then times the problem at a token count. Errors: those of preparing, running
// and measuring; a wrong result is not an error.
Result<Record> bench(const BenchContext& context, const Problem& problem, std::int64_t tokens);

// Returns what a table calls the problem of a record.
std::string bench_label(const Record& record);

// Returns the host's time of a call in microseconds, beside that of a bare launch of an empty
// kernel by the driver alone. A round is a batch of calls that the device has room to queue, with
// new pointers and another token count every call; the batches of both take turns. Returns nothing
// for families whose calls are not timed this way.
Result<std::optional<Record>> host_overhead(const BenchContext& context, const Problem& problem);

// ---- one family

// Checked against FP64, as is the baseline, cuBLASLt.
Result<Record> bench(const BenchContext& context, const GemmProblem& problem, std::int64_t tokens);
std::string bench_label(const GemmProblem& problem);
Result<std::optional<Record>> host_overhead(const BenchContext& context,
                                            const GemmProblem& problem);

// Checked bit for bit against the host reference, up to 2^25 elements. The baseline is a stream
// with the data's mix of reads and writes, over as many bytes, those of the scales included. If a
// first pass has to find maxima, the stream reads x twice too.
Result<Record> bench(const BenchContext& context, const QuantizeProblem& problem,
                     std::int64_t rows);
std::string bench_label(const QuantizeProblem& problem);
Result<std::optional<Record>> host_overhead(const BenchContext& context,
                                            const QuantizeProblem& problem);

// ---- a family without a benchmark

template <typename P>
Result<Record> bench(const BenchContext&, const P& problem, std::int64_t /*tokens*/) {
  return fail(ErrorCode::kUnsupported, fmt::format("'{}' is of family {}, which has no benchmark",
                                                   to_text(problem), Family<P>::kName));
}
template <typename P>
std::string bench_label(const P& problem) {
  return to_text(problem);
}
template <typename P>
Result<std::optional<Record>> host_overhead(const BenchContext&, const P&) {
  return std::nullopt;
}

// ---- steps that the families share

struct PreparedPlan {
  PlanHandle plan;
  Json kernel;  // the first of those prepared
};
Result<PreparedPlan> prepare_plan(const BenchContext& context, const Problem& problem,
                                  std::int64_t lo, std::int64_t hi);

// Returns the record of a problem at a token count, without values.
Record record_of(const BenchContext& context, const Problem& problem, std::int64_t tokens);

// Notes the kernel that is timed.
void note_kernel(const Json& kernel, Record& record);

// Searches, and notes in the record what was found. Returns the candidate that won; context.search
// keeps its kernel until the next search.
Result<int> search_first(const BenchContext& context, const Problem& problem, std::int64_t tokens,
                         Record& record);

// Times the contenders in one interleaved run. The first is Octile's; the fastest of the others, if
// there are any, is the peer. `version` is that peer's.
Status compare(const BenchContext& context, const std::vector<Contender>& contenders,
               const std::string& version, Record& record);

// Returns the version as "13.1.0".
std::string version_text(const CublasLt& library);

// Returns a number of the record's details, 0 for a detail of another kind. Throws
// std::out_of_range if it is absent.
double detail_of(const Record& record, const char* detail);

// Returns operations or bytes by microseconds, in units of 10^12 a second.
double tera_per_second(const Record& record, const char* detail);

template <typename Slot>
const Slot& slot_at(const std::vector<Slot>& slots, int i) {
  return slots[static_cast<std::size_t>(i)];
}

}  // namespace octile::tools
