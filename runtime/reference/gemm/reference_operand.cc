#include "runtime/reference/gemm/reference_operand.h"

#include <fmt/format.h>

#include "generator/core/layout.h"
#include "runtime/reference/cast.h"

namespace octile::reference {

Status check_operand_type(const char* name, const TensorType& type) {
  if (!is_fp8(type.dtype)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} is {}; e4m3 and e5m2 are allowed", name, to_text(type)));
  }
  if (type.scale == ScaleFormat::kBF16) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} is {}; the host's products read scales in f32, pow2, ue8m0x4 and "
                            "e8m0",
                            name, to_text(type)));
  }
  const auto layout = quantized_layout(type, 0, 0);
  return layout ? Status{} : tl::unexpected<Error>(layout.error());
}

GemmOperand::GemmOperand(const TensorType& type, const void* codes, std::int64_t ld,
                         const void* scales, std::int64_t scale_ld)
    : codes_(static_cast<const std::uint8_t*>(codes)),
      ld_(ld),
      scales_(scales),
      exponents_(type.scale == ScaleFormat::kUe8m0x4 || type.scale == ScaleFormat::kE8M0),
      has_nan_(type.scale == ScaleFormat::kE8M0),
      index_(scale_index(type, scale_ld)) {
  for (std::size_t code = 0; code < value_of_.size(); ++code) {
    value_of_[code] = from_fp8(static_cast<std::uint8_t>(code), type.dtype);
  }
}

}  // namespace octile::reference
