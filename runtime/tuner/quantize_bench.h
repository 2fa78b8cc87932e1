// The Bench of one quantiser at one row count on a GPU.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "runtime/engine/fixed_quantize.h"
#include "runtime/measure/quantize_operands.h"
#include "runtime/tuner/gpu_bench.h"
#include "runtime/tuner/quantize_gate.h"

namespace octile::tuner {

class QuantizeBench final : public GpuBench {
 public:
  // Fresh operands by `seed`. Errors: as make_quantize_slots.
  static Result<std::unique_ptr<QuantizeBench>> create(GpuWorkshop& shop,
                                                       const QuantizeProblem& problem,
                                                       std::int64_t rows,
                                                       std::vector<Ranked> shortlist,
                                                       std::uint64_t seed);

  Result<Verdict> gate(int candidate) override;
  bool has_kernel(int candidate) const override { return kernels_.contains(candidate); }
  Contender contender(int candidate) const override;
  int slot_count() const override { return static_cast<int>(slots_.size()); }

  // One that was gated.
  const FixedQuantize& kernel(int candidate) const { return kernels_.at(candidate); }

 private:
  QuantizeBench(GpuWorkshop& shop, const QuantizeProblem& problem, std::vector<Ranked> shortlist,
                std::vector<QuantizeSlot> slots, Replayer replayer)
      : GpuBench(shop, problem, std::move(shortlist), std::move(replayer)),
        problem_(problem),
        slots_(std::move(slots)) {}
  Result<const FixedQuantize*> load(int candidate);

  const QuantizeProblem problem_;
  const std::vector<QuantizeSlot> slots_;
  std::unique_ptr<QuantizeGate> gate_;  // looks at a slot
  std::map<int, FixedQuantize> kernels_;
};

}  // namespace octile::tuner
