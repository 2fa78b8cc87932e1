// The Bench of one product at one token count on a GPU.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "runtime/engine/fixed_gemm.h"
#include "runtime/measure/operands.h"
#include "runtime/tuner/gemm_gate.h"
#include "runtime/tuner/gpu_bench.h"

namespace octile::tuner {

class GemmBench final : public GpuBench {
 public:
  // Fresh operands by `seed`.
  static Result<std::unique_ptr<GemmBench>> create(GpuWorkshop& shop, const GemmProblem& problem,
                                                   std::int64_t tokens,
                                                   std::vector<Ranked> shortlist,
                                                   std::uint64_t seed);

  Result<Verdict> gate(int candidate) override;
  bool has_kernel(int candidate) const override { return kernels_.contains(candidate); }
  Contender contender(int candidate) const override;
  int slot_count() const override { return static_cast<int>(slots_.size()); }

  // One that was gated.
  const FixedGemm& kernel(int candidate) const { return kernels_.at(candidate); }
  // What calls rotate over, to time something else on the same.
  const std::vector<GemmSlot>& slots() const { return slots_; }

 private:
  GemmBench(GpuWorkshop& shop, const GemmProblem& problem, std::vector<Ranked> shortlist,
            std::vector<GemmSlot> slots, GemmGate gate, Replayer replayer)
      : GpuBench(shop, problem, std::move(shortlist), std::move(replayer)),
        problem_(problem),
        slots_(std::move(slots)),
        gate_(std::move(gate)) {}
  Result<const FixedGemm*> load(int candidate);

  const GemmProblem problem_;
  std::vector<GemmSlot> slots_;
  GemmGate gate_;
  std::map<int, FixedGemm> kernels_;
};

}  // namespace octile::tuner
