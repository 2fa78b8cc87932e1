// A Decider that opens its GPU by itself, for searches that run in a thread of their own.
#pragma once

#include <memory>
#include <string>

#include "runtime/launch/device_scope.h"
#include "runtime/tuner/gpu_decider.h"

namespace octile::tuner {

// To be made, used and destroyed in one thread, which is in the relaxed capture mode meanwhile: no
// capture of another thread is disturbed.
class DeviceDecider final : public Decider {
 public:
  // device: "cuda:N". folder: as TunerContext's. The library outlives it. Errors: as
  // GpuSession::open.
  static Result<std::unique_ptr<Decider>> open(Library& library, const std::string& device,
                                               const std::string& folder,
                                               GpuDeciderOptions options);

  void expect(const TuningTask& task) override { decider_.expect(task); }
  void learn(const cache::TuningRecord& record) override { decider_.learn(record); }
  Result<Decision> decide(const TuningTask& task, const Budget& budget) override {
    return decider_.decide(task, budget);
  }
  double seconds_waited() const override { return decider_.seconds_waited(); }

 private:
  DeviceDecider(Library& library, std::unique_ptr<RelaxedCapture> relaxed,
                std::unique_ptr<GpuSession> gpu, const std::string& folder,
                GpuDeciderOptions options)
      : relaxed_(std::move(relaxed)),
        gpu_(std::move(gpu)),
        context_(library, *gpu_, folder),
        decider_(context_, std::move(options)) {}

  std::unique_ptr<RelaxedCapture> relaxed_;
  std::unique_ptr<GpuSession> gpu_;
  TunerContext context_;
  GpuDecider decider_;
};

}  // namespace octile::tuner
