// How tensor cores add products of FP8, by the models that MMA-Sim (arXiv 2511.10909) found on the
// cards. Tests of tolerances and emulated kernels use them.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace octile::tests {

// A step adds this number of products to the sum: all summands are cut behind this number of bits
// from the exponent of the largest, added, and the sum is cut to the unit's bits.
struct SumModel {
  std::string_view name;
  int bits = 0;  // behind the binary point; 0: exact, and rounded to fp32 once
  std::size_t k = 32;
};

inline constexpr SumModel kExactSums{"exact", 0, 32};
inline constexpr SumModel kWgmmaSums{"wgmma of Hopper", 13, 32};
inline constexpr SumModel kAdaSums{"mma.sync of Ada", 13, 16};
inline constexpr SumModel kBlackwellSums{"mma.sync of Blackwell", 25, 32};
// ptxas makes FP8 mma.sync of two HMMA.16816 on cards without one for FP8.
inline constexpr SumModel kHalfSums{"mma.sync of FP16", 25, 16};

// Returns sum + (a[0] * b[0] + a[1] * b[1] + ...) * 2^exponent, in steps of model.k. The exponent
// is that of an instruction's scales, which shift the exponents of its products.
float add_products(float sum, std::span<const float> a, std::span<const float> b,
                   const SumModel& model, int exponent = 0);

}  // namespace octile::tests
