// The sum of the squares of D, as a GEMM with a squares sentry keeps it.
#pragma once

#include "octile/octile.h"

namespace octile {

// Adds a sum of squares, exactly. NaN and infinity are counted. Several threads may add at once.
void add_squares(octile_squares& squares, float sum);

// Returns what was added, rounded to nearest even, or infinity if one sum was not finite.
double sum_of_squares(const octile_squares& squares);

}  // namespace octile
