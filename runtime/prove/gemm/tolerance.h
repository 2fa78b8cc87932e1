// The tolerance of docs/numerics.md: how far a GEMM's result may be from FP64.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "generator/core/sum_bits.h"
#include "generator/core/types.h"
#include "runtime/reference/gemm/reference.h"

namespace octile::reference {

// Returns the explicit bits of a type's significand.
int mantissa_bits(DType dtype);

// Returns the distance between neighbours of `dtype` in the binade of x, also for subnormals.
double ulp_of(DType dtype, double x);

// Returns the c of the tolerance in docs/numerics.md for a promotion interval. It is fixed above
// what the GPU suite measured over all its cases (worst_c in tests/gpu/REPORT.json). k is the
// length of the sum, which is the interval if promote is kPromoteNone. A matrix unit that keeps
// more bits of a sum is allowed less, and one that cuts it more often more
// (generator/core/sum_bits.h).
double tolerance_c(int promote, std::int64_t k = 0, SumPrecision sums = {});

// Result of checking a GEMM against the tolerance in docs/numerics.md: |D - R| <= ulp(R) / 2 + c *
// 2^-13 * S. If R is not finite, D must be the same infinity or a NaN.
struct ToleranceReport {
  bool ok = true;
  // max |D - R| / S over the elements with S > 0, and the smallest c that would pass, which is
  // infinite if D is not finite where R is.
  double worst_error_over_s = 0;
  double worst_c = 0;
  // The element that exceeds its bound most, or comes nearest to it.
  std::int64_t row = -1, col = -1;
  double d = 0, r = 0, s = 0, allowed = 0;
  std::string to_text() const;
};

// The scales of a window of FP8 D.
struct ScalesOfD {
  const float* first = nullptr;  // of the block and row in which the window begins
  std::int64_t ld = 0;
  std::int64_t column = 0;  // of the window's first element within its block
  double of(std::int64_t row, std::int64_t col) const {
    return static_cast<double>(first[(column + col) / 128 * ld + row]);
  }
};

// Checks a window of D. If D is FP8, `scales` has its scales, ulp(R) is the distance of codes times
// the scale, and |R| * 2^-22 more is allowed for the roundings of the scale. d, [..][ldd] of
// `dtype`, points at the whole D; r and s are the window's values from gemm_fp64.
ToleranceReport check_tolerance(const void* d, DType dtype, std::int64_t ldd,
                                const Fp64Window& window, std::span<const double> r,
                                std::span<const double> s, double c, const ScalesOfD& scales = {});

}  // namespace octile::reference
