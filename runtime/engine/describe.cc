#include "runtime/engine/describe.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "cache/json_text.h"
#include "generator/core/token_buckets.h"

namespace octile {
namespace {

using cache::JsonText;

JsonText kernel_text(const KernelBuild& build) {
  const EmittedKernel& e = build.emitted;
  JsonText text('{');
  text.add("name", e.name)
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
  return text;
}

std::string kernel_text(const Plan::Description& prepared) {
  JsonText buckets('[');
  JsonText chosen_by('[');
  for (int bucket = 0; bucket < Plan::kBuckets; ++bucket) {
    const auto at = static_cast<std::size_t>(bucket);
    if (!prepared.buckets.test(at)) continue;
    buckets.append(bucket_upper(bucket));
    const auto by = prepared.chosen_by[at];
    by ? chosen_by.append(name_of(*by)) : chosen_by.append(nullptr);
  }
  return kernel_text(*prepared.kernel->built.kernel)
      .add_raw("buckets", buckets.close())
      .add_raw("chosen_by", chosen_by.close())
      .close();
}

}  // namespace

nlohmann::ordered_json describe(const KernelBuild& build) {
  return nlohmann::ordered_json::parse(kernel_text(build).close());
}

std::string describe(const Plan& plan) {
  JsonText kernels('[');
  for (const Plan::Description& prepared : plan.kernels())
    kernels.append_raw(kernel_text(prepared));
  return JsonText('{')
      .add("problem", to_text(plan.problem()))
      .add("token_axis", plan.axis().dimension)
      .add("device", plan.target().text)
      .add_raw("kernels", kernels.close())
      .close();
}

}  // namespace octile
