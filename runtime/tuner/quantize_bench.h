// The Bench of one quantiser at one row count on a GPU.
#pragma once

#include <memory>
#include <vector>

#include "runtime/engine/fixed_quantize.h"
#include "runtime/measure/quantize_operands.h"
#include "runtime/tuner/kernel_bench.h"
#include "runtime/tuner/quantize_gate.h"

namespace octile::tuner {

class QuantizeBench final : public KernelBench<QuantizeProblem, QuantizeConfig, FixedQuantize,
                                               QuantizeSlot, QuantizeGate> {
 public:
  // Fresh operands by `seed`. Errors: as make_quantize_slots.
  static Result<std::unique_ptr<QuantizeBench>> create(GpuWorkshop& shop,
                                                       const QuantizeProblem& problem,
                                                       std::int64_t rows,
                                                       std::vector<Ranked> candidates,
                                                       std::uint64_t seed);

 private:
  using KernelBench::KernelBench;
};

}  // namespace octile::tuner
