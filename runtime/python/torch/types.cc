#include "types.h"

#include <array>
#include <string_view>

#include "plans.h"

namespace octile::binding {
namespace {

template <typename Value>
struct Named {
  const char* name;
  Value value;
};

constexpr std::array kDtypes{Named{"e4m3", OCTILE_E4M3}, Named{"e5m2", OCTILE_E5M2}};
constexpr std::array kGranularities{
    Named{"tensor", OCTILE_SCALE_PER_TENSOR}, Named{"row", OCTILE_SCALE_PER_ROW},
    Named{"1x128", OCTILE_SCALE_1X128},       Named{"128x128", OCTILE_SCALE_128X128},
    Named{"1x32", OCTILE_SCALE_1X32},         Named{"32x32", OCTILE_SCALE_32X32}};
constexpr std::array kFormats{Named{"f32", OCTILE_SCALE_F32}, Named{"pow2", OCTILE_SCALE_F32_POW2},
                              Named{"ue8m0x4", OCTILE_SCALE_UE8M0X4},
                              Named{"e8m0", OCTILE_SCALE_E8M0}, Named{"bf16", OCTILE_SCALE_BF16}};

template <typename Value, std::size_t N>
const char* name_in(const std::array<Named<Value>, N>& table, Value value) {
  for (const auto& row : table) {
    if (row.value == value) return row.name;
  }
  refuse("a type has no name");
}

// Takes the next part of "a:b:c" off `rest`. Returns false if the table does not name it.
template <typename Value, std::size_t N>
bool read_part(const std::array<Named<Value>, N>& table, std::string_view& rest, Value& value) {
  const std::string_view part = rest.substr(0, rest.find(':'));
  rest.remove_prefix(part.size() < rest.size() ? part.size() + 1 : part.size());
  for (const auto& row : table) {
    if (part != row.name) continue;
    value = row.value;
    return true;
  }
  return false;
}

// Returns all three parts.
std::string full_text(const octile_tensor_type& type) {
  return std::string(name_of(type.dtype)) + ':' + name_in(kGranularities, type.granularity) + ':' +
         name_in(kFormats, type.scale_format);
}

}  // namespace

const char* name_of(octile_dtype type) {
  static constexpr std::array kNames{"", "e4m3", "e5m2", "bf16", "fp16", "fp32"};
  return kNames.at(static_cast<std::size_t>(type));
}

std::string text_of(const octile_tensor_type& type) {
  const bool is_default =
      type.scale_format == OCTILE_SCALE_F32 ||
      type.scale_format == OCTILE_SCALE_E8M0;  // of 1x32 and 32x32, the only one
  const std::string text = full_text(type);
  return is_default ? text.substr(0, text.rfind(':')) : text;
}

std::string operand_text(const octile_tensor_type& type) {
  octile_tensor_type operand = type;
  if (operand.scale_format == OCTILE_SCALE_F32_POW2) operand.scale_format = OCTILE_SCALE_F32;
  return text_of(operand);
}

octile_tensor_type type_named(const std::string& text, const char* argument) {
  octile_tensor_type type{};
  std::string_view rest = text;
  if (read_part(kDtypes, rest, type.dtype) && read_part(kGranularities, rest, type.granularity) &&
      read_part(kFormats, rest, type.scale_format) && rest.empty() && full_text(type) == text) {
    return type;
  }
  refuse(std::string(argument) + " is '" + text +
         "'; allowed is a type of three parts, such as 'e4m3:1x128:pow2'");
}

std::int32_t torch_scale_type(octile_scale_format format) {
  switch (format) {
    case OCTILE_SCALE_BF16:
      return torch_type(OCTILE_BF16);
    case OCTILE_SCALE_E8M0:
      return torch_uint8();
    case OCTILE_SCALE_UE8M0X4:
      return torch_int32();
    case OCTILE_SCALE_FORMAT_DEFAULT:
    case OCTILE_SCALE_F32:
    case OCTILE_SCALE_F32_POW2:
      break;
  }
  return torch_type(OCTILE_FP32);
}

std::int64_t scale_bytes(octile_scale_format format) {
  if (format == OCTILE_SCALE_E8M0) return 1;
  return format == OCTILE_SCALE_BF16 ? 2 : 4;
}

octile_quantized_layout layout_of(const octile_tensor_type& type, std::int64_t rows,
                                  std::int64_t cols, bool transposed) {
  octile_quantized_layout layout{};
  layout.struct_size = sizeof layout;
  check(octile_quantized_layout_query(type.dtype, type.granularity, type.scale_format, rows, cols,
                                      transposed ? 1 : 0, &layout));
  return layout;
}

void check_scales(const Tensor& scales, octile_scale_format format, std::int64_t count,
                  const Place& place, const std::string& argument) {
  if (type_of(scales) != torch_scale_type(format)) {
    refuse(argument + " has another element type than scales of the format '" +
           name_in(kFormats, format) + "'");
  }
  if (scales.numel() != count || !scales.is_contiguous()) {
    refuse(argument + " is " + shape_text(scales) + "; allowed is contiguous, of " +
           std::to_string(count) + " elements");
  }
  check_same_place(scales, place, argument);
}

void check_copy(const Tensor& codes, const octile_tensor_type& type, std::int64_t rows,
                std::int64_t columns, const Place& place, const std::string& argument) {
  const bool shape = codes.dim() == 2 && codes.size(0) == rows && codes.size(1) == columns;
  if (!shape || !codes.is_contiguous() || type_of(codes) != torch_type(type.dtype)) {
    refuse(argument + " is " + shape_text(codes) +
           "; allowed is the copy that the forward pass of these tokens kept, contiguous [" +
           std::to_string(rows) + ", " + std::to_string(columns) + "] of " + name_of(type.dtype));
  }
  check_same_place(codes, place, argument);
}

void check_codes(const Tensor& codes, const octile_tensor_type& type, std::int64_t rows,
                 std::int64_t cols, const Place& place, const char* argument) {
  const std::string name(argument);
  if (type_of(codes) != torch_type(type.dtype)) {
    refuse(name + " has another element type than codes of " + name_of(type.dtype));
  }
  check_rows(codes, argument);
  if (codes.size(0) != rows || codes.size(1) < cols) {
    refuse(name + " is " + shape_text(codes) + "; allowed is [" + std::to_string(rows) + ", " +
           std::to_string(cols) + " or more]");
  }
  check_same_place(codes, place, argument);
}

void check_quantized(const Tensor& codes, const Tensor& scales, const octile_tensor_type& type,
                     std::int64_t rows, std::int64_t cols, const Place& place,
                     const char* argument) {
  check_codes(codes, type, rows, cols, place, argument);
  const octile_quantized_layout layout = layout_of(type, rows, cols, false);
  check_scales(scales, type.scale_format, layout.scale_bytes / scale_bytes(type.scale_format),
               place, std::string(argument) + "_scale");
}

}  // namespace octile::binding
