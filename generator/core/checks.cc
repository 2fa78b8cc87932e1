#include "generator/core/checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "generator/core/layout.h"
#include "generator/core/text_fields.h"
#include "generator/core/token_axis.h"

namespace octile {

Status refuse_field(std::string_view field, std::string_view value, std::string_view allowed) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is {}; allowed {}", field, value, allowed));
}

Status check_count(std::string_view name, std::int64_t value, bool dynamic_allowed) {
  if ((value >= 0 && value <= kMostCount) || (dynamic_allowed && value == kDynamic)) return {};
  return refuse_field(name, count_text(value),
                      dynamic_allowed ? fmt::format("is {}, or '?'", kCountRule)
                                      : fmt::format("is {}", kCountRule));
}

Status check_type(std::string_view name, const TensorType& t) {
  const bool has_granularity = t.granularity != Granularity::kNone;
  const bool has_format = t.scale != ScaleFormat::kNone;
  if (is_fp8(t.dtype) && (!has_granularity || !has_format)) {
    return refuse_field(name, to_text(t),
                        fmt::format("is a granularity after it: {}:G with G one of {}",
                                    name_of(t.dtype), granularity_names()));
  }
  if (!is_fp8(t.dtype) && (has_granularity || has_format)) {
    return refuse_field(
        name, to_text(t),
        fmt::format("is {} alone: only e4m3 and e5m2 carry scales", name_of(t.dtype)));
  }
  return {};
}

Status check_multiple(std::string_view field, std::int64_t value, std::int64_t multiple,
                      std::string_view why) {
  if (value == kDynamic || value % multiple == 0) return {};
  return fail(ErrorCode::kInvalidArgument, fmt::format("{} is {}; allowed are multiples of {}: {}",
                                                       field, value, multiple, why));
}

Status check_quantized_size(std::string_view tensor, const TensorType& type, std::int64_t rows,
                            std::int64_t cols, bool transposed) {
  const std::int64_t known_rows = std::max<std::int64_t>(rows, 0);
  const std::int64_t known_cols = std::max<std::int64_t>(cols, 0);
  const auto layout = quantized_layout(type, known_rows, known_cols, 0, transposed);
  if (layout) return {};
  return fail(layout.error().code, fmt::format("{}: {}", tensor, layout.error().message));
}

Status check_plain_size(std::string_view tensor, DType dtype, std::int64_t rows,
                        std::int64_t cols) {
  if (rows == kDynamic || cols == kDynamic || byte_size(rows, cols, size_of(dtype))) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is {} x {} of {} bytes; allowed are at most 2^63-1 bytes in all",
                          tensor, rows, cols, size_of(dtype)));
}

}  // namespace octile
