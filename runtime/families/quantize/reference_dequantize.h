// The inverses of quantising on the host, bit for bit as the contract: codes times scales, and
// codes and scales transposed. quantize() runs them for problems of those operations.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/problem.h"
#include "runtime/families/quantize/reference.h"

namespace octile::reference {

// q = x * scale, rounded to fp32 and then to the problem's type; every NaN becomes the one whose
// bits below the sign are all set. The arguments are valid.
Status dequantize(const QuantizeProblem&, const QuantizeArgs&, int threads = 0);

// Codes and scales of x in the layout of the transposed copy, padding included. The arguments are
// valid.
Status transpose(const QuantizeProblem&, const QuantizeArgs&, int threads = 0);

// out[rows][cols] fp32 = q * scale, from the row-wise layout of `type`.
Status dequantize(const TensorType& type, std::int64_t rows, std::int64_t cols, const void* q,
                  std::int64_t ldq, const void* scale, std::int64_t scale_ld, float* out,
                  int threads = 0);

}  // namespace octile::reference
