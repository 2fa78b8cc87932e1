// The parts of the bench of GEMMs.
#pragma once

#include "runtime/families/gemm/family.h"
#include "runtime/prove/gemm/operands.h"
#include "runtime/prove/gemm/verify.h"
#include "runtime/prove/kernel_bench.h"

namespace octile::tuner {

template <>
struct BenchFamily<GemmProblem> {
  using Slot = GemmSlot;
  using Verifier = GemmVerifier;
  static Result<Verifier> make_verifier(TunerContext& context, const GemmProblem& problem,
                                        const Slot& slot, std::uint64_t seed) {
    return Verifier::create(context.gpu, context.templates, problem, slot, seed);
  }
  static Result<Verdict> spot_check(Verifier& verifier, const GemmConfig& config,
                                    const Verifier::Run& run) {
    return verifier.spot_check(run, config.unit);
  }
  static Result<Verdict> verify(Verifier& verifier, const GemmConfig& config,
                                const Verifier::Run& run) {
    return verifier.check(run, config.unit);
  }
};
using GemmBench = KernelBench<GemmProblem>;

}  // namespace octile::tuner
