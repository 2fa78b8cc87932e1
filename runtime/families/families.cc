#include "runtime/families/families.h"

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

}  // namespace octile
