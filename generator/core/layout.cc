#include "generator/core/layout.h"

#include <fmt/format.h>

#include <limits>

namespace octile {
namespace {

// Both cuBLASLt and DeepGEMM load scales as 16 bytes: four fp32.
constexpr std::int64_t kScaleAlign = 4;
constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kMxBlock = 32;
constexpr std::int64_t kPackedBlocks = 4;  // exponents in one int32

// The largest extent that can be rounded up to a block without overflow.
constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int64_t>::max() - kBlock;

constexpr std::int64_t pad4(std::int64_t n) { return round_up(n, kScaleAlign); }

// Scale counts before padding, and the stored shape.
struct Scales {
  std::int64_t rows = 0, cols = 0;
  std::int64_t outer = 0, inner = 0;
};

bool format_fits(Granularity g, ScaleFormat f) {
  const bool mx = g == Granularity::k1x32 || g == Granularity::k32x32;
  switch (f) {
    case ScaleFormat::kF32:
    case ScaleFormat::kF32Pow2:
    case ScaleFormat::kBF16:
      return g != Granularity::kNone && !mx;
    case ScaleFormat::kUe8m0x4:
      return g == Granularity::k1x128;
    case ScaleFormat::kE8M0:
      return mx;
    case ScaleFormat::kNone:
      return false;
  }
  return false;
}

int scale_bytes(ScaleFormat f) {
  return f == ScaleFormat::kE8M0 ? 1 : f == ScaleFormat::kBF16 ? 2 : 4;
}

// The transposed copy is the row-wise layout of the [cols, rows] tensor.
Scales rowwise_scales(const TensorType& t, std::int64_t rows, std::int64_t cols) {
  const std::int64_t col_blocks = ceil_div(cols, kBlock);
  switch (t.granularity) {
    case Granularity::kPerRow:
      return {1, rows, 1, pad4(rows)};
    case Granularity::k1x128: {
      const bool ue8m0x4 = t.scale == ScaleFormat::kUe8m0x4;
      const std::int64_t outer = ue8m0x4 ? ceil_div(col_blocks, kPackedBlocks) : col_blocks;
      return {outer, rows, outer, pad4(rows)};
    }
    case Granularity::k128x128: {
      const std::int64_t row_blocks = ceil_div(rows, kBlock);
      return {row_blocks, col_blocks, row_blocks, pad4(col_blocks)};
    }
    case Granularity::k1x32: {
      const std::int64_t blocks = ceil_div(cols, kMxBlock);
      return {rows, blocks, rows, pad4(blocks)};
    }
    case Granularity::k32x32: {
      const std::int64_t row_blocks = ceil_div(rows, kMxBlock);
      const std::int64_t blocks = ceil_div(cols, kMxBlock);
      return {row_blocks, blocks, row_blocks, pad4(blocks)};
    }
    default:  // kPerTensor; format_fits() refuses the rest
      return {1, 1, 1, 1};
  }
}

Status check_type(const TensorType& t) {
  if (!is_fp8(t.dtype)) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("type {} has no quantised layout; allowed are e4m3 and e5m2", to_text(t)));
  }
  if (!format_fits(t.granularity, t.scale)) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("type {} has no layout: {} scales are not kept as {}; allowed are f32, pow2 "
                    "and bf16 with tensor, row, 1x128 and 128x128, ue8m0x4 with 1x128, e8m0 with "
                    "1x32 and 32x32",
                    to_text(t), name_of(t.granularity), name_of(t.scale)));
  }
  return {};
}

Status check_extent(std::string_view name, std::int64_t value) {
  if (value >= 0 && value <= kMaxExtent) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is {}; allowed is 0 to {}", name, value, kMaxExtent));
}

Status check_size(std::string_view what, const ArrayShape& a) {
  if (byte_size(a.outer, a.ld, a.element_bytes)) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} of {} rows x {} elements of {} bytes are beyond the 2^63-1 bytes a "
                          "tensor may have",
                          what, a.outer, a.ld, a.element_bytes));
}

}  // namespace

std::optional<std::int64_t> byte_size(std::int64_t outer, std::int64_t inner, int element_bytes) {
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(outer, inner, &elements) ||
      __builtin_mul_overflow(elements, std::int64_t{element_bytes}, &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

std::int64_t packed_scale_ld(const TensorType& type, std::int64_t rows, std::int64_t cols,
                             bool transposed) {
  return transposed ? rowwise_scales(type, cols, rows).inner
                    : rowwise_scales(type, rows, cols).inner;
}

std::int64_t packed_scale_rows(const TensorType& type, std::int64_t rows, std::int64_t cols) {
  return rowwise_scales(type, rows, cols).outer;
}

Result<QuantizedLayout> quantized_layout(const TensorType& type, std::int64_t rows,
                                         std::int64_t cols, std::int64_t ld, bool transposed) {
  if (Status s = check_type(type); !s) return tl::unexpected<Error>(s.error());
  if (Status s = check_extent("rows", rows); !s) return tl::unexpected<Error>(s.error());
  if (Status s = check_extent("cols", cols); !s) return tl::unexpected<Error>(s.error());

  const std::int64_t outer = transposed ? cols : rows;
  const std::int64_t inner = transposed ? round_up(rows, kFp8RowAlign) : cols;
  if (ld != 0 && ld < inner) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("ld is {}; allowed is 0 (meaning {}) or at least {}, the {} of a row", ld,
                    default_ld(type.dtype, inner), inner, transposed ? "padded length" : "length"));
  }
  const Scales s = transposed ? rowwise_scales(type, cols, rows) : rowwise_scales(type, rows, cols);

  QuantizedLayout layout;
  layout.data = {outer, inner, ld == 0 ? default_ld(type.dtype, inner) : ld, size_of(type.dtype)};
  layout.scales = {s.outer, s.inner, s.inner, scale_bytes(type.scale)};
  layout.scale_rows = s.rows;
  layout.scale_cols = s.cols;
  if (Status c = check_size("the data", layout.data); !c) return tl::unexpected<Error>(c.error());
  if (Status c = check_size("the scales", layout.scales); !c) {
    return tl::unexpected<Error>(c.error());
  }
  return layout;
}

}  // namespace octile
