#include "runtime/engine/launch_quantize.h"

#include <array>

namespace octile {

QuantizeLaunch quantize_launch(const QuantizeProblem& problem, const QuantizeConfig& config,
                               CUkernel kernel) {
  const QuantizeResources r = resources_of(problem, config);
  return {kernel, config, r.threads, r.smem_bytes};
}

Status launch_quantize(const Driver& driver, const QuantizeLaunch& l,
                       const QuantizeProblem& problem, const octile_quantize_args& args,
                       CUstream stream) {
  const auto blocks = launch_blocks(problem, l.config, args.rows);
  if (!blocks) return tl::unexpected<Error>(blocks.error());
  if (*blocks == 0) return {};
  QuantizeKernelArgs kernel_args{args.x,    args.q,       static_cast<float*>(args.scale),
                                 args.rows, problem.cols, args.ldx,
                                 args.ldq,  args.scale_ld};
  std::array<void*, 1> parameters{&kernel_args};
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned int>(*blocks);
  config.gridDimY = 1;
  config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned int>(l.threads);
  config.blockDimY = 1;
  config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned int>(l.smem_bytes);
  config.hStream = stream;
  return driver.check(driver->cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(l.kernel),
                                               parameters.data(), nullptr),
                      "cuLaunchKernelEx");
}

}  // namespace octile
