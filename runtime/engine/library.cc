#include "runtime/engine/library.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace octile {

Result<ReadyKernel> load_built(Library& library, const std::shared_ptr<const Driver>& driver,
                               int ordinal, const Problem& problem, const KernelConfig& config,
                               const DeviceSpec& device, Result<Built> built) {
  for (std::string refused;; built = library.engine.build(problem, config, device)) {
    if (!built) return fail(built.error().code, refused + built.error().message);
    auto loaded = library.registry.load(driver, ordinal, built->kernel);
    if (loaded) return ReadyKernel{std::move(*built), std::move(*loaded)};
    const LoadError& error = loaded.error();
    if (!error.of_kernel || !library.engine.pass_over(*built, error.message))
      return fail(error.code, refused + error.message);
    refused = fmt::format("the kernel at {} cannot be loaded ({}); ", built->kernel->cache_path,
                          error.message);
  }
}

Result<ReadyKernel> build_and_load(Library& library, const Target& target, const Problem& problem,
                                   const KernelConfig& config, const DeviceSpec& device) {
  return load_built(library, target.driver, target.ordinal, problem, config, device,
                    library.engine.build(problem, config, device));
}

}  // namespace octile
