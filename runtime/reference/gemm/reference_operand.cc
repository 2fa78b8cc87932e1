#include "runtime/reference/gemm/reference_operand.h"

#include <fmt/format.h>

#include "generator/core/layout.h"
#include "runtime/reference/cast.h"

namespace octile::reference {

Result<GemmOperand> GemmOperand::open(const char* name, const TensorType& type, std::int64_t rows,
                                      std::int64_t k, const void* codes, std::int64_t ld,
                                      const void* scales, std::int64_t scale_ld) {
  if (!is_fp8(type.dtype)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} is {}; e4m3 and e5m2 are allowed", name, to_text(type)));
  }
  if (ld < 0 || (ld != 0 && ld < k)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("ld{} is {}; 0 or at least k = {} is allowed", name, ld, k));
  }
  if (type.scale == ScaleFormat::kBF16) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} is {}; the host's products read scales in f32, pow2, ue8m0x4 and "
                            "e8m0",
                            name, to_text(type)));
  }
  const auto index = scale_index(type, rows, k, scale_ld);
  if (!index) return tl::unexpected(index.error());
  if (rows > 0 && k > 0 && (codes == nullptr || scales == nullptr)) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}{} is null; the product reads it", name,
                                                         codes == nullptr ? "" : "_scale"));
  }
  GemmOperand operand;
  operand.codes_ = static_cast<const std::uint8_t*>(codes);
  operand.ld_ = ld == 0 ? default_ld(type.dtype, k) : ld;
  operand.scales_ = scales;
  operand.exponents_ = type.scale == ScaleFormat::kUe8m0x4 || type.scale == ScaleFormat::kE8M0;
  operand.has_nan_ = type.scale == ScaleFormat::kE8M0;
  operand.index_ = *index;
  for (std::size_t code = 0; code < operand.value_of_.size(); ++code) {
    operand.value_of_[code] = from_fp8(static_cast<std::uint8_t>(code), type.dtype);
  }
  return operand;
}

}  // namespace octile::reference
