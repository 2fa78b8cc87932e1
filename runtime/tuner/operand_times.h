// The quantisers that make a GEMM's operands, timed beside it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/prove/gpu_bench.h"
#include "runtime/tuner/decision.h"
#include "runtime/tuner/known_records.h"

namespace octile::tuner {

struct OperandQuantizer {
  std::string operand;  // "a" or "b"
  TuningTask task;
};
// Returns the quantisers of bf16 tensors that make the operands of a GEMM at a token count, with
// scales that are powers of two if they are fp32. Where tokens lie in K, both write a transposed
// copy. For a batch or for groups, B is one matrix. Masked groups have A's quantiser only if there
// are as many as the quantiser is timed with. A problem of another family has none.
std::vector<OperandQuantizer> operand_quantizers(const TuningTask& task);

// Times each quantiser once in a run.
class OperandTimes {
 public:
  // The context outlives it.
  OperandTimes(TunerContext& context, std::uint64_t seed) : context_(context), seed_(seed) {}

  // Starts the builds of the task's quantisers whose times are not known.
  void expect(const TuningTask& task, const KnownRecords& known);
  // Takes over the time of a quantiser's winner.
  void learn(const cache::TuningRecord& record);

  // A quantiser that is ready to be timed.
  struct Open {
    std::string key;
    std::unique_ptr<GpuBench> bench;
    Contender contender() const { return bench->contender(0); }
  };
  // Returns the task's quantisers whose times are not known, verified. One that gives wrong results
  // is added to `wrong`; one whose kernel cannot be had is left out. Errors: nothing more can be
  // measured.
  Result<std::vector<Open>> open(const TuningTask& task, const KnownRecords& known,
                                 std::vector<WrongCandidate>& wrong);
  void note(const std::string& key, double us) { us_[key] = us; }
  // Returns the times of the task's quantisers that are known.
  cache::TuningRecord::NamedTimes of(const TuningTask& task) const;

 private:
  const KernelConfig& config_of(const TuningTask& quantizer, const KnownRecords& known);

  TunerContext& context_;
  const std::uint64_t seed_;
  std::map<std::string, KernelConfig> configs_;  // by a task's text; the one that is compiled
  std::map<std::string, double> us_;             // by a task's text
};

}  // namespace octile::tuner
