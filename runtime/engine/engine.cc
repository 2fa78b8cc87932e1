#include "runtime/engine/engine.h"

#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <span>
#include <utility>

#include "generator/core/identity.h"
#include "runtime/base/fork.h"
#include "runtime/compiler/cubin.h"
#include "runtime/engine/cache_entry.h"
#include "templates/embedded.h"

namespace octile {
namespace {

cache::StoreOptions store_options(const EngineOptions& options, Logger& logger) {
  cache::StoreOptions store;
  store.writable_root = options.writable_root;
  store.read_only_roots = options.read_only_roots;
  store.bound.max_bytes = options.max_bytes;
  store.file_ops = options.file_ops;
  store.log = [&logger](cache::Severity severity, const std::string& message) {
    logger.log(severity == cache::Severity::kWarning ? LogLevel::kWarning
               : severity == cache::Severity::kInfo  ? LogLevel::kInfo
                                                     : LogLevel::kDebug,
               message);
  };
  return store;
}

std::string roots_text(const cache::StoreOptions& options) {
  std::string text = options.writable_root;
  for (const std::string& root : options.read_only_roots) text += (text.empty() ? "" : ", ") + root;
  return text.empty() ? "no cache folder" : text;
}

// Checks that a cubin holds the kernels of `emitted`, with the parameters they are launched with.
Status validate(std::span<const std::uint8_t> cubin, const EmittedKernel& emitted,
                std::string_view architecture) {
  Status ok = validate_cubin(cubin, architecture, emitted.name, emitted.parameter_bytes);
  for (const EntryPoint& companion : emitted.companions) {
    if (!ok) break;
    ok = validate_cubin(cubin, architecture, companion.name, companion.parameter_bytes);
  }
  return ok;
}

}  // namespace

std::string_view name_of(CacheState state) {
  switch (state) {
    case CacheState::kHit:
      return "hit";
    case CacheState::kMiss:
      return "miss";
    case CacheState::kMemory:
      return "memory";
  }
  return "unknown";
}

TemplateSet embedded_templates() {
  const std::scoped_lock lock(process_mutex(ProcessWide::kTables));
  // Never destroyed: threads may still run when the process exits.
  static const auto& files = *new std::vector<TemplateFile>([] {
    std::vector<TemplateFile> all;
    for (int i = 0; i < templates::file_count(); ++i) {
      const templates::File& file = templates::files()[i];
      all.push_back({file.path, {file.text, file.bytes}});
    }
    return all;
  }());
  return files;
}

cache::Identity identity_of(const EmittedKernel& kernel, const DeviceSpec& device) {
  return {kernel.name, device.arch(), kernel.options, identity_text(kernel.source)};
}

Engine::Engine(EngineOptions options, Logger& logger)
    : options_(std::move(options)),
      logger_(logger),
      store_(store_options(options_, logger)),
      compiler_(
          options_.writable_root, options_.file_ops,
          [&logger](const std::string& sentence) { logger.log(LogLevel::kWarning, sentence); }),
      records_(options_.tuning, options_.writable_root, options_.read_only_roots, logger) {}

Choice Engine::choose_config(const Problem& problem, std::int64_t tokens,
                             const DeviceSpec& device) {
  return octile::choose_config(problem, tokens, described(device), *records());
}

DeviceSpec Engine::described(DeviceSpec device) {
  const DeviceSpec* const known = find_device(device.name);
  if (options_.writable_root.empty() || (known != nullptr && known->is_measured)) return device;
  std::call_once(measured_once_, [this] {
    const cache::MeasuredDevices file(options_.writable_root, options_.file_ops);
    if (auto devices = file.read()) {
      measured_ = std::move(*devices);
    } else {
      logger_.log(LogLevel::kWarning,
                  fmt::format("measured devices are not used: {}", devices.error().sentence));
    }
  });
  for (const cache::MeasuredDevice& measured : measured_) {
    if (measured.name != device.name || measured.sm_count != device.sm_count) continue;
    const double faster = measured.clock_ghz / device.clock_ghz;
    device.clock_ghz = measured.clock_ghz;
    device.fp8_tflops *= faster;
    device.l2_tbps *= faster;
    device.dram_tbps = measured.dram_tbps;
    device.launch_us = measured.launch_us;
  }
  return device;
}

Result<Built> Engine::kernel_for(const Problem& problem, std::int64_t tokens,
                                 const DeviceSpec& device) {
  return build(problem, choose_config(problem, tokens, device).config, device);
}

Result<Built> Engine::build(const Problem& problem, const KernelConfig& config,
                            const DeviceSpec& device, Purpose purpose) {
  auto emitted = emit(problem, config, device, embedded_templates());
  if (!emitted) return tl::unexpected<Error>(emitted.error());
  Wanted wanted{problem, *emitted, identity_of(*emitted, device), {}, purpose};
  wanted.key_text = cache::key_text(wanted.identity);
  const auto [kernel, made] =
      kernels_.get(wanted.key_text, [&] { return find_or_compile(wanted); });
  if (!kernel) return tl::unexpected<Error>(kernel.error());
  return Built{*kernel, made ? (*kernel)->origin : CacheState::kMemory};
}

bool Engine::pass_over(const Built& refused, const std::string& reason) {
  const std::shared_ptr<const KernelBuild>& kernel = refused.kernel;
  if (kernel->cache_path.empty()) return false;
  store_.pass_over(kernel->cache_path, reason);
  const EmittedKernel& emitted = kernel->emitted;
  kernels_.forget(cache::key_text({emitted.name, kernel->architecture, emitted.options,
                                   identity_text(emitted.source)}),
                  kernel);
  return true;
}

// on disk? -> NVRTC -> cubin -> cache
Result<Engine::Kernel> Engine::find_or_compile(const Wanted& wanted) {
  const auto expected = expected_toolchain();
  if (Kernel found = find_on_disk(wanted, expected)) return found;
  if (options_.offline) {
    store_.count(cache::CacheEvent::kMiss, 0);
    return fail(ErrorCode::kOffline,
                fmt::format("kernel {} ({}) for {} is not in the cache ({}) and offline forbids "
                            "compiling it; problem: {}",
                            wanted.identity.entry_name, cache::digest_hex(wanted.key_text),
                            wanted.identity.architecture, roots_text(store_.options()),
                            octile::to_text(wanted.problem)));
  }
  auto compiler = compiler_.open();
  if (!compiler)
    return fail(ErrorCode::kNoCompiler,
                fmt::format("kernel {} for {} is not in the cache ({}) and cannot be compiled: {}",
                            wanted.identity.entry_name, wanted.identity.architecture,
                            roots_text(store_.options()), compiler.error().message));
  const cache::Store::Lock lock = store_.lock(wanted.identity, compiler->toolchain);
  // The last holder of the lock may have published it, or the memo named another toolchain.
  if (lock.held() || expected != compiler->toolchain)
    if (Kernel found = find_on_disk(wanted, compiler->toolchain)) return found;
  return compile(wanted, compiler->toolchain);
}

// Returns the toolchain to look for. If this process cannot compile, it is nullopt and the kernel
// of any toolchain will do.
std::optional<cache::Toolchain> Engine::expected_toolchain() {
  if (options_.offline) return std::nullopt;
  auto toolchain = compiler_.toolchain();
  if (!toolchain) return std::nullopt;
  return *toolchain;
}

// Returns the cached kernel, or null if there is none or it is not the kernel that it claims to be.
Engine::Kernel Engine::find_on_disk(const Wanted& wanted,
                                    const std::optional<cache::Toolchain>& toolchain) {
  std::optional<cache::Hit> hit;
  for (std::string rejected;;) {
    hit = store_.lookup(wanted.identity, toolchain);
    if (!hit || hit->path == rejected) return nullptr;
    const Status valid = validate(hit->entry.cubin, wanted.emitted, wanted.identity.architecture);
    if (valid) break;
    store_.reject(wanted.identity, *hit, valid.error().message);
    rejected = hit->path;
  }
  store_.count(cache::CacheEvent::kHit, hit->entry.metadata.compile_ms);
  KernelBuild build = build_of_entry(std::move(hit->entry));
  build.emitted = wanted.emitted;
  build.source_digest = cache::digest_hex(wanted.key_text);
  build.cache_path = hit->path;
  logger_.log(LogLevel::kDebug, fmt::format("{} found at {}", build.emitted.name, hit->path));
  return std::make_shared<const KernelBuild>(std::move(build));
}

Result<Engine::Kernel> Engine::compile(const Wanted& wanted, const cache::Toolchain& toolchain) {
  auto output =
      compiler_.compile(wanted.emitted.name + ".cu", wanted.emitted.source, wanted.emitted.options);
  if (!output) return tl::unexpected<Error>(output.error());
  const Status valid = validate(output->cubin, wanted.emitted, wanted.identity.architecture);
  if (!valid)
    return fail(ErrorCode::kCompileFailed,
                fmt::format("the compiler's answer is {}", valid.error().message));
  const KernelResources* resources = output->find(wanted.emitted.name);
  if (resources == nullptr)
    return fail(ErrorCode::kCompileFailed,
                fmt::format("the compiler reports no resources of {}", wanted.emitted.name));

  KernelBuild build;
  build.emitted = wanted.emitted;
  build.architecture = wanted.identity.architecture;
  build.source_digest = cache::digest_hex(wanted.key_text);
  build.toolchain = toolchain;
  build.cubin = std::move(output->cubin);
  build.registers = resources->registers;
  build.static_smem_bytes = resources->static_smem_bytes;
  build.spill_store_bytes = resources->spill_store_bytes;
  build.spill_load_bytes = resources->spill_load_bytes;
  build.stack_bytes = resources->stack_bytes;
  build.compile_ms = output->compile_ms;
  if (wanted.purpose == Purpose::kServe) warn_of_lost_speed(build, *output);
  logger_.log(LogLevel::kInfo,
              fmt::format("compiled {} in {:.0f} ms", build.emitted.name, build.compile_ms));
  store_.count(cache::CacheEvent::kMiss, build.compile_ms);
  store_.publish(entry_of_build(build, wanted.identity, octile::to_text(wanted.problem)));
  return std::make_shared<const KernelBuild>(std::move(build));
}

void Engine::warn_of_lost_speed(const KernelBuild& build, const CompileOutput& output) {
  if (build.spill_store_bytes > 0 || build.spill_load_bytes > 0)
    logger_.log(
        LogLevel::kWarning,
        fmt::format("{} spills registers ({} bytes stored, {} loaded): it is right and slow",
                    build.emitted.name, build.spill_store_bytes, build.spill_load_bytes));
  for (const std::string& line : output.lost_schedules)
    logger_.log(LogLevel::kWarning, fmt::format("{}: {}", build.emitted.name, line));
}

}  // namespace octile
