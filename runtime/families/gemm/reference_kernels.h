// The inner loops of the host GEMM, over panels decoded to floating point.
#pragma once

#include <cstdint>

namespace octile::reference {

// A panel of A holds kStripRows rows and a panel of B kStripCols columns of the product, k-major:
// [k][kStripRows] and [k][kStripCols]. 6 x 16 partial sums fit the vector registers of AVX2 and
// AVX-512.
inline constexpr std::int64_t kStripRows = 6;
inline constexpr std::int64_t kStripCols = 16;

// partial[6][16] += sum over k of a[k][6] * b[k][16], each element summed in ascending k, one fp32
// addition a product. Products of FP8 values are exact in fp32, so a fused multiply-add would give
// the same bits. b and partial are 64-byte aligned.
void multiply_strips(const float* a, const float* b, std::int64_t k, float* partial);

// The same in FP64, and in `magnitudes` the sum of |a * b|.
void multiply_strips_fp64(const double* a, const double* b, std::int64_t k, double* partial,
                          double* magnitudes);

// acc[r][c] = fma(partial[r][c], scale_a[r] * scale_b[c], acc[r][c]) over a 6 x 16 strip pair;
// partial starts again from zero.
void promote_strips(float* partial, const float* scale_a, const float* scale_b, float* acc);

}  // namespace octile::reference
