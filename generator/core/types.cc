#include "generator/core/types.h"

#include <array>
#include <utility>

namespace octile {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 5> kDTypes{{
    {DType::kE4M3, "e4m3"},
    {DType::kE5M2, "e5m2"},
    {DType::kBF16, "bf16"},
    {DType::kFP16, "fp16"},
    {DType::kFP32, "fp32"},
}};

constexpr std::array<std::pair<Granularity, std::string_view>, 7> kGranularities{{
    {Granularity::kNone, "none"},
    {Granularity::kPerTensor, "tensor"},
    {Granularity::kPerRow, "row"},
    {Granularity::k1x128, "1x128"},
    {Granularity::k128x128, "128x128"},
    {Granularity::k1x32, "1x32"},
    {Granularity::k32x32, "32x32"},
}};

constexpr std::array<std::pair<ScaleFormat, std::string_view>, 6> kScaleFormats{{
    {ScaleFormat::kNone, "none"},
    {ScaleFormat::kF32, "f32"},
    {ScaleFormat::kF32Pow2, "pow2"},
    {ScaleFormat::kUe8m0x4, "ue8m0x4"},
    {ScaleFormat::kE8M0, "e8m0"},
    {ScaleFormat::kBF16, "bf16"},
}};

template <typename Table, typename Value>
std::string_view spelling(const Table& table, Value value) {
  for (const auto& [v, name] : table) {
    if (v == value) return name;
  }
  return "unknown";
}

template <typename Value, typename Table>
std::optional<Value> meaning(const Table& table, std::string_view text) {
  for (const auto& [v, name] : table) {
    if (name == text) return v;
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(DType t) { return spelling(kDTypes, t); }
std::string_view name_of(Granularity g) { return spelling(kGranularities, g); }
std::string_view name_of(ScaleFormat f) { return spelling(kScaleFormats, f); }
std::optional<DType> parse_dtype(std::string_view s) { return meaning<DType>(kDTypes, s); }
std::optional<Granularity> parse_granularity(std::string_view s) {
  return meaning<Granularity>(kGranularities, s);
}
std::optional<ScaleFormat> parse_scale_format(std::string_view s) {
  return meaning<ScaleFormat>(kScaleFormats, s);
}

float max_finite(DType t) {
  switch (t) {
    case DType::kE4M3:
      return 448.0F;
    case DType::kE5M2:
      return 57344.0F;
    case DType::kBF16:
      return 0x1.FEp127F;
    case DType::kFP16:
      return 65504.0F;
    case DType::kFP32:
      return 0x1.FFFFFEp127F;
  }
  return 0.0F;
}

ScaleFormat default_scale_format(Granularity g) {
  switch (g) {
    case Granularity::kNone:
      return ScaleFormat::kNone;
    case Granularity::k1x32:
    case Granularity::k32x32:
      return ScaleFormat::kE8M0;
    default:
      return ScaleFormat::kF32;
  }
}

std::string to_text(const TensorType& t) {
  std::string text(name_of(t.dtype));
  if (t.granularity == Granularity::kNone) return text;
  text.append(":").append(name_of(t.granularity));
  if (t.scale != default_scale_format(t.granularity)) text.append(":").append(name_of(t.scale));
  return text;
}

}  // namespace octile
