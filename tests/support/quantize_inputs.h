// Inputs that reach every branch of quantising: ordinary values, each class of special value alone,
// all classes mixed, and raw bit patterns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "generator/core/types.h"
#include "tests/support/coverage.h"

namespace octile::tests {

enum class Fill {
  kNormal,         // N(0, 1)
  kZeros,          // +0
  kNegativeZeros,  // -0
  kSubnormal,      // around 2^-128: subnormal in bf16 and fp32, zero in fp16
  kHuge,           // around fp32's maximum: infinite in fp16
  kOutlier,        // N(0, 1), one element at 60000
  kOneNaN,         // N(0, 1), one NaN
  kInfinities,     // N(0, 1), one element in 64 infinite
  kMixed,          // a quarter special values of every class
  kBits,           // uniform bit patterns
};
inline constexpr std::array<std::pair<Fill, std::string_view>, 10> kFills{{
    {Fill::kNormal, "normal"},
    {Fill::kZeros, "zeros"},
    {Fill::kNegativeZeros, "negative zeros"},
    {Fill::kSubnormal, "subnormal"},
    {Fill::kHuge, "huge"},
    {Fill::kOutlier, "outlier"},
    {Fill::kOneNaN, "one NaN"},
    {Fill::kInfinities, "infinities"},
    {Fill::kMixed, "mixed"},
    {Fill::kBits, "bits"},
}};

// Every fill if all cases run, else those that reach the most branches.
inline std::vector<Fill> fills_to_run() {
  if (!runs_all_cases()) return {Fill::kInfinities, Fill::kMixed, Fill::kBits};
  std::vector<Fill> fills;
  for (const auto& [fill, name] : kFills) fills.push_back(fill);
  return fills;
}

inline std::string_view name_of(Fill fill) { return kFills[static_cast<std::size_t>(fill)].second; }

float draw(Fill fill, std::mt19937& random);

// Writes the value at p as an element of the type.
void put(char* p, DType type, float value);

// Returns `bytes` of decode scales of `type`, around 1. Some fills make them tiny, huge, special or
// random bits.
std::vector<char> make_scales(const TensorType& type, std::int64_t bytes, Fill fill, unsigned seed);

// Returns `elements` elements of `type` with default strides; equal arguments give equal elements.
// At most a prime number of elements is drawn and then repeated: rows differ, and large inputs cost
// only a copy. The inputs drawn last are kept, because many cells quantise the same tensor.
std::vector<char> make_input(DType type, std::int64_t elements, Fill fill, unsigned seed);

}  // namespace octile::tests
