// Common parts of the benches of all families: builds by the library's threads, times by graph
// replay.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/turn.h"
#include "runtime/measure/loaded_template.h"
#include "runtime/measure/telemetry.h"
#include "runtime/measure/timing.h"
#include "runtime/prove/bench.h"
#include "runtime/prove/build_queue.h"
#include "runtime/prove/shortlist.h"

namespace octile::tuner {

// The state that the searches on one GPU share. The library outlives it.
struct TunerContext {
  // folder: processes that share it use the GPU in turns. "": this process is alone.
  TunerContext(Library& its_library, const GpuSession& its_gpu, const std::string& folder = "")
      : library(its_library),
        gpu(its_gpu),
        telemetry(Telemetry::open(*its_gpu.driver(), its_gpu.ordinal())),
        templates(its_gpu),
        builds(its_library, its_gpu.spec()),
        turn(folder, "gpu-" + its_gpu.uuid()) {}

  // As Bench::take_device. A turn that cannot be had saves no work, and is not waited for.
  bool take_device();
  // Returns the seconds since a first vain try until the device was got, in all.
  double seconds_waited() const;

  Library& library;
  const GpuSession& gpu;
  Telemetry telemetry;
  LoadedTemplates templates;  // kernels with which families verify
  BuildQueue builds;
  cache::Turn turn;  // the GPU's

 private:
  using Time = std::chrono::steady_clock::time_point;
  std::chrono::duration<double> waited_{0};
  std::optional<Time> waiting_;  // since when
};

// Candidates as an Exploration numbers them; the first is the default.
class GpuBench : public Bench {
 public:
  int candidates() const override { return static_cast<int>(candidates_.size()); }
  std::optional<int> variant_of(int candidate) const override {
    return ranked(candidate).variant_of;
  }
  std::string name(int candidate) const override { return to_text(config(candidate)); }
  bool take_device() override { return context_.take_device(); }
  void give_device_back() override { context_.turn.give_back(); }
  void start_builds(std::span<const int> candidates) override;
  std::optional<Result<BuildReport>> build(int candidate, double seconds) override;
  Result<double> time(int candidate) override;
  DeviceTelemetry state() override { return context_.telemetry.read(); }

  // The build of a candidate that was built.
  const Built& built(int candidate) const { return built_.at(candidate); }
  // Returns true if the candidate was loaded to be checked.
  virtual bool has_kernel(int candidate) const = 0;
  // The calls of a loaded candidate.
  virtual Contender contender(int candidate) const = 0;
  // The number of sets of operands that calls rotate over.
  virtual int slot_count() const = 0;

 protected:
  GpuBench(TunerContext& context, Problem problem, std::vector<Ranked> candidates,
           Replayer replayer)
      : context_(context),
        problem_(std::move(problem)),
        candidates_(std::move(candidates)),
        replayer_(std::move(replayer)) {}
  const KernelConfig& config(int candidate) const { return ranked(candidate).config; }

  TunerContext& context_;

 private:
  const Ranked& ranked(int candidate) const {
    return candidates_.at(static_cast<std::size_t>(candidate));
  }

  const Problem problem_;
  const std::vector<Ranked> candidates_;
  Replayer replayer_;
  std::map<int, Built> built_;
  std::map<int, Replay> replays_;
};

}  // namespace octile::tuner
