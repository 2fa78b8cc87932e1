#include "runtime/engine/describe.h"

#include <utility>

#include "cache/json.h"
#include "generator/core/token_buckets.h"

namespace octile {
namespace {

Json json_of(const Plan::Description& prepared) {
  Json buckets = Json::array();
  Json chosen_by = Json::array();
  for (int bucket = 0; bucket < Plan::kBuckets; ++bucket) {
    const auto at = static_cast<std::size_t>(bucket);
    if (!prepared.buckets.test(at)) continue;
    buckets.push_back(bucket_upper(bucket));
    const auto by = prepared.chosen_by[at];
    chosen_by.push_back(by ? Json(name_of(*by)) : Json());
  }
  return describe(*prepared.kernel->built.kernel)
      .add("buckets", std::move(buckets))
      .add("chosen_by", std::move(chosen_by));
}

}  // namespace

Json describe(const KernelBuild& build) {
  const EmittedKernel& e = build.emitted;
  Json json = Json::object();
  json.add("name", e.name)
      .add("config", e.config_text)
      .add("template", e.template_path)
      .add("source_digest", build.source_digest)
      .add("architecture", build.architecture)
      .add("threads", e.threads)
      .add("cluster", e.cluster)
      .add("registers", build.registers)
      .add("smem_bytes", e.smem_bytes + build.static_smem_bytes)
      .add("spill_store_bytes", build.spill_store_bytes)
      .add("spill_load_bytes", build.spill_load_bytes)
      .add("stack_bytes", build.stack_bytes)
      .add("compile_ms", build.compile_ms)
      .add("cubin_bytes", build.cubin.size())
      .add("cache", name_of(build.origin))
      .add("toolchain", build.toolchain.text());
  return json;
}

std::string describe(const Plan& plan) {
  Json kernels = Json::array();
  for (const Plan::Description& prepared : plan.kernels()) kernels.push_back(json_of(prepared));
  return Json::object()
      .add("problem", to_text(plan.problem()))
      .add("token_axis", plan.axis().dimension)
      .add("device", plan.target().text)
      .add("kernels", std::move(kernels))
      .dump();
}

}  // namespace octile
