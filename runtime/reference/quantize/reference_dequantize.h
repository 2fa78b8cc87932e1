// The inverses of quantising on the host, bit for bit as docs/numerics.md defines them:
// dequantising, and transposing codes and scales. quantize() runs them for problems of those
// operations.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/quantize/problem.h"
#include "runtime/reference/quantize/reference.h"

namespace octile::reference {

// Writes q = x * scale, rounded to fp32 and then to the problem's type. Every NaN becomes the one
// whose bits below the sign are all set. The arguments must be valid.
Status dequantize(const QuantizeProblem&, const QuantizeCall&, int threads = 0);

// Writes codes and scales of x in the layout of the transposed copy, including padding. The
// arguments must be valid.
Status transpose(const QuantizeProblem&, const QuantizeCall&, int threads = 0);

// Writes out[rows][cols] fp32 = q * scale from the packed row-wise layout of `type`. There are rows
// and columns. Errors: as quantize().
Status dequantize(const TensorType& type, std::int64_t rows, std::int64_t cols, const void* q,
                  const void* scale, float* out, int threads = 0);

}  // namespace octile::reference
