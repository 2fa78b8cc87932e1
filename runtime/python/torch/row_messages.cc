#include "row_messages.h"

#include <vector>

#include "plans.h"
#include "recipes.h"
#include "types.h"

namespace octile::binding {
namespace {

constexpr std::int64_t kScaleBytes = 4;
constexpr std::int64_t kMessageBlock = 128;

std::int64_t message_bytes(std::int64_t columns) {
  const std::int64_t blocks = (columns + kMessageBlock - 1) / kMessageBlock;
  return columns + (blocks + 3) / 4 * 4 * kScaleBytes;
}

void check_columns(std::int64_t columns) {
  if (columns <= 0 || columns % kMultiple != 0)
    refuse("columns are " + std::to_string(columns) + "; allowed are multiples of 16 above 0");
}

octile_tensor_type type_of_rows(const std::string& text) {
  const octile_tensor_type type = type_named(text, "type");
  const bool words =
      type.scale_format == OCTILE_SCALE_F32_POW2 || type.scale_format == OCTILE_SCALE_F32;
  if (type.granularity != OCTILE_SCALE_1X128 || !words)
    refuse("type is '" + text + "'; allowed is one with fp32 scales of 1x128 blocks");
  return type;
}

octile_plan* sender(octile_dtype x, const octile_tensor_type& type, std::int64_t columns,
                    const Place& place) {
  return plan_of("quantize rows=? cols=" + std::to_string(columns) + " x=" + name_of(x) +
                     " q=" + text_of(type) + " out=row scales=rows",
                 place);
}

octile_plan* opener(const octile_tensor_type& type, std::int64_t columns, const Place& place) {
  return plan_of("gather rows=? cols=" + std::to_string(columns) + " x=" + text_of(type) +
                     " q=" + text_of(type) + " out=row",
                 place);
}

octile_plan* requantizer(const octile_tensor_type& type, std::int64_t cols, const Place& place) {
  return plan_of("quantize rows=? cols=" + std::to_string(cols) + " x=" + text_of(type) +
                     " q=" + text_of(type) + " out=col group=contiguous",
                 place);
}

octile_quantized_layout transposed_layout(octile_plan* plan, std::int64_t rows,
                                          std::int64_t groups) {
  octile_quantized_layout layout{};
  layout.struct_size = sizeof layout;
  check(octile_plan_quantized_layout(plan, rows, groups, 1, &layout));
  return layout;
}

// The scales of the first message.
char* scales_of(const Tensor& messages, std::int64_t columns) {
  return static_cast<char*>(messages.data_ptr()) + columns;
}

}  // namespace

Tensor quantize_messages(Tensor x, std::string type) {
  const octile_tensor_type kind = type_of_rows(type);
  check_rows(x, "x");
  const std::int64_t rows = x.size(0), columns = x.size(1), bytes = message_bytes(columns);
  check_columns(columns);
  const Place place = place_of(x);
  const OnDevice device(place);
  octile_plan* plan = sender(float_type(x, "x"), kind, columns, place);
  Tensor messages = empty(place, {rows, bytes}, torch_uint8());
  quantize(plan, place, {.rows = rows, .x = x.data_ptr(), .ldx = row_stride(x)},
           {.rowwise = {.codes = messages.data_ptr(),
                        .ld = bytes,
                        .scales = scales_of(messages, columns),
                        .scale_ld = bytes / kScaleBytes}});
  return messages;
}

std::tuple<Tensor, Tensor> open_messages(Tensor messages, Tensor index, std::string type,
                                         std::int64_t columns) {
  const octile_tensor_type kind = type_of_rows(type);
  check_columns(columns);
  const std::int64_t bytes = message_bytes(columns);
  if (type_of(messages) != torch_uint8() || messages.dim() != 2 || messages.size(1) != bytes ||
      !messages.is_contiguous())
    refuse("messages is " + shape_text(messages) + "; allowed is contiguous uint8 [rows, " +
           std::to_string(bytes) + "]");
  const Place place = place_of(messages);
  check_same_place(index, place, "index");
  if (type_of(index) != torch_int32() || index.dim() != 1 || !index.is_contiguous())
    refuse("index is " + shape_text(index) + "; allowed is int32 [rows], contiguous");
  const std::int64_t rows = index.size(0);
  if (rows > 0 && messages.size(0) == 0) refuse("messages has no row; index names some");
  const OnDevice device(place);
  octile_plan* plan = opener(kind, columns, place);
  const octile_quantized_layout layout = layout_of(kind, rows, columns, false);
  Tensor codes = empty(place, {rows, columns}, torch_type(kind.dtype));
  Tensor scales =
      empty(place, {layout.scale_rows * layout.scale_ld}, torch_scale_type(kind.scale_format));
  quantize(plan, place,
           {.rows = rows,
            .x = messages.data_ptr(),
            .ldx = bytes,
            .x_scale = scales_of(messages, columns),
            .x_scale_ld = bytes / kScaleBytes,
            .index = static_cast<const std::int32_t*>(index.data_ptr()),
            .x_rows = messages.size(0)},
           {.rowwise = {.codes = codes.data_ptr(), .ld = columns, .scales = scales.data_ptr()}});
  return {codes, scales};
}

std::tuple<Tensor, Tensor> requantize_groups(Tensor codes, Tensor scales, Tensor offsets,
                                             std::string type) {
  const octile_tensor_type kind = type_named(type, "type");
  check_rows(codes, "codes");
  const Place place = place_of(codes);
  const std::int64_t rows = codes.size(0), cols = codes.size(1);
  check_quantized(codes, scales, kind, rows, cols, place, "codes");
  check_same_place(offsets, place, "offsets");
  if (type_of(offsets) != torch_int32() || offsets.dim() != 1 || !offsets.is_contiguous() ||
      offsets.size(0) < 2)
    refuse("offsets is " + shape_text(offsets) + "; allowed is int32 [groups + 1], contiguous");
  const OnDevice device(place);
  const std::int64_t groups = offsets.size(0) - 1;
  octile_plan* plan = requantizer(kind, cols, place);
  const octile_quantized_layout layout = transposed_layout(plan, rows, groups);
  const Quantized result{
      .codes = empty(place, {layout.data_rows, layout.data_ld}, torch_type(kind.dtype)),
      .scales = empty(place, {layout.scale_bytes / scale_bytes(kind.scale_format)},
                      torch_scale_type(kind.scale_format))};
  quantize(plan, place,
           {.rows = rows,
            .x = codes.data_ptr(),
            .ldx = row_stride(codes),
            .x_scale = scales.data_ptr(),
            .offsets = static_cast<const std::int32_t*>(offsets.data_ptr()),
            .groups = groups},
           {.transposed = target_of(result)});
  return {result.codes, result.scales};
}

octile_quantized_layout layout_of_groups(const octile_tensor_type& type, std::int64_t rows,
                                         std::int64_t cols, std::int64_t groups,
                                         const Place& place) {
  const OnDevice device(place);
  return transposed_layout(requantizer(type, cols, place), rows, groups);
}

void prepare_messages(Tensor x, std::int64_t recipe, std::int64_t columns, std::int64_t lo,
                      std::int64_t hi, bool training) {
  check_recipe(recipe);
  check_columns(columns);
  const Place place = place_of(x);
  const OnDevice device(place);
  const octile_dtype type = float_type(x, "x");
  for (const octile_tensor_type& kind : {type_of_x(recipe), type_of_dy(recipe)}) {
    std::vector<octile_plan*> plans{sender(type, kind, columns, place),
                                    opener(kind, columns, place)};
    if (training) plans.push_back(requantizer(kind, columns, place));
    for (octile_plan* plan : plans) prepare(plan, lo, hi);
    if (!training) return;
  }
}

}  // namespace octile::binding
