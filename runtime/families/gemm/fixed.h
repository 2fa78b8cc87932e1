// A GEMM kernel of a stated configuration, ready on one device: what a search times and a benchmark
// of its winner runs, beside plans, which choose for themselves.
#pragma once

#include <cuda.h>

#include <memory>

#include "generator/problem.h"
#include "octile/octile.h"
#include "runtime/families/gemm/launch.h"
#include "runtime/engine/library.h"

namespace octile {

class FixedGemm {
 public:
  // Loads what was built. The device's primary context must be current in this thread, then and in
  // run(). The library outlives this. Errors: kDeviceError, kOutOfMemory.
  static Result<FixedGemm> load(Library& library, const std::shared_ptr<const Driver>& driver,
                                int ordinal, const DeviceSpec& device, const GemmProblem& problem,
                                const GemmConfig& config, Built built);

  // As octile_gemm_run, m > 0 included in `args`. Legal in a capture.
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
