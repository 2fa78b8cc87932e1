// Whether a GEMM candidate computes the product, all of it and nothing else.
//
//   operands:  random, by seed
//   output:    poisoned, rows further apart than they are long, guard zones before and after
//   twice:     the same bits both times
//   sampled:   the contract's tolerance against FP64 on the host, first, last and scattered windows
//   in full:   every element written, none outside; every element agrees with the first candidate
//              that passed, within what the tolerance allows two right results to differ by; where
//              they do not, FP64 says which of the two is wrong
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "generator/problem.h"
#include "octile/octile.h"
#include "runtime/measure/loaded_template.h"
#include "runtime/families/gemm/check.h"
#include "runtime/measure/tensor.h"
#include "runtime/tuner/bench.h"

namespace octile::tuner {

class GemmVerifier {
 public:
  // `a` and `b` outlive verification; nothing may write to them. Errors: kUnsupported for a product
  // that accumulates, which has no poisoned output.
  static Result<GemmVerifier> create(const GpuSession& gpu, const LoadedTemplate& inspect,
                                 const GemmProblem& problem, const DeviceTensor& a,
                                 const DeviceTensor& b, std::uint64_t seed);

  // `run` enqueues one call. What it fails with is the candidate's fault; an Error is not: the
  // device answers no more.
  using Run = std::function<Status(const octile_gemm_args&, CUstream)>;
  Result<Verdict> check(const Run& run);

  // The kernel that looks at outputs of that type: templates/bench/inspect.cu.
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
