// Times and verifies the candidates of one quantiser at one row count on a GPU.
#pragma once

#include <memory>
#include <vector>

#include "runtime/families/quantize/fixed.h"
#include "runtime/families/quantize/operands.h"
#include "runtime/tuner/kernel_bench.h"
#include "runtime/families/quantize/verify.h"

namespace octile::tuner {

class QuantizeBench final : public KernelBench<QuantizeProblem, QuantizeConfig, FixedQuantize,
                                               QuantizeSlot, QuantizeVerifier> {
 public:
  // Creates the bench with new operands drawn by `seed`. Errors: those of make_quantize_slots.
  static Result<std::unique_ptr<QuantizeBench>> create(TunerContext& shop,
                                                       const QuantizeProblem& problem,
                                                       std::int64_t rows,
                                                       std::vector<Ranked> candidates,
                                                       std::uint64_t seed);

 private:
  using KernelBench::KernelBench;
};

}  // namespace octile::tuner
