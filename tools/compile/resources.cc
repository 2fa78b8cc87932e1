#include "tools/compile/resources.h"

namespace octile::tools {

Json resources(const CubinInfo& cubin) {
  Json kernels = Json::array();
  for (const CubinKernel& kernel : cubin.kernels) {
    Json parameters = Json::array();
    for (const CubinParameter& p : kernel.parameters) {
      parameters.push_back({{"offset", p.offset_bytes}, {"bytes", p.size_bytes}});
    }
    kernels.push_back({{"name", kernel.name},
                       {"registers", kernel.registers},
                       {"frame_bytes", kernel.frame_bytes},
                       {"min_stack_bytes", kernel.min_stack_bytes},
                       {"max_threads", kernel.max_threads},
                       {"static_smem_bytes", kernel.static_smem_bytes},
                       {"parameters", parameters}});
  }
  return {{"sm", cubin.sm}, {"kernels", kernels}};
}

}  // namespace octile::tools
