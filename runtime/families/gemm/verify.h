// Verifies that a GEMM candidate writes every element of D correctly and nothing else.
//
//   operands:  random, drawn by a seed
//   output:    poisoned; rows have gaps between them, and guard zones lie before and after
//   twice:     both launches write the same bits
//   sampled:   first, last and scattered windows meet the tolerance of docs/numerics.md against
//   FP64
//              on the host
//   in full:   every element is written and none outside; every element agrees with the first
//              candidate that passed, within twice the tolerance; if one does not, FP64 decides
//              which of the two is wrong
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "generator/gemm/problem.h"
#include "octile/octile.h"
#include "runtime/measure/loaded_template.h"
#include "runtime/families/gemm/check.h"
#include "runtime/measure/tensor.h"
#include "runtime/tuner/bench.h"

namespace octile::tuner {

class GemmVerifier {
 public:
  // Returns a verifier. `a` and `b` must outlive verification, and nothing may write to them.
  // Errors: kUnsupported for a GEMM that accumulates, because it has no poisoned output.
  static Result<GemmVerifier> create(const GpuSession& gpu, const LoadedTemplate& inspect,
                                 const GemmProblem& problem, const DeviceTensor& a,
                                 const DeviceTensor& b, std::uint64_t seed);

  // Verifies one candidate; `run` enqueues one call. An error of `run` is the candidate's fault and
  // gives a wrong verdict. An Error from check() means that the device no longer answers.
  using Run = std::function<Status(const octile_gemm_args&, CUstream)>;
  Result<Verdict> check(const Run& run);

  // Returns the kernel that inspects outputs of type `d`: templates/bench/inspect.cu.
  static Result<LoadedTemplate> compile_inspector(const GpuSession& gpu, DType d);

 private:
  struct Report {
    std::uint64_t outside = 0, unwritten = 0, differing = 0, apart = 0, looked_at = 0,
                  last_apart = 0;
  };

  GemmVerifier(const GpuSession& gpu, const LoadedTemplate& inspect, const GemmProblem& problem,
           octile_gemm_args args)
      : gpu_(&gpu), inspect_(&inspect), problem_(problem), args_(args) {}
  Status allocate();
  std::int64_t elements() const;
  Result<Verdict> launch_on_poison(const Run& run);
  Status copy(const DeviceBuffer& from, DeviceBuffer& to) const;
  Result<Report> inspect(const DeviceBuffer& other) const;
  Status check_window(const Sample& sample, const DeviceBuffer& d, ProductCheck& check) const;
  Result<Verdict> check_samples() const;
  Result<Verdict> compare_in_full();
  Result<Verdict> settle(const Report& report);

  const GpuSession* gpu_;
  const LoadedTemplate* inspect_;
  GemmProblem problem_;
  octile_gemm_args args_;
  HostTensor a_, b_;
  std::vector<Sample> samples_;
  double apart_allowed_ = 0;
  DeviceBuffer d_, first_, accepted_, report_;
  bool has_accepted_ = false;
};

}  // namespace octile::tuner
