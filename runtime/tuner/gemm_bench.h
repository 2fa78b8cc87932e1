// The Bench of one product at one token count on a GPU.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/fixed_gemm.h"
#include "runtime/measure/operands.h"
#include "runtime/measure/telemetry.h"
#include "runtime/measure/timing.h"
#include "runtime/tuner/bench.h"
#include "runtime/tuner/build_queue.h"
#include "runtime/tuner/gemm_gate.h"
#include "runtime/tuner/shortlist.h"

namespace octile::tuner {

// What searches on one GPU share. The library outlives it.
struct GpuWorkshop {
  static Result<std::unique_ptr<GpuWorkshop>> open(Library& library, const GpuSession& gpu);
  GpuWorkshop(Library& its_library, const GpuSession& its_gpu, LoadedTemplate inspector)
      : library(its_library),
        gpu(its_gpu),
        telemetry(Telemetry::open(*its_gpu.driver(), its_gpu.ordinal())),
        inspect_bf16(std::move(inspector)),
        builds(its_library, its_gpu.spec()) {}

  Library& library;
  const GpuSession& gpu;
  Telemetry telemetry;
  LoadedTemplate inspect_bf16;
  BuildQueue builds;
};

class GemmBench final : public Bench {
 public:
  // Candidates in the order of `shortlist`, whose first is the default. Fresh operands by `seed`.
  static Result<std::unique_ptr<GemmBench>> create(GpuWorkshop& shop, const GemmProblem& problem,
                                                   std::int64_t tokens,
                                                   std::vector<Ranked> shortlist,
                                                   std::uint64_t seed);

  int candidates() const override { return static_cast<int>(shortlist_.size()); }
  std::string name(int candidate) const override { return octile::to_text(config(candidate)); }
  void start_builds(std::span<const int> candidates) override;
  std::optional<Result<BuildReport>> build(int candidate, double seconds) override;
  Result<Verdict> gate(int candidate) override;
  Result<double> time(int candidate) override;
  DeviceTelemetry state() override { return shop_.telemetry.read(); }

  // Whether it was gated.
  bool has_kernel(int candidate) const { return kernels_.contains(candidate); }
  const FixedGemm& kernel(int candidate) const { return kernels_.at(candidate); }
  Contender contender(int candidate) const;
  // What calls rotate over, to time something else on the same.
  const std::vector<GemmSlot>& slots() const { return slots_; }

 private:
  GemmBench(GpuWorkshop& shop, const GemmProblem& problem, std::vector<Ranked> shortlist,
            std::vector<GemmSlot> slots, Replayer replayer)
      : shop_(shop),
        problem_(problem),
        shortlist_(std::move(shortlist)),
        slots_(std::move(slots)),
        replayer_(std::move(replayer)) {}
  const GemmConfig& config(int candidate) const;
  Result<const FixedGemm*> load(int candidate);

  GpuWorkshop& shop_;
  const GemmProblem problem_;
  const std::vector<Ranked> shortlist_;
  std::vector<GemmSlot> slots_;
  std::unique_ptr<GemmGate> gate_;
  Replayer replayer_;
  std::map<int, Built> built_;
  std::map<int, FixedGemm> kernels_;
  std::map<int, Replay> replays_;
};

}  // namespace octile::tuner
