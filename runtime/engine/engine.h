// From a problem to a cubin: the path of one call up to the driver.
//
//   problem + device -> tuning record, else candidates -> rank -> emit -> key -> in memory? ->
//   on disk? -> NVRTC -> cubin -> cache
//
// A process compiles a kernel once for all threads. Processes that share a cache folder compile it
// once in all. The cache is advisory: no failure of it makes a call fail or runs another kernel.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/measured_device.h"
#include "cache/store.h"
#include "generator/core/error.h"
#include "generator/families.h"
#include "runtime/base/log.h"
#include "runtime/base/single_flight.h"
#include "runtime/engine/choice.h"
#include "runtime/engine/compiler.h"
#include "runtime/launch/kernel_build.h"
#include "runtime/tuned/tuning_records.h"

namespace octile {

struct Built {
  std::shared_ptr<const KernelBuild> kernel;
  CacheState state = CacheState::kMiss;  // kMemory: the handle had it already
};

struct EngineOptions {
  std::string writable_root;  // empty: none
  std::vector<std::string> read_only_roots;
  bool offline = false;  // never compile
  bool tuning = true;    // choose by tuning records; false: by the cost model alone
  std::int64_t max_bytes = cache::kDefaultMaxBytes;    // limit of the writable root; 0: none
  std::shared_ptr<cache::FileOps> file_ops = nullptr;  // null: the system's; tests inject faults
};

// The purpose of a kernel. Nobody is warned that a kernel on trial spills: its search reports the
// result of the trial.
enum class Purpose : std::uint8_t { kServe, kTrial };

class Engine {
 public:
  // logger outlives the engine.
  Engine(EngineOptions options, Logger& logger);

  // Returns the tuning records that their files hold now.
  std::shared_ptr<const cache::TuningSet> records() { return records_.current(); }
  TuningRecords& tuning_records() { return records_; }

  // Returns the device with the speeds that `octile doctor --measure` found, if the library's
  // description of it is not measured. A device with a measured description keeps it, so that a
  // host without a GPU chooses the same kernels for it.
  DeviceSpec described(DeviceSpec device);

  // Returns the configuration for a token count: a tuning record's, else the cost model's for the
  // described device.
  Choice choose_config(const Problem& problem, std::int64_t tokens, const DeviceSpec& device);

  // Returns the kernel for a token count: choose_config(), then build().
  Result<Built> kernel_for(const Problem& problem, std::int64_t tokens, const DeviceSpec& device);

  // Returns the kernel of a configuration. May be called from several threads at once. Errors:
  // kInvalidArgument, kUnsupported (emission); kOffline, kNoCompiler (naming the kernel and what is
  // missing); kCompileFailed.
  Result<Built> build(const Problem& problem, const KernelConfig& config, const DeviceSpec& device,
                      Purpose purpose = Purpose::kServe);

  // The driver refuses a kernel that build() found in the cache. The next build() passes over that
  // entry, which the log names once: it finds the kernel in another root, or compiles it. Returns
  // false, and does nothing, for a kernel that was not in the cache.
  bool pass_over(const Built& refused, const std::string& reason);

  cache::Store& store() { return store_; }
  Compiler& compiler() { return compiler_; }
  const EngineOptions& options() const { return options_; }

 private:
  struct Wanted {
    const Problem& problem;
    const EmittedKernel& emitted;
    cache::Identity identity;
    std::string key_text;
    Purpose purpose = Purpose::kServe;
  };
  using Kernel = std::shared_ptr<const KernelBuild>;

  Result<Kernel> find_or_compile(const Wanted& wanted);
  std::optional<cache::Toolchain> expected_toolchain();
  Kernel find_on_disk(const Wanted& wanted, const std::optional<cache::Toolchain>& toolchain);
  Result<Kernel> compile(const Wanted& wanted, const cache::Toolchain& toolchain);
  void warn_of_lost_speed(const KernelBuild& build, const CompileOutput& output);

  const EngineOptions options_;
  Logger& logger_;
  cache::Store store_;
  Compiler compiler_;
  TuningRecords records_;
  SingleFlight<Kernel> kernels_;
  std::once_flag measured_once_;
  std::vector<cache::MeasuredDevice> measured_;  // what the writable root has, once it was read
};

// Returns the templates embedded in the library, which emit() takes.
TemplateSet embedded_templates();

// Returns what identifies the kernel in the cache.
cache::Identity identity_of(const EmittedKernel& kernel, const DeviceSpec& device);

}  // namespace octile
