// The values of all FP8 codes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "generator/core/types.h"
#include "runtime/reference/cast.h"

namespace octile::tests {

using Fp8Values = std::array<float, 256>;

inline const Fp8Values& fp8_values(DType fp8) {
  static const auto decoded = [](DType type) {
    Fp8Values values{};
    for (std::size_t code = 0; code < values.size(); ++code) {
      values[code] = reference::from_fp8(static_cast<std::uint8_t>(code), type);
    }
    return values;
  };
  static const Fp8Values e4m3 = decoded(DType::kE4M3), e5m2 = decoded(DType::kE5M2);
  return fp8 == DType::kE5M2 ? e5m2 : e4m3;
}

}  // namespace octile::tests
