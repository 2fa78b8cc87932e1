#include "runtime/engine/describe.h"

#include <nlohmann/json.hpp>

#include "generator/core/token_buckets.h"

namespace octile {

nlohmann::ordered_json describe(const KernelBuild& build) {
  const EmittedKernel& e = build.emitted;
  return {
      {"name", e.name},
      {"config", e.config_text},
      {"template", e.template_path},
      {"source_digest", build.source_digest},
      {"architecture", build.architecture},
      {"threads", e.threads},
      {"cluster", e.cluster},
      {"registers", build.registers},
      {"smem_bytes", e.smem_bytes + build.static_smem_bytes},
      {"spill_store_bytes", build.spill_store_bytes},
      {"spill_load_bytes", build.spill_load_bytes},
      {"stack_bytes", build.stack_bytes},
      {"compile_ms", build.compile_ms},
      {"cubin_bytes", build.cubin.size()},
      {"cache", name_of(build.origin)},
      {"toolchain", build.toolchain.text()},
  };
}

nlohmann::ordered_json describe(const Plan& plan) {
  nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
  for (const Plan::Description& prepared : plan.kernels()) {
    nlohmann::ordered_json kernel = describe(*prepared.kernel->built.kernel);
    auto buckets = nlohmann::ordered_json::array();
    auto chosen_by = nlohmann::ordered_json::array();
    for (int bucket = 0; bucket < Plan::kBuckets; ++bucket) {
      const auto at = static_cast<std::size_t>(bucket);
      if (!prepared.buckets.test(at)) continue;
      buckets.push_back(bucket_upper(bucket));
      const auto by = prepared.chosen_by[at];
      chosen_by.push_back(by ? nlohmann::ordered_json(name_of(*by)) : nullptr);
    }
    kernel["buckets"] = std::move(buckets);
    kernel["chosen_by"] = std::move(chosen_by);
    kernels.push_back(std::move(kernel));
  }
  return {{"problem", to_text(plan.problem())},
          {"token_axis", plan.axis().name},
          {"device", plan.target().text},
          {"kernels", std::move(kernels)}};
}

}  // namespace octile
