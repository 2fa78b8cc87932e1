#include "runtime/families/quantize/resolve.h"

#include "generator/core/types.h"
#include "generator/quantize/layout.h"
#include "generator/quantize/resources.h"

namespace octile {
namespace {

constexpr std::int64_t kTransposedAlign = 16;  // of a row of the transposed copy (layout table)

void place_transposed(const QuantizeProblem& p, std::int64_t rows, std::int64_t groups,
                      QuantizePlacement& placement) {
  const bool contiguous = p.grouping == Grouping::kContiguous;
  const std::int64_t columns = contiguous ? contiguous_columns(rows, groups) : rows;
  placement.ldq_transposed = round_up(columns, kTransposedAlign);
  placement.scale_ld_transposed = contiguous && p.q.granularity == Granularity::kPerTensor
                                      ? groups
                                      : packed_scale_ld(p.q, columns, p.cols, true);
}

// Scales of contiguous groups lie as one tensor's, unless every group has one scale.
std::int64_t scale_group_bytes(const QuantizeProblem& p, std::int64_t rows, std::int64_t scale_ld) {
  const bool one_per_group = p.q.granularity == Granularity::kPerTensor;
  if (p.grouping == Grouping::kContiguous && !one_per_group) return 0;
  const auto of_one = quantized_layout(p, rows, 1, false);
  if (!of_one) return 0;  // the arguments were checked
  const ArrayShape& scales = of_one->scales;
  return one_per_group ? scales.element_bytes : scales.outer * scale_ld * scales.element_bytes;
}

}  // namespace

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

QuantizePlacement ResolvedQuantize::at(std::int64_t rows, std::int64_t groups,
                                       std::int64_t scale_ld) const {
  QuantizePlacement placement;
  if (has_transposed(problem.output)) place_transposed(problem, rows, groups, placement);
  if (has_token_groups(problem.grouping))
    placement.scale_group_bytes = scale_group_bytes(problem, rows, scale_ld);
  return placement;
}

}  // namespace octile
