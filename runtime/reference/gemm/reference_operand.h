// An FP8 operand of the host GEMM. It is indexed and decoded into the panels of the inner loops.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "generator/core/error.h"
#include "generator/core/types.h"
#include "runtime/reference/scale_index.h"

namespace octile::reference {

// Refuses types that the host GEMM cannot read. `name` ("a" or "b") appears in the error's
// sentence. Errors: kUnsupported.
Status check_operand_type(const char* name, const TensorType& type);

class GemmOperand {
 public:
  // An operand of a type that the host GEMM can read, K-major. Rows lie `ld` elements apart and
  // scales scale_ld.
  GemmOperand(const TensorType& type, const void* codes, std::int64_t ld, const void* scales,
              std::int64_t scale_ld);

  // Decodes rows [row0, row0 + rows) at [k0, k0 + count) into panel[strip][count][kStrip]. Rows
  // beyond the last one are zero.
  template <std::int64_t kStrip, typename T>
  void decode(std::int64_t row0, std::int64_t rows, std::int64_t k0, std::int64_t count,
              T* panel) const {
    for (std::int64_t first = 0; first < rows; first += kStrip, panel += count * kStrip) {
      const std::int64_t filled = std::min(kStrip, rows - first);
      if (filled < kStrip) std::fill_n(panel, count * kStrip, T{0});
      for (std::int64_t r = 0; r < filled; ++r) {
        const std::uint8_t* row = codes_ + (row0 + first + r) * ld_ + k0;
        for (std::int64_t i = 0; i < count; ++i) {
          panel[i * kStrip + r] = static_cast<T>(value_of_[row[i]]);
        }
      }
    }
  }

  // Sets out[i] to the decode scale of element (row0 + i, k0).
  template <typename T>
  void load_scales(std::int64_t row0, std::int64_t rows, std::int64_t k0, T* out) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      out[i] = static_cast<T>(scale_at(index_(row0 + i, k0)));
    }
  }

 private:
  float scale_at(std::int64_t index) const {
    if (!exponents_) return static_cast<const float*>(scales_)[index];
    const std::uint8_t exponent = static_cast<const std::uint8_t*>(scales_)[index];
    if (has_nan_ && exponent == 255) return std::numeric_limits<float>::quiet_NaN();
    return std::ldexp(1.0F, exponent - 127);
  }

  const std::uint8_t* codes_;
  std::int64_t ld_;
  const void* scales_;  // fp32, or bytes with the exponents of powers of two
  bool exponents_;
  bool has_nan_;  // E8M0: the exponent 255 is NaN
  ScaleIndex index_;
  std::array<float, 256> value_of_{};
};

}  // namespace octile::reference
