// Verifies that a GEMM candidate writes the right D, all of it and nothing else.
//
//   operands:  random, by seed
//   output:    poisoned, with rows further apart than they are long and guard zones around
//   twice:     both launches give the same bits
//   sampled:   first, last and scattered windows are within the tolerance of FP64 on the host
//   in full:   every element is written and none outside; every element agrees with the first
//              candidate that passed, as far as the tolerance lets two right results differ; if
//              one does not, FP64 says which of the two is wrong
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "generator/gemm/problem.h"
#include "runtime/families/gemm/arguments.h"
#include "runtime/families/gemm/check.h"
#include "runtime/measure/loaded_template.h"
#include "runtime/measure/tensor.h"
#include "runtime/tuner/bench.h"

namespace octile::tuner {

class GemmVerifier {
 public:
  // `a` and `b` outlive the verifier, and nothing may write to them. Errors: kUnsupported for a
  // GEMM that accumulates, whose output cannot be poisoned.
  static Result<GemmVerifier> create(const GpuSession& gpu, const LoadedTemplate& inspect,
                                     const GemmProblem& problem, const DeviceTensor& a,
                                     const DeviceTensor& b, std::uint64_t seed);

  // `run` enqueues one call. If it fails, the candidate is wrong. An Error of check() means that
  // the device is lost.
  using Run = std::function<Status(const GemmArguments&, CUstream)>;
  Result<Verdict> check(const Run& run);

  // Returns the kernel that inspects outputs of that type: templates/bench/inspect.cu.
  static Result<LoadedTemplate> compile_inspector(const GpuSession& gpu, DType d);

 private:
  struct Report {
    std::uint64_t outside = 0, unwritten = 0, differing = 0, apart = 0, looked_at = 0,
                  last_apart = 0;
  };

  GemmVerifier(const GpuSession& gpu, const LoadedTemplate& inspect, const GemmProblem& problem,
               GemmArguments args)
      : gpu_(&gpu), inspect_(&inspect), problem_(problem), args_(args) {}
  Status allocate();
  std::int64_t elements() const;
  Result<Verdict> launch_on_poison(const Run& run);
  Status copy(const DeviceBuffer& from, DeviceBuffer& to) const;
  Result<Report> inspect(const DeviceBuffer& other) const;
  Status check_window(const Sample& sample, const DeviceBuffer& d, GemmCheck& check) const;
  Result<Verdict> check_samples() const;
  Result<Verdict> compare_in_full();
  Result<Verdict> settle(const Report& report);

  const GpuSession* gpu_;
  const LoadedTemplate* inspect_;
  GemmProblem problem_;
  GemmArguments args_;
  std::int64_t rows_ = 0;  // of D
  HostTensor a_, b_;
  std::vector<Sample> samples_;
  double apart_allowed_ = 0;
  DeviceBuffer d_, first_, accepted_, report_;
  bool has_accepted_ = false;
};

}  // namespace octile::tuner
