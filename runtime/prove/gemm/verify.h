// Verifies that a GEMM candidate writes the right D, all of it and nothing else.
//
//   operands:  random, by seed
//   output:    poisoned, with rows further apart than they are long and guard zones around. If the
//              GEMM accumulates, D itself holds numbers so small that no sum shows them.
//   twice:     both launches give the same bits
//   sampled:   first, last and scattered windows are within the tolerance of FP64 on the host
//   in full:   every element is written and none outside; every element agrees with the first
//              candidate that passed, as far as the tolerance lets two right results differ; if
//              one does not, FP64 says which of the two is wrong
//   added:     if the GEMM accumulates, a launch on another D gives the sampled sums plus that D
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "generator/gemm/problem.h"
#include "runtime/families/gemm/arguments.h"
#include "runtime/measure/loaded_template.h"
#include "runtime/measure/tensor.h"
#include "runtime/prove/bench.h"
#include "runtime/prove/gemm/check.h"
#include "runtime/prove/gemm/host_rows.h"
#include "runtime/prove/gemm/operands.h"

namespace octile::tuner {

class GemmVerifier {
 public:
  // `templates` and the slot outlive the verifier, and nothing may write to the slot's operands.
  static Result<GemmVerifier> create(const GpuSession& gpu, LoadedTemplates& templates,
                                     const GemmProblem& problem, const GemmSlot& slot,
                                     std::uint64_t seed);

  // `run` enqueues one call of a kernel of the unit. If it fails, the candidate is wrong. An Error
  // of check() means that the device is lost.
  using Run = std::function<Status(const GemmArguments&, CUstream)>;
  Result<Verdict> check(const Run& run, MatrixUnit unit = MatrixUnit::kWgmma);
  // The part of it that needs one launch: samples, and that all of D and nothing else was written.
  Result<Verdict> spot_check(const Run& run, MatrixUnit unit = MatrixUnit::kWgmma);

 private:
  struct Report {
    std::uint64_t outside = 0, unwritten = 0, differing = 0, apart = 0, looked_at = 0,
                  last_apart = 0;
  };

  GemmVerifier(const GpuSession& gpu, const LoadedTemplate& inspect, const GemmProblem& problem,
               GemmArguments args)
      : gpu_(&gpu), inspect_(&inspect), problem_(problem), args_(args) {}
  Status allocate();
  Status fill_masked_groups(std::int64_t rows);
  std::int64_t elements() const;
  Status poison_guards(std::size_t element);
  Result<Verdict> launch_on(std::uint8_t byte, const Run& run);
  Result<Verdict> check_addition(const Run& run);
  Result<GemmCall> operands() const;
  // Copies what the FP64 GEMM of a window reads to the host.
  Status fetch(const reference::Fp64Window& window);
  std::int64_t group_of(std::int64_t row) const;
  Status copy(const DeviceBuffer& from, DeviceBuffer& to) const;
  // Compares the last D with `other`, if it is not null.
  Result<Report> inspect(const DeviceBuffer* other) const;
  Verdict check_extent(const Report& report) const;
  Result<Verdict> check_values();
  Status check_window(const Sample& sample, const DeviceBuffer& d, const std::vector<float>& scales,
                      SumPrecision sums, GemmCheck& check) const;
  Result<std::vector<float>> read_scales() const;
  Verdict check_scales(const std::vector<float>& first, const std::vector<float>& second) const;
  Result<Verdict> check_codes(const Sample& sample) const;
  std::vector<Sample> samples_on(std::uint8_t byte) const;
  Result<Verdict> check_samples(const std::vector<Sample>& samples) const;
  Result<Verdict> compare_in_full();
  Result<Verdict> settle(const Report& report);

  const GpuSession* gpu_;
  const LoadedTemplate* inspect_;
  GemmProblem problem_;
  GemmArguments args_;
  std::int64_t rows_ = 0;  // of D
  std::unique_ptr<HostRows> a_, b_;
  std::vector<std::uint8_t> bias_;
  std::vector<std::int32_t> group_rows_;  // empty if the problem has no groups
  GemmGroups whole_groups_;               // empty unless they are masked
  std::vector<Sample> samples_;
  double apart_allowed_ = 0;
  DeviceBuffer d_, first_, accepted_, report_;
  // FP8 D: its scales within guards, as the last launch left them and those of the accepted D.
  DeviceBuffer d_scale_;
  std::vector<float> scales_, accepted_scales_;
  SumPrecision sums_, accepted_sums_;  // of their kernels' units
  bool has_accepted_ = false;
};

}  // namespace octile::tuner
