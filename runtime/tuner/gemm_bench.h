// The Bench of one product at one token count on a GPU.
#pragma once

#include <memory>
#include <vector>

#include "runtime/engine/fixed_gemm.h"
#include "runtime/measure/operands.h"
#include "runtime/tuner/gemm_gate.h"
#include "runtime/tuner/kernel_bench.h"

namespace octile::tuner {

class GemmBench final : public KernelBench<GemmProblem, GemmConfig, FixedGemm, GemmSlot, GemmGate> {
 public:
  // Fresh operands by `seed`.
  static Result<std::unique_ptr<GemmBench>> create(GpuWorkshop& shop, const GemmProblem& problem,
                                                   std::int64_t tokens,
                                                   std::vector<Ranked> candidates,
                                                   std::uint64_t seed);

 private:
  using KernelBench::KernelBench;
};

}  // namespace octile::tuner
