#include "tests/support/sum_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace octile::tests {
namespace {

constexpr int kFp32Bits = 23;

// Cuts what lies more than `bits` below 2^exponent, towards zero.
class Cut {
 public:
  Cut(int exponent, int bits)
      : up_(std::ldexp(1.0, bits - exponent)), down_(std::ldexp(1.0, exponent - bits)) {}
  double operator()(double value) const { return std::trunc(value * up_) * down_; }

 private:
  double up_, down_;
};

// The exponent of a code's value, none of which is subnormal in fp32.
int exponent_of(float value) {
  return static_cast<int>(std::bit_cast<std::uint32_t>(value) >> 23 & 255U) - 127;
}

float add_step(float sum, std::span<const float> a, std::span<const float> b, int bits, int scale) {
  // Products are not normalised: their exponents are those of the factors.
  constexpr int kNone = -1000;
  int top = sum == 0.0F ? kNone : std::ilogb(sum);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] * b[i] != 0.0F) top = std::max(top, exponent_of(a[i]) + exponent_of(b[i]) + scale);
  }
  if (top == kNone) return sum;
  const Cut cut(top, bits);
  double total = cut(double{sum});
  for (std::size_t i = 0; i < a.size(); ++i)
    total += cut(std::ldexp(double{a[i]} * double{b[i]}, scale));
  if (total == 0.0) return 0.0F;
  return static_cast<float>(Cut(std::ilogb(total), std::min(bits, kFp32Bits))(total));
}

}  // namespace

float add_products(float sum, std::span<const float> a, std::span<const float> b,
                   const SumModel& model, int exponent) {
  if (model.bits == 0) {
    double total = sum;
    for (std::size_t i = 0; i < a.size(); ++i)
      total += std::ldexp(double{a[i]} * double{b[i]}, exponent);
    return static_cast<float>(total);
  }
  for (std::size_t i = 0; i < a.size(); i += model.k) {
    const std::size_t count = std::min(model.k, a.size() - i);
    sum = add_step(sum, a.subspan(i, count), b.subspan(i, count), model.bits, exponent);
  }
  return sum;
}

}  // namespace octile::tests
