// Element types, scale granularities and scale formats of tensors, with the one spelling of each
// (docs/numerics.md has their layouts). Everything that prints or parses a type uses these.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace octile {

// Values are those of octile_dtype in the public header. Append only.
enum class DType : int { kE4M3 = 1, kE5M2 = 2, kBF16 = 3, kFP16 = 4, kFP32 = 5 };

// How many elements share one scale, rows x columns of the row-major tensor.
enum class Granularity : int {
  kNone = 0,       // not scaled (bf16, fp16, fp32)
  kPerTensor = 1,  // "tensor"
  kPerRow = 2,     // "row"
  k1x128 = 3,      // "1x128": one row, 128 columns
  k128x128 = 4,    // "128x128"
  k1x32 = 5,       // "1x32" (MX)
  k32x32 = 6,      // "32x32" (MX weights, one copy for both directions)
};

// How a decode scale is stored.
enum class ScaleFormat : int {
  kNone = 0,
  kF32 = 1,      // "f32"
  kF32Pow2 = 2,  // "pow2": fp32 restricted to powers of two
  kUe8m0x4 = 3,  // "ue8m0x4": four consecutive k-blocks' exponents in an int32
  kE8M0 = 4,     // "e8m0"
  kBF16 = 5,     // "bf16": for communication
};

std::string_view name_of(DType);
std::string_view name_of(Granularity);
std::string_view name_of(ScaleFormat);
std::optional<DType> parse_dtype(std::string_view);
std::optional<Granularity> parse_granularity(std::string_view);
std::optional<ScaleFormat> parse_scale_format(std::string_view);

// The promotion interval of a GEMM that sums all of K on the tensor core.
inline constexpr int kPromoteNone = -1;

constexpr bool is_fp8(DType t) { return t == DType::kE4M3 || t == DType::kE5M2; }
constexpr int size_of(DType t) {  // bytes
  return is_fp8(t) ? 1 : t == DType::kFP32 ? 4 : 2;
}
// Returns the largest finite value: 448 for E4M3, 57344 for E5M2.
float max_finite(DType);

// An operand's type: element type and, for FP8, how it is scaled. Text: "bf16", "e4m3:1x128",
// "e4m3:1x128:pow2". The scale format is printed only if it is not the granularity's default (e8m0
// for the MX granularities, else f32).
struct TensorType {
  DType dtype = DType::kBF16;
  Granularity granularity = Granularity::kNone;
  ScaleFormat scale = ScaleFormat::kNone;
  friend bool operator==(const TensorType&, const TensorType&) = default;
};
ScaleFormat default_scale_format(Granularity);
std::string to_text(const TensorType&);

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

}  // namespace octile
