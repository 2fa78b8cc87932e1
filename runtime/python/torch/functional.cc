#include "functional.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "plans.h"
#include "recipes.h"
#include "types.h"

namespace octile::binding {
namespace {

// Returns the type as the text of a GEMM names it. Scales of blocks that nothing promotes have to
// be said to be powers of two.
std::string operand_of(const octile_tensor_type& kind, std::string_view interval) {
  const bool has_blocks =
      kind.granularity == OCTILE_SCALE_1X128 || kind.granularity == OCTILE_SCALE_128X128;
  return interval == "none" && has_blocks ? text_of(kind) : operand_text(kind);
}

// Returns the row-wise output with rows of `cols` codes, or the transposed one as the library lays
// it out. flat: scales have one dimension.
Quantized output_of(const octile_tensor_type& type, const Place& place, std::int64_t rows,
                    std::int64_t cols, bool transposed, bool flat = false) {
  const octile_quantized_layout layout = layout_of(type, rows, cols, transposed);
  const std::int64_t width = transposed ? layout.data_ld : cols;
  std::vector<std::int64_t> scales{layout.scale_rows, layout.scale_ld};
  if (flat) scales = {layout.scale_rows * layout.scale_ld};
  return {.codes = empty(place, {layout.data_rows, width}, torch_type(type.dtype)),
          .scales = empty(place, scales, torch_scale_type(type.scale_format))};
}

// A matrix that is quantised, and the quantiser's problem up to its outputs.
struct Source {
  Place place;
  QuantizeCall call;
  std::int64_t cols;
  std::string text;
};

Source source_of(const Tensor& x, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                 const octile_tensor_type& type) {
  return {.place = place_of(x),
          .call = {.rows = rows, .x = x.data_ptr(), .ldx = stride},
          .cols = cols,
          .text = "quantize rows=? cols=" + std::to_string(cols) +
                  " x=" + name_of(float_type(x, "x")) + " q=" + text_of(type)};
}

Source source_of(const Tensor& x, const octile_tensor_type& type) {
  check_rows(x, "x");
  return source_of(x, x.size(0), x.size(1), row_stride(x), type);
}

// The codes and scales of a quantised [rows, cols], checked, as a quantiser reads them.
Source quantized_source(const char* operation, const Tensor& codes, const Tensor& scales,
                        const octile_tensor_type& type, std::int64_t cols) {
  check_rows(codes, "codes");
  const Place place = place_of(codes);
  check_quantized(codes, scales, type, codes.size(0), cols, place, "codes");
  return {.place = place,
          .call = {.rows = codes.size(0),
                   .x = codes.data_ptr(),
                   .ldx = row_stride(codes),
                   .x_scale = scales.data_ptr()},
          .cols = cols,
          .text = std::string(operation) + " rows=? cols=" + std::to_string(cols) +
                  " x=" + text_of(type)};
}

// Throws unless `value` is one of the names, and returns the name.
template <std::size_t N>
std::string one_of(const std::array<const char*, N>& names, const std::string& value,
                   const char* argument) {
  const auto* found = std::ranges::find(names, std::string_view(value));
  if (found != names.end()) return *found;
  std::string allowed;
  for (const char* name : names)
    allowed += (allowed.empty() ? "'" : ", '") + std::string(name) + "'";
  refuse(std::string(argument) + " is '" + value + "'; allowed are " + allowed);
}

}  // namespace

std::tuple<Tensor, Tensor> quantize_one(Tensor x, std::string type, bool transposed) {
  const octile_tensor_type kind = type_named(type, "type");
  const Source source = source_of(x, kind);
  const OnDevice device(source.place);
  octile_plan* plan = plan_of(source.text + (transposed ? " out=col" : " out=row"), source.place);
  const Quantized result = output_of(kind, source.place, source.call.rows, source.cols, transposed);
  quantize(plan, source.place, source.call,
           transposed ? QuantizeOutputs{.transposed = target_of(result)}
                      : QuantizeOutputs{.rowwise = target_of(result)});
  return {result.codes, result.scales};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> quantize_both(Tensor x, std::string type) {
  const octile_tensor_type kind = type_named(type, "type");
  const Source source = source_of(x, kind);
  const OnDevice device(source.place);
  octile_plan* plan = plan_of(source.text + " out=both", source.place);
  const Quantized rowwise = output_of(kind, source.place, source.call.rows, source.cols, false);
  const Quantized transposed = output_of(kind, source.place, source.call.rows, source.cols, true);
  quantize(plan, source.place, source.call,
           {.rowwise = target_of(rowwise), .transposed = target_of(transposed)});
  return {rowwise.codes, rowwise.scales, transposed.codes, transposed.scales};
}

namespace {

// The input of a layer: itself or a contiguous copy.
struct Input {
  Tensor rows;
  Source source;
};
Input input_of(const Tensor& x, RecipeCode recipe) {
  check_recipe(recipe);
  if (is_delayed(recipe)) refuse("recipe is 'delayed', whose scales are those of a layer");
  if (x.dim() < 1) refuse("x has no dimension; allowed are 1 and more");
  const std::int64_t k = x.size(x.dim() - 1);
  Tensor rows = contiguous(x);
  Source source = source_of(rows, k == 0 ? 0 : x.numel() / k, k, k, type_of_x(recipe));
  return {.rows = std::move(rows), .source = std::move(source)};
}

}  // namespace

Quantized quantize_rows(const Tensor& x, RecipeCode recipe) {
  const auto [rows, source] = input_of(x, recipe);
  const OnDevice device(source.place);
  Quantized made =
      output_of(type_of_x(recipe), source.place, source.call.rows, source.cols, false, true);
  quantize(plan_of(source.text + " out=row", source.place), source.place, source.call,
           {.rowwise = target_of(made)});
  return made;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> quantize_input(Tensor x, std::int64_t recipe,
                                                          bool rowwise, bool transposed) {
  if (!rowwise && !transposed) refuse("rowwise and transposed are false; allowed: one of them");
  const auto [rows, source] = input_of(x, recipe);
  const octile_tensor_type& kind = type_of_x(recipe);
  const Place& place = source.place;
  const OnDevice device(place);
  if (!transposed) {
    const Quantized row = quantize_rows(x, recipe);
    return {row.codes, row.scales, nothing(place), nothing(place)};
  }
  octile_plan* plan = plan_of(source.text + (rowwise ? " out=both" : " out=col"), place);
  const Quantized none{.codes = nothing(place), .scales = nothing(place)};
  const auto output = [&](bool is_transposed) {
    return output_of(kind, place, source.call.rows, source.cols, is_transposed, true);
  };
  const Quantized row = rowwise ? output(false) : none, col = output(true);
  quantize(plan, place, source.call,
           {.rowwise = rowwise ? target_of(row) : Target{}, .transposed = target_of(col)});
  return {row.codes, row.scales, col.codes, col.scales};
}

std::tuple<Tensor, Tensor> transpose(Tensor codes, Tensor scales, std::string type,
                                     std::int64_t cols) {
  const octile_tensor_type kind = type_named(type, "type");
  const Source source = quantized_source("transpose", codes, scales, kind, cols);
  const OnDevice device(source.place);
  octile_plan* plan = plan_of(source.text + " q=" + text_of(kind) + " out=col", source.place);
  const Quantized result = output_of(kind, source.place, source.call.rows, cols, true);
  quantize(plan, source.place, source.call, {.transposed = target_of(result)});
  return {result.codes, result.scales};
}

Tensor dequantize(Tensor codes, Tensor scales, std::string type, std::int64_t cols,
                  std::int64_t result) {
  const octile_tensor_type kind = type_named(type, "type");
  if (result < OCTILE_BF16 || result > OCTILE_FP32) {
    refuse("result is " + std::to_string(result) + "; allowed are the octile_dtypes 3, 4 and 5");
  }
  const auto word = static_cast<octile_dtype>(result);
  const Source source = quantized_source("dequantize", codes, scales, kind, cols);
  const OnDevice device(source.place);
  octile_plan* plan = plan_of(source.text + " q=" + name_of(word) + " out=row", source.place);
  Tensor values = empty(source.place, {source.call.rows, cols}, torch_type(word));
  quantize(plan, source.place, source.call, {.rowwise = {.codes = values.data_ptr(), .ld = cols}});
  return values;
}

namespace {

// Scales of an operand [rows, k] as a GEMM reads them, and their leading dimension. 0: the layout's
// own.
struct OperandScales {
  Tensor tensor;
  std::int64_t ld = 0;
};

// Returns whether the scales are in rows of `cols`, `ld` elements apart, whose memory begins at a
// multiple of `bytes`.
bool are_in_rows(const Tensor& scales, std::int64_t rows, std::int64_t cols, std::int64_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(scales.data_ptr());
  return scales.dim() == 2 && scales.size(0) == rows && scales.size(1) == cols &&
         (cols <= 1 || scales.stride(1) == 1) && address % static_cast<std::uintptr_t>(bytes) == 0;
}

// Returns the scales in the layout of their type, contiguous and of any shape, or in rows that lie
// where the caller has put them. Those are read in place.
OperandScales operand_scales(const Tensor& scales, const octile_tensor_type& type,
                             std::int64_t rows, std::int64_t k, const Place& place,
                             const std::string& argument) {
  constexpr std::int64_t kBlock = 128, kUnit = 4;
  const octile_quantized_layout layout = layout_of(type, rows, k, false);
  const std::int64_t count = layout.scale_bytes / scale_bytes(type.scale_format);
  const bool packed = scales.numel() == count && scales.is_contiguous();
  const bool in_blocks =
      type.granularity == OCTILE_SCALE_1X128 || type.granularity == OCTILE_SCALE_128X128;
  const bool is_row = type.granularity == OCTILE_SCALE_PER_ROW;
  const std::int32_t element = type_of(scales);
  if (packed || (!in_blocks && !is_row) || element != torch_type(OCTILE_FP32) ||
      element != torch_scale_type(type.scale_format)) {
    check_scales(scales, type.scale_format, count, place, argument);
    return {.tensor = aligned(scales)};
  }
  check_same_place(scales, place, argument);
  const std::int64_t blocks = (k + kBlock - 1) / kBlock;
  const bool square = type.granularity == OCTILE_SCALE_128X128;
  const std::int64_t least = square ? blocks : layout.scale_ld, unit = square ? 1 : kUnit;
  const std::int64_t given_rows = square ? layout.scale_rows : is_row ? 1 : blocks;
  const std::int64_t cols = square ? blocks : rows;
  const std::int64_t bytes = square ? kUnit : is_row ? 2 * kUnit : kAlign;
  const bool in_rows = are_in_rows(scales, given_rows, cols, bytes);
  const std::int64_t ld = in_rows && given_rows > 1 ? scales.stride(0) : least;
  if (in_rows && ld >= least && ld % unit == 0) return {.tensor = scales, .ld = ld};
  std::string strides;
  for (std::int64_t i = 0; i < scales.dim(); ++i)
    strides += (i > 0 ? ", " : "") + std::to_string(scales.stride(i));
  refuse(argument + " is " + shape_text(scales) + " with strides (" + strides +
         "); allowed is contiguous, of " + std::to_string(count) + " elements, or [" +
         std::to_string(given_rows) + ", " + std::to_string(cols) + "] with strides (ld, 1), ld " +
         std::to_string(least) + " or more" + (unit > 1 ? " and a multiple of 4" : "") +
         ", in memory that begins at a multiple of " + std::to_string(bytes) + " bytes");
}

// Returns the problem of a GEMM up to its bias. m or k is "?".
std::string gemm_text(const std::string& m, std::int64_t n, const std::string& k,
                      const octile_tensor_type& a, const octile_tensor_type& b, const Tensor& d,
                      bool accumulate, const std::string& promote) {
  return "gemm m=" + m + " n=" + std::to_string(n) + " k=" + k + " a=" + operand_of(a, promote) +
         " b=" + operand_of(b, promote) + " d=" + name_of(float_type(d, "d")) +
         " acc=" + (accumulate ? "1" : "0") + " promote=" + promote;
}

std::string bias_text(const Tensor& bias) {
  return std::string(" bias=") + name_of(float_type(bias, "bias"));
}

}  // namespace

void gemm_out(Tensor a, Tensor a_scale, std::string a_type, Tensor b, Tensor b_scale,
              std::string b_type, std::optional<Tensor> bias, Tensor d, std::int64_t k,
              std::string tokens, bool accumulate, std::string promote) {
  static constexpr std::array kSizes{"m", "k"};
  static constexpr std::array kPromotes{"32", "64", "128", "256", "512", "none"};
  const octile_tensor_type a_kind = type_named(a_type, "a_type");
  const octile_tensor_type b_kind = type_named(b_type, "b_type");
  const bool sums_over_tokens = one_of(kSizes, tokens, "tokens") == "k";
  const std::string interval = one_of(kPromotes, promote, "promote");
  const Place place = place_of(d);
  check_rows(d, "d");
  const std::int64_t m = d.size(0), n = d.size(1);
  check_codes(a, a_kind, m, k, place, "a");
  check_codes(b, b_kind, n, k, place, "b");
  const OperandScales of_a = operand_scales(a_scale, a_kind, m, k, place, "a_scale");
  const OperandScales of_b = operand_scales(b_scale, b_kind, n, k, place, "b_scale");
  std::string text =
      sums_over_tokens
          ? gemm_text(std::to_string(m), n, "?", a_kind, b_kind, d, accumulate, interval)
          : gemm_text("?", n, std::to_string(k), a_kind, b_kind, d, accumulate, interval);
  const OnDevice device(place);
  if (bias) {
    bias = bias_operand(*bias, n, place);
    text += bias_text(*bias);
  }
  a = aligned_rows(a);
  b = aligned_rows(b);
  const Written result(d, aligned_rows(d));
  octile_gemm_args args{};
  args.tokens = sums_over_tokens ? k : m;
  args.a = a.data_ptr();
  args.lda = row_stride(a);
  args.a_scale = of_a.tensor.data_ptr();
  args.a_scale_ld = of_a.ld;
  args.b = b.data_ptr();
  args.ldb = row_stride(b);
  args.b_scale = of_b.tensor.data_ptr();
  args.b_scale_ld = of_b.ld;
  args.d = result.at().data_ptr();
  args.ldd = row_stride(result.at());
  args.bias = bias ? bias->data_ptr() : nullptr;
  multiply(plan_of(text, place), place, args);
  result.finish();
}

void prepare_gemm(Tensor d, std::optional<Tensor> bias, std::string a_type, std::string b_type,
                  std::int64_t n, std::int64_t k, std::int64_t lo, std::int64_t hi) {
  const Place place = place_of(d);
  const OnDevice device(place);
  const std::string text = gemm_text("?", n, std::to_string(k), type_named(a_type, "a_type"),
                                     type_named(b_type, "b_type"), d, false, "128") +
                           (bias ? bias_text(*bias) : "");
  prepare(plan_of(text, place), lo, hi);
}

}  // namespace octile::binding
