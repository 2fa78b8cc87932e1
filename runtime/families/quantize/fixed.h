// A quantise kernel of a given configuration, ready on one device, like FixedGemm for a GEMM.
#pragma once

#include <cuda.h>

#include <memory>
#include <utility>

#include "generator/quantize/problem.h"
#include "octile/octile.h"
#include "runtime/families/quantize/launch.h"
#include "runtime/engine/library.h"

namespace octile {

class FixedQuantize {
 public:
  // Loads a built kernel. The device's primary context must be current in this thread, now and in
  // run(). The library must outlive the result. Errors: kDeviceError, kOutOfMemory.
  static Result<FixedQuantize> load(Library& library, const std::shared_ptr<const Driver>& driver,
                                    int ordinal, const DeviceSpec& device,
                                    const QuantizeProblem& problem, const QuantizeConfig& config,
                                    Built built);

  // Runs the quantiser like octile_quantize_run; `args` includes rows > 0. Legal in a capture.
  Status run(octile_quantize_args args, CUstream stream) const;

  const KernelBuild& build() const { return *built_.kernel; }

 private:
  FixedQuantize(std::shared_ptr<const Driver> driver, QuantizeProblem problem,
                QuantizeLaunch launch, Built built)
      : driver_(std::move(driver)),
        problem_(std::move(problem)),
        launch_(std::move(launch)),
        built_(std::move(built)) {}

  std::shared_ptr<const Driver> driver_;
  QuantizeProblem problem_;
  QuantizeLaunch launch_;
  Built built_;
};

}  // namespace octile
