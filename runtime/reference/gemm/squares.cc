#include "runtime/reference/gemm/squares.h"

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace octile {
namespace {

constexpr std::size_t kSums = 9;           // words that count units of 2^(32 * i - 149)
constexpr std::size_t kNotFinite = 9;      // the word that counts the others
constexpr int kLeastExponent = -149;       // of a subnormal fp32
constexpr std::size_t kLimbs = kSums + 2;  // of 32 bits, with room for the last word's upper half

// The copies' sums of a word's lower and upper 32 bits.
struct Halves {
  std::uint64_t lower = 0, upper = 0;
};
Halves sum_of_copies(const octile_squares& squares, std::size_t word) {
  Halves sum;
  for (const auto& copy : squares.words) {
    sum.lower += copy[word] & 0xFFFFFFFFU;
    sum.upper += copy[word] >> 32;
  }
  return sum;
}

void add(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).fetch_add(value, std::memory_order_relaxed);
}

}  // namespace

// The device does the same (templates/gemm/output/watch.cuh).
void add_squares(octile_squares& squares, float sum) {
  if (!std::isfinite(sum)) return add(squares.words[0][kNotFinite], 1);
  const auto bits = std::bit_cast<std::uint32_t>(sum);
  const std::uint32_t exponent = bits >> 23;
  const std::uint32_t units = exponent == 0 ? bits : (bits & 0x7FFFFFU) | 0x800000U;
  const std::uint32_t shift = exponent == 0 ? 0 : exponent - 1;
  const std::uint64_t shifted = std::uint64_t{units} << shift % 32;
  add(squares.words[0][shift / 32], shifted & 0xFFFFFFFFU);
  add(squares.words[0][shift / 32 + 1], shifted >> 32);
}

double sum_of_squares(const octile_squares& squares) {
  const Halves not_finite = sum_of_copies(squares, kNotFinite);
  if (not_finite.lower + not_finite.upper != 0) return std::numeric_limits<double>::infinity();
  std::array<std::uint32_t, kLimbs> limbs{};
  std::uint64_t carry = 0;
  for (std::size_t i = 0; i < kSums; ++i) {
    const Halves word = sum_of_copies(squares, i);
    const std::uint64_t sum = carry + word.lower;
    limbs[i] = static_cast<std::uint32_t>(sum);
    carry = (sum >> 32) + word.upper;
  }
  limbs[kSums] = static_cast<std::uint32_t>(carry);
  limbs[kSums + 1] = static_cast<std::uint32_t>(carry >> 32);
  std::size_t top = kLimbs;
  while (top > 0 && limbs[top - 1] == 0) --top;
  if (top == 0) return 0;
  // The upper 64 bits, of which the lowest stands for all below too. double has 53.
  std::uint64_t upper = limbs[top - 1];
  int exponent = kLeastExponent + 32 * static_cast<int>(top - 1);
  std::size_t next = top - 1;
  while (next > 0 && std::countl_zero(upper) >= 32) {
    upper = upper << 32 | limbs[--next];
    exponent -= 32;
  }
  const int space = std::countl_zero(upper);
  bool sticky = false;
  if (next > 0 && space > 0) {
    const std::uint64_t more = std::uint64_t{limbs[--next]} << 32;
    upper = upper << space | more >> (64 - space);
    sticky = more << space != 0;
    exponent -= space;
  }
  for (; next > 0; --next) sticky = sticky || limbs[next - 1] != 0;
  return std::ldexp(static_cast<double>(upper | (sticky ? 1U : 0U)), exponent);
}

}  // namespace octile
