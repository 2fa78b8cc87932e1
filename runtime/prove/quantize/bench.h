// The parts of the bench of quantisers.
#pragma once

#include "runtime/families/quantize/family.h"
#include "runtime/prove/kernel_bench.h"
#include "runtime/prove/quantize/operands.h"
#include "runtime/prove/quantize/verify.h"

namespace octile::tuner {

template <>
struct BenchFamily<QuantizeProblem> {
  using Slot = QuantizeSlot;
  using Verifier = QuantizeVerifier;
  static Result<Verifier> make_verifier(TunerContext& context, const QuantizeProblem& problem,
                                        const Slot& slot, std::uint64_t seed) {
    return Verifier::create(context.gpu, context.templates, problem, slot, seed);
  }
  static Result<Verdict> spot_check(Verifier& verifier, const QuantizeConfig&,
                                    const Verifier::Run& run) {
    return verifier.spot_check(run);
  }
  static Result<Verdict> verify(Verifier& verifier, const QuantizeConfig&,
                                const Verifier::Run& run) {
    return verifier.check(run);
  }
};

}  // namespace octile::tuner
