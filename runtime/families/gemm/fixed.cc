#include "runtime/families/gemm/fixed.h"

#include <utility>

#include "runtime/engine/arguments.h"

namespace octile {

Result<FixedGemm> FixedGemm::load(Library& library, const std::shared_ptr<const Driver>& driver,
                                  int ordinal, const DeviceSpec& device, const GemmProblem& problem,
                                  const GemmConfig& config, Built built) {
  const auto loaded = library.registry.load(driver, ordinal, built.kernel);
  if (!loaded) return tl::unexpected<Error>(loaded.error());
  return FixedGemm(driver, problem, gemm_launch(config, device.sm_count, loaded->kernel),
                   std::move(built));
}

Status FixedGemm::run(octile_gemm_args args, CUstream stream) const {
  if (Status ok = check_arguments(problem_, args); !ok) return ok;
  const LaunchSite site{.driver = *driver_, .stream = stream, .in_primary = true};
  return launch_gemm(site, launch_, problem_.n, problem_.k, args);
}

}  // namespace octile
