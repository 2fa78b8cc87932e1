// The inner loops of the host GEMM over panels that are decoded to floating point.
#pragma once

#include <cstdint>

namespace octile::reference {

// A panel of A holds kStripRows rows, and a panel of B kStripCols columns of D. Both are k-major:
// [k][kStripRows] and [k][kStripCols]. 6 x 16 partial sums fit the vector registers of AVX2 and
// AVX-512.
inline constexpr std::int64_t kStripRows = 6;
inline constexpr std::int64_t kStripCols = 16;

// Computes partial[6][16] += sum over k of a[k][6] * b[k][16]. Each element is summed in ascending
// k with one fp32 addition for each product. Products of FP8 values are exact in fp32, so a fused
// multiply-add would give the same bits. b and partial are 64-byte aligned.
void multiply_strips(const float* a, const float* b, std::int64_t k, float* partial);

// Does the same in FP64 and adds the sum of |a * b| to `magnitudes`.
void multiply_strips_fp64(const double* a, const double* b, std::int64_t k, double* partial,
                          double* magnitudes);

// Computes acc[r][c] = fma(partial[r][c], scale_a[r] * scale_b[c], acc[r][c]) over a pair of strips
// (6 x 16) and sets partial to zero.
void promote_strips(float* partial, const float* scale_a, const float* scale_b, float* acc);

// The same with acc[r][c] = fma(partial[r][c] * scale_a[r], scale_b[c], acc[r][c]).
void promote_strips_mx(float* partial, const float* scale_a, const float* scale_b, float* acc);

// Computes sums[6][16] += sum over k of a[k][6] * b[k][16] * scale_a[6] * scale_b[16], in ascending
// k. Each product is exact before it is rounded to fp32, in which only subnormal ones are not
// exact, and is added in fp32. Alignment as above.
void multiply_strips_scaled(const float* a, const float* b, std::int64_t k, const float* scale_a,
                            const float* scale_b, float* sums);

}  // namespace octile::reference
