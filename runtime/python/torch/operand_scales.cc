#include "operand_scales.h"

#include <string>

#include "types.h"

namespace octile::binding {
namespace {

constexpr std::int64_t kScaleBlock = 128, kScaleUnit = 4;

// How fp32 scales of codes [rows, k] lie if they are read in place: in rows, `ld` elements apart.
struct ScaleRows {
  std::int64_t rows = 1, cols = 0;
  std::int64_t least = 0;  // ld, or more
  std::int64_t unit = 1;   // of ld
  std::int64_t bytes = 0;  // at a multiple of which the memory begins
};

bool has_rows(const octile_tensor_type& type) {
  return type.granularity == OCTILE_SCALE_1X128 || type.granularity == OCTILE_SCALE_128X128 ||
         type.granularity == OCTILE_SCALE_PER_ROW;
}

ScaleRows rows_of(const octile_tensor_type& type, std::int64_t rows, std::int64_t k) {
  const octile_quantized_layout layout = layout_of(type, rows, k, false);
  const std::int64_t blocks = (k + kScaleBlock - 1) / kScaleBlock;
  switch (type.granularity) {
    case OCTILE_SCALE_128X128:
      return {layout.scale_rows, blocks, blocks, 1, kScaleUnit};
    case OCTILE_SCALE_PER_ROW:
      return {1, rows, layout.scale_ld, kScaleUnit, 2 * kScaleUnit};
    default:
      return {blocks, rows, layout.scale_ld, kScaleUnit, kAlign};
  }
}

std::string strides_text(const Tensor& tensor) {
  std::string text;
  for (std::int64_t i = 0; i < tensor.dim(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(tensor.stride(i));
  return " with strides (" + text + ")";
}

std::string ld_text(const ScaleRows& in) {
  return "ld " + std::to_string(in.least) + " or more" +
         (in.unit > 1 ? " and a multiple of " + std::to_string(in.unit) : "") +
         ", in memory that begins at a multiple of " + std::to_string(in.bytes) + " bytes";
}

}  // namespace

OperandScales operand_scales(const Tensor& scales, const octile_tensor_type& type,
                             std::int64_t rows, std::int64_t k, const Place& place,
                             const std::string& argument) {
  const octile_quantized_layout layout = layout_of(type, rows, k, false);
  const std::int64_t count = layout.scale_bytes / scale_bytes(type.scale_format);
  const std::int32_t element = type_of(scales);
  if ((scales.numel() == count && scales.is_contiguous()) || !has_rows(type) ||
      element != torch_type(OCTILE_FP32) || element != torch_scale_type(type.scale_format)) {
    check_scales(scales, type.scale_format, count, place, argument);
    return {.tensor = aligned(scales)};
  }
  check_same_place(scales, place, argument);
  const ScaleRows in = rows_of(type, rows, k);
  if (scales.dim() != 2 || scales.size(0) != in.rows || scales.size(1) != in.cols)
    refuse(argument + " is " + shape_text(scales) + "; allowed is contiguous, of " +
           std::to_string(count) + " elements, or [" + std::to_string(in.rows) + ", " +
           std::to_string(in.cols) + "]");
  const std::int64_t ld = in.rows > 1 ? scales.stride(0) : in.least;
  const bool in_place = (in.cols <= 1 || scales.stride(1) == 1) && begins_at(scales, in.bytes) &&
                        ld >= in.least && ld % in.unit == 0;
  if (in_place) return {.tensor = scales, .ld = ld};
  return {.tensor = copied_rows(scales, in.least, place), .ld = in.least};
}

OperandScales stacked_scales(const Tensor& scales, const octile_tensor_type& type,
                             std::int64_t groups, std::int64_t rows, std::int64_t k,
                             const Place& place, const std::string& argument) {
  check_same_place(scales, place, argument);
  if (!has_rows(type) || torch_scale_type(type.scale_format) != torch_type(OCTILE_FP32) ||
      type_of(scales) != torch_type(OCTILE_FP32))
    refuse(argument + " has another element type than fp32, or is one of each tensor");
  const ScaleRows in = rows_of(type, rows, k);
  const bool has_shape = scales.dim() == 3 && scales.size(0) == groups &&
                         scales.size(1) == in.rows && scales.size(2) == in.cols &&
                         (in.cols <= 1 || scales.stride(2) == 1);
  const bool one_row = in.rows == 1;
  std::int64_t ld = in.least;
  if (has_shape && !one_row) ld = scales.stride(1);
  if (has_shape && one_row && groups > 1) ld = scales.stride(0);
  // A GEMM with a scale for each row takes no ld: the rows of each group begin at a multiple of 4.
  const bool fixed = type.granularity == OCTILE_SCALE_PER_ROW;
  const bool fits = has_shape && begins_at(scales, in.bytes) && ld >= in.least &&
                    ld % in.unit == 0 && (!fixed || ld == in.least) &&
                    (groups == 1 || scales.stride(0) == in.rows * ld);
  if (fits || (has_shape && scales.numel() == 0)) return {.tensor = scales, .ld = ld};
  const std::string shape = "[" + std::to_string(groups) + ", " + std::to_string(in.rows) + ", " +
                            std::to_string(in.cols) + "]";
  refuse(argument + " is " + shape_text(scales) + strides_text(scales) + "; allowed is " + shape +
         (fixed ? " with strides (" + std::to_string(in.least) + ", " + std::to_string(in.least) +
                      ", 1), in memory that begins at a multiple of " + std::to_string(in.bytes) +
                      " bytes"
                : " with strides (" + std::to_string(in.rows) + " * ld, ld, 1), " + ld_text(in)));
}

std::int64_t stacked_ld(const Tensor& codes, const octile_tensor_type& type, std::int64_t groups,
                        std::int64_t rows, std::int64_t k, const Place& place,
                        const std::string& argument) {
  check_same_place(codes, place, argument);
  if (type_of(codes) != torch_type(type.dtype))
    refuse(argument + " has another element type than codes of " + name_of(type.dtype));
  const bool has_shape =
      codes.dim() == 3 && codes.size(0) == groups && codes.size(1) == rows && codes.size(2) == k;
  const std::int64_t ld = has_shape && rows > 1     ? codes.stride(1)
                          : has_shape && groups > 1 ? codes.stride(0)
                                                    : k;
  const bool fits = has_shape && codes.stride(2) == 1 && ld >= k && ld % kMultiple == 0 &&
                    begins_at(codes, kAlign) && (groups == 1 || codes.stride(0) == rows * ld);
  if (fits || (has_shape && codes.numel() == 0)) return ld;
  refuse(argument + " is " + shape_text(codes) + strides_text(codes) + "; allowed is [" +
         std::to_string(groups) + ", " + std::to_string(rows) + ", " + std::to_string(k) +
         "] with strides (" + std::to_string(rows) + " * ld, ld, 1), ld " + std::to_string(k) +
         " or more and a multiple of 16, in memory that begins at a multiple of 16 bytes");
}

}  // namespace octile::binding
