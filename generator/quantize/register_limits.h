// How many registers a thread of a cta_tile kernel needs, as far as ptxas 13.0 showed. The tests
// compile the defaults that follow from this without spills.
#pragma once

#include "generator/quantize/problem.h"

namespace octile {

// Returns whether 64 registers hold a thread's patch of fp32 values and all that it needs beside:
// two blocks of 512 threads then fit an SM. The patch takes 32, and there is room for one thing
// more.
bool fits_64_registers(const QuantizeProblem&);

// Returns the same for a thread block that casts both halves (halves_together), whose tile origin
// waits in shared memory.
bool fits_64_registers_by_halves(const QuantizeProblem&);

}  // namespace octile
