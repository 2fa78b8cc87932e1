#include "tools/bench/compile_first.h"

#include <iterator>

#include "runtime/api/boundary.h"
#include "tools/common/on_workers.h"
#include "tools/compile/needed_kernels.h"

namespace octile::tools {

void compile_first(const BenchContext& context, const std::vector<Work>& works) {
  Library& library = context.library.get()->library;
  const DeviceSpec& device = context.gpu.spec();
  const auto kernels = needed_kernels(works, device, library.engine);
  if (!kernels) return;
  for_each_on(library.workers, kernels->size(), [&](std::size_t i) {
    const NeededKernel& needed =
        std::next(kernels->begin(), static_cast<std::ptrdiff_t>(i))->second;
    (void)library.engine.build(needed.uses.front().problem, needed.config, device);
  });
}

}  // namespace octile::tools
