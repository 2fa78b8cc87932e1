// The contents of a library handle.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "runtime/base/environment.h"
#include "runtime/base/log.h"
#include "runtime/base/worker_pool.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/trusted_devices.h"
#include "runtime/launch/kernel_registry.h"

namespace octile {

struct LibraryOptions {
  EngineOptions engine;
  Logger::Callback log;
  LogLevel log_level = LogLevel::kWarning;
  int compile_threads = 0;  // 0: one per core
  TuningSetting tuning{};   // whether prepare searches
};

// Members are destroyed last to first, so that background jobs end before what they use.
struct Library {
  explicit Library(LibraryOptions options)
      : logger(std::move(options.log), options.log_level),
        engine(std::move(options.engine), logger),
        tuning(options.tuning),
        workers(options.compile_threads) {}

  Logger logger;
  Engine engine;
  const TuningSetting tuning;
  KernelRegistry registry;
  TrustedDevices trusted_devices;
  // Handles not yet destroyed.
  std::atomic<int> plans = 0;
  std::atomic<int> layers = 0;
  std::atomic<int> weights = 0;
  std::atomic<int> pieces = 0;
  WorkerPool workers;
  // Whoever searches configurations holds it from its first measurement to its end, while `workers`
  // compiles the candidates. Searches have a thread, a context and a capture mode of their own.
  std::mutex search_turn;
  WorkerPool searches{1};  // those in the background
};

// A kernel that is built, and where it is loaded.
struct ReadyKernel {
  Built built;
  LoadedKernel loaded;
};

// Loads a kernel, as Engine::build() answered for it, on a device. If the driver refuses one of the
// cache, the kernel is taken from another root or compiled. Errors: those of Engine::build() and
// KernelRegistry::load(); one that follows a refusal names the entry too.
Result<ReadyKernel> load_built(Library& library, const std::shared_ptr<const Driver>& driver,
                               int ordinal, const Problem& problem, const KernelConfig& config,
                               const DeviceSpec& device, Result<Built> built);
// Builds the kernel and loads it on a live device. Errors: those of load_built().
Result<ReadyKernel> build_and_load(Library& library, const Target& target, const Problem& problem,
                                   const KernelConfig& config, const DeviceSpec& device);

}  // namespace octile
