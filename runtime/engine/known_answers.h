// Known-answer tests of quantisers: their results on a device are compared with the host
// executor's.
#pragma once

#include <vector>

#include "runtime/engine/proof_run.h"
#include "runtime/engine/test_kernels.h"

namespace octile {

// Runs the tests until one is not passed, and returns its answer, which names the problem and the
// first byte that differs. Quantises small integers, every bf16 value from half of the smallest
// E4M3 number to the largest one, infinities, NaN and -0, with scales of 1x128, 128x128 and MX
// blocks, of rows and of a tensor; transposes and dequantises codes.
Answer test_known_answers(ProofRun& run, const Target& target);

// Returns the kernels that these tests run.
std::vector<TestKernel> kernels_of_known_answers(const DeviceSpec& device);

}  // namespace octile
