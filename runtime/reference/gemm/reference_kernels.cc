#include "runtime/reference/gemm/reference_kernels.h"

#include <cmath>

#include "runtime/reference/multiversion.h"

namespace octile::reference {
namespace {

// GCC and Clang vector types. Lanes are columns of D, so the summation order of an element does not
// depend on the width of the machine's registers.
using Vector = float __attribute__((vector_size(64)));
using VectorFp64 = double __attribute__((vector_size(64)));
static_assert(sizeof(Vector) == kStripCols * sizeof(float));
constexpr int kRows = static_cast<int>(kStripRows);

}  // namespace

OCTILE_MULTIVERSION
void multiply_strips(const float* a, const float* b, std::int64_t k, float* partial) {
  auto* sums = reinterpret_cast<Vector*>(partial);
  const auto* columns = reinterpret_cast<const Vector*>(b);
  Vector sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = sums[r];
  for (std::int64_t i = 0; i < k; ++i) {
    for (int r = 0; r < kRows; ++r) sum[r] += a[i * kRows + r] * columns[i];
  }
  for (int r = 0; r < kRows; ++r) sums[r] = sum[r];
}

OCTILE_MULTIVERSION
void multiply_strips_scaled(const float* a, const float* b, std::int64_t k, const float* scale_a,
                            const float* scale_b, float* sums) {
  for (int r = 0; r < kRows; ++r) {
    float* const sum = sums + r * kStripCols;
    double scale[kStripCols];
    for (int c = 0; c < kStripCols; ++c) {
      scale[c] = static_cast<double>(scale_a[r]) * static_cast<double>(scale_b[c]);
    }
    for (std::int64_t i = 0; i < k; ++i) {
      for (int c = 0; c < kStripCols; ++c) {
        const double product = static_cast<double>(a[i * kRows + r] * b[i * kStripCols + c]);
        sum[c] += static_cast<float>(product * scale[c]);
      }
    }
  }
}

// Takes half a strip at a time: 6 x 8 sums and 6 x 8 magnitudes fill the registers.
OCTILE_MULTIVERSION
void multiply_strips_fp64(const double* a, const double* b, std::int64_t k, double* partial,
                          double* magnitudes) {
  const auto* columns = reinterpret_cast<const VectorFp64*>(b);
  auto* sums = reinterpret_cast<VectorFp64*>(partial);
  auto* bounds = reinterpret_cast<VectorFp64*>(magnitudes);
  constexpr int kHalves = 2;
  for (int half = 0; half < kHalves; ++half) {
    VectorFp64 sum[kRows];
    VectorFp64 bound[kRows];
    for (int r = 0; r < kRows; ++r) {
      sum[r] = sums[r * kHalves + half];
      bound[r] = bounds[r * kHalves + half];
    }
    for (std::int64_t i = 0; i < k; ++i) {
      for (int r = 0; r < kRows; ++r) {
        const VectorFp64 product = a[i * kRows + r] * columns[i * kHalves + half];
        sum[r] += product;
        bound[r] += product < 0.0 ? -product : product;
      }
    }
    for (int r = 0; r < kRows; ++r) {
      sums[r * kHalves + half] = sum[r];
      bounds[r * kHalves + half] = bound[r];
    }
  }
}

OCTILE_MULTIVERSION
void promote_strips(float* partial, const float* scale_a, const float* scale_b, float* acc) {
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kStripCols; ++c) {
      const std::int64_t i = r * kStripCols + c;
      acc[i] = std::fma(partial[i], scale_a[r] * scale_b[c], acc[i]);
      partial[i] = 0.0F;
    }
  }
}

OCTILE_MULTIVERSION
void promote_strips_mx(float* partial, const float* scale_a, const float* scale_b, float* acc) {
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kStripCols; ++c) {
      const std::int64_t i = r * kStripCols + c;
      acc[i] = std::fma(partial[i] * scale_a[r], scale_b[c], acc[i]);
      partial[i] = 0.0F;
    }
  }
}

}  // namespace octile::reference
