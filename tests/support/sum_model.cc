#include "tests/support/sum_model.h"

#include <algorithm>
#include <cmath>

namespace octile::tests {
namespace {

constexpr int kFp32Bits = 23;

// Cuts what lies more than `bits` below 2^exponent, towards zero.
double cut(double value, int exponent, int bits) {
  return std::ldexp(std::trunc(std::ldexp(value, bits - exponent)), exponent - bits);
}

float add_step(float sum, std::span<const float> a, std::span<const float> b, int bits) {
  // Products are not normalised: their exponents are those of the factors.
  int top = sum == 0.0F ? -1000 : std::ilogb(sum);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] * b[i] != 0.0F) top = std::max(top, std::ilogb(a[i]) + std::ilogb(b[i]));
  }
  double total = cut(double{sum}, top, bits);
  for (std::size_t i = 0; i < a.size(); ++i) total += cut(double{a[i]} * double{b[i]}, top, bits);
  if (total == 0.0) return 0.0F;
  return static_cast<float>(cut(total, std::ilogb(total), std::min(bits, kFp32Bits)));
}

}  // namespace

float add_products(float sum, std::span<const float> a, std::span<const float> b,
                   const SumModel& model) {
  if (model.bits == 0) {
    double total = sum;
    for (std::size_t i = 0; i < a.size(); ++i) total += double{a[i]} * double{b[i]};
    return static_cast<float>(total);
  }
  for (std::size_t i = 0; i < a.size(); i += model.k) {
    const std::size_t count = std::min(model.k, a.size() - i);
    sum = add_step(sum, a.subspan(i, count), b.subspan(i, count), model.bits);
  }
  return sum;
}

}  // namespace octile::tests
