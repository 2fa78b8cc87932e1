// Times and verifies the candidates of one GEMM at one token count on a GPU.
#pragma once

#include <memory>
#include <vector>

#include "runtime/families/gemm/fixed.h"
#include "runtime/families/gemm/operands.h"
#include "runtime/families/gemm/verify.h"
#include "runtime/tuner/kernel_bench.h"

namespace octile::tuner {

class GemmBench final : public KernelBench<GemmProblem, GemmConfig, FixedGemm, GemmSlot, GemmVerifier> {
 public:
  // Creates the bench with new operands drawn by `seed`.
  static Result<std::unique_ptr<GemmBench>> create(TunerContext& shop, const GemmProblem& problem,
                                                   std::int64_t tokens,
                                                   std::vector<Ranked> candidates,
                                                   std::uint64_t seed);

 private:
  using KernelBench::KernelBench;
};

}  // namespace octile::tuner
