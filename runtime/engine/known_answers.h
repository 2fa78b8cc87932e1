// Known-answer tests of quantisers: their results on a device are compared with the host
// executor's.
#pragma once

#include "runtime/engine/proof_run.h"

namespace octile {

// Runs the tests until one is not passed, and returns its answer, which names the problem and the
// first byte that differs. Quantises small integers, every bf16 value from half of the smallest
// E4M3 number to the largest one, infinities, NaN and -0, with scales of 1x128 blocks and of a
// tensor.
Answer test_known_answers(ProofRun& run, const Target& target);

}  // namespace octile
