#include "runtime/families/families.h"

#include <utility>

#include "runtime/families/gemm/bench.h"
#include "runtime/families/quantize/bench.h"

namespace octile {

Status check_plan_extents(const Problem& problem) {
  for (const Extent& extent : extents(problem)) {
    if (extent.value == kDynamic) continue;
    if (Status ok = check_extent(extent.name, extent.value); !ok) return ok;
  }
  return {};
}

ResolvedKernel resolve(const Problem& problem, const KernelConfig& config, const DeviceSpec& device,
                       const LoadedKernel& loaded) {
  return std::visit(
      [&]<typename P>(const P& p) -> ResolvedKernel {
        return resolve(p, config_as<P>(config), device, loaded);
      },
      problem);
}

std::int64_t workspace_bytes(const Problem& problem, const DeviceSpec& device,
                             std::int64_t tokens) {
  return std::visit([&](const auto& p) { return workspace_bytes(p, device, tokens); }, problem);
}

Status check_operands(const Problem& problem) {
  return std::visit([](const auto& p) { return check_operands(p); }, problem);
}

std::int64_t bytes_moved(const Problem& problem, std::int64_t tokens) {
  return std::visit([&](const auto& p) { return bytes_moved(p, tokens); }, problem);
}

namespace tuner {

Result<std::unique_ptr<GpuBench>> make_bench(TunerContext& context, const Problem& problem,
                                             std::int64_t tokens, std::vector<Ranked> candidates,
                                             std::uint64_t seed) {
  return std::visit(
      [&]<typename P>(const P& p) -> Result<std::unique_ptr<GpuBench>> {
        return KernelBench<P>::create(context, p, tokens, std::move(candidates), seed);
      },
      problem);
}

}  // namespace tuner
}  // namespace octile
