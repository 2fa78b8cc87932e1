#include "runtime/families/quantize/fixed.h"

#include <utility>

#include "runtime/engine/arguments.h"

namespace octile {

Result<FixedQuantize> FixedQuantize::load(Library& library,
                                          const std::shared_ptr<const Driver>& driver, int ordinal,
                                          const DeviceSpec& device, const QuantizeProblem& problem,
                                          const QuantizeConfig& config, Built built) {
  const auto loaded = library.registry.load(driver, ordinal, built.kernel);
  if (!loaded) return tl::unexpected<Error>(loaded.error());
  return FixedQuantize(
      driver, problem,
      quantize_launch(problem, config, device.sm_count, loaded->kernel, loaded->companions),
      std::move(built));
}

Status FixedQuantize::run(octile_quantize_args args, CUstream stream) const {
  if (Status ok = check_arguments(problem_, args); !ok) return ok;
  if (Status ok = check_workspace(args, launch_.workspace.bytes(args.rows)); !ok) return ok;
  const LaunchSite site{.driver = *driver_, .stream = stream, .in_primary = true};
  return launch_quantize(site, launch_, problem_, args);
}

}  // namespace octile
