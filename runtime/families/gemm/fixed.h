// A GEMM kernel of a given configuration, ready on one device. A search times it, and a benchmark
// runs its winner. Plans are different: they choose the configuration themselves.
#pragma once

#include <cuda.h>

#include <memory>

#include "generator/gemm/problem.h"
#include "octile/octile.h"
#include "runtime/families/gemm/launch.h"
#include "runtime/engine/library.h"

namespace octile {

class FixedGemm {
 public:
  // Loads a built kernel. The device's primary context must be current in this thread, now and in
  // run(). The library must outlive the result. Errors: kDeviceError, kOutOfMemory.
  static Result<FixedGemm> load(Library& library, const std::shared_ptr<const Driver>& driver,
                                int ordinal, const DeviceSpec& device, const GemmProblem& problem,
                                const GemmConfig& config, Built built);

  // Runs the GEMM like octile_gemm_run; `args` includes m > 0. Legal in a capture.
  Status run(octile_gemm_args args, CUstream stream) const;

  const KernelBuild& build() const { return *built_.kernel; }

 private:
  FixedGemm(std::shared_ptr<const Driver> driver, GemmProblem problem, GemmLaunch launch,
            Built built)
      : driver_(std::move(driver)),
        problem_(std::move(problem)),
        launch_(launch),
        built_(std::move(built)) {}

  std::shared_ptr<const Driver> driver_;
  GemmProblem problem_;
  GemmLaunch launch_;
  Built built_;
};

}  // namespace octile
