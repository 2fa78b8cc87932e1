#include "runtime/engine/cache_entry.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <utility>

namespace octile {

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

cache::Entry entry_of_build(const KernelBuild& build, const cache::Identity& identity,
                            std::string problem) {
  cache::Entry entry{identity, build.toolchain, {}, build.cubin};
  cache::Metadata& m = entry.metadata;
  m.problem = std::move(problem);
  m.config = build.emitted.config_text;
  m.registers = build.registers;
  m.static_smem_bytes = build.static_smem_bytes;
  m.dynamic_smem_bytes = build.emitted.smem_bytes;
  m.spill_store_bytes = build.spill_store_bytes;
  m.spill_load_bytes = build.spill_load_bytes;
  m.stack_bytes = build.stack_bytes;
  m.threads = build.emitted.threads;
  m.cluster_size = build.emitted.cluster;
  m.parameter_bytes = build.emitted.parameter_bytes;
  m.compile_ms = build.compile_ms;
  m.date = utc_now();
  return entry;
}

KernelBuild build_of_entry(cache::Entry entry) {
  KernelBuild build;
  build.architecture = std::move(entry.identity.architecture);
  build.toolchain = std::move(entry.toolchain);
  build.cubin = std::move(entry.cubin);
  build.registers = entry.metadata.registers;
  build.static_smem_bytes = entry.metadata.static_smem_bytes;
  build.spill_store_bytes = entry.metadata.spill_store_bytes;
  build.spill_load_bytes = entry.metadata.spill_load_bytes;
  build.stack_bytes = entry.metadata.stack_bytes;
  build.compile_ms = entry.metadata.compile_ms;
  build.origin = CacheState::kHit;
  return build;
}

}  // namespace octile
