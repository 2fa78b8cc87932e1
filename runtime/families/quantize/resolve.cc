#include "runtime/families/quantize/resolve.h"

#include "generator/core/types.h"
#include "generator/quantize/resources.h"

namespace octile {

ResolvedQuantize resolve(const QuantizeProblem& problem, const QuantizeConfig& config,
                         const DeviceSpec& device, const LoadedKernel& loaded) {
  const QuantizeResources resources = resources_of(problem, config);
  ResolvedQuantize r{.problem = problem,
                     .kernel = loaded.kernel,
                     .threads = resources.threads,
                     .smem_bytes = resources.smem_bytes,
                     .cluster = config.cluster,
                     .orders_scales = config.orders_scales,
                     .bias_blocks = ceil_div(problem.cols, kBiasThreads),
                     .fingerprint_blocks = std::int64_t{device.sm_count} * kFingerprintBlocksPerSm,
                     .grid = grid_of(problem, config, device.sm_count)};
  const std::vector<Companion> which = companions_of(problem, config);
  for (std::size_t i = 0; i < loaded.companions.size(); ++i)  // none if the device is a name
    r.companions[static_cast<std::size_t>(which[i])] = loaded.companions[i];
  r.kernel.waits_itself = device.has_pdl;
  for (KernelHandle& companion : r.companions) companion.waits_itself = device.has_pdl;
  return r;
}

}  // namespace octile
