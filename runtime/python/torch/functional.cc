#include "functional.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "operand_scales.h"
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

// Returns the problem of a quantiser of masked groups, whose text this is up to its outputs.
std::string masked_text(const std::string& source) { return source + " out=row group=masked"; }

// group_rows: offsets or counts of groups.
void check_group_rows(const Tensor& group_rows, std::int64_t count, const Place& place,
                      const std::string& argument) {
  check_same_place(group_rows, place, argument);
  if (type_of(group_rows) != torch_int32() || group_rows.dim() != 1 ||
      !group_rows.is_contiguous() || group_rows.size(0) != count)
    refuse(argument + " is " + shape_text(group_rows) + "; allowed is int32 [" +
           std::to_string(count) + "], contiguous");
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

std::tuple<Tensor, Tensor> quantize_masked(Tensor x, Tensor counts, std::string type) {
  const octile_tensor_type kind = type_named(type, "type");
  if (x.dim() != 3 || !x.is_contiguous())
    refuse("x is " + shape_text(x) + "; allowed is contiguous [groups, m, k]");
  const std::int64_t groups = x.size(0), m = x.size(1), k = x.size(2);
  Source source = source_of(x, m, k, k, kind);
  const Place& place = source.place;
  check_group_rows(counts, groups, place, "counts");
  const OnDevice device(place);
  source.call.counts = static_cast<const std::int32_t*>(counts.data_ptr());
  source.call.groups = groups;
  const octile_quantized_layout layout = layout_of(kind, m, k, false);
  const Quantized made{.codes = empty(place, {groups, m, k}, torch_type(kind.dtype)),
                       .scales = empty(place, {groups, layout.scale_rows, layout.scale_ld},
                                       torch_scale_type(kind.scale_format))};
  quantize(
      plan_of(masked_text(source.text), place), place, source.call,
      {.rowwise = {.codes = made.codes.data_ptr(), .ld = k, .scales = made.scales.data_ptr()}});
  return {made.codes, made.scales};
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

std::string groups_text(std::int64_t groups, bool masked) {
  return std::string(" group=") + (masked ? "masked" : "contiguous") +
         " groups=" + std::to_string(groups);
}

void check_result(const Tensor& d, const std::vector<std::int64_t>& sizes, const Place& place) {
  check_same_place(d, place, "d");
  bool fits = d.dim() == static_cast<std::int64_t>(sizes.size()) && d.is_contiguous();
  std::string allowed;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    fits = fits && d.size(static_cast<std::int64_t>(i)) == sizes[i];
    allowed += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  }
  if (!fits || !begins_at(d, kAlign))
    refuse("d is " + shape_text(d) + "; allowed is contiguous [" + allowed +
           "], in memory that begins at a multiple of 16 bytes");
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

void grouped_gemm_out(Tensor a, Tensor a_scale, std::string a_type, Tensor b, Tensor b_scale,
                      std::string b_type, Tensor group_rows, Tensor d, std::int64_t expected) {
  const octile_tensor_type a_kind = type_named(a_type, "a_type");
  const octile_tensor_type b_kind = type_named(b_type, "b_type");
  const Place place = place_of(d);
  if (b.dim() != 3) refuse("b is " + shape_text(b) + "; allowed is [groups, n, k]");
  const bool masked = a.dim() == 3;
  const std::int64_t groups = b.size(0), n = b.size(1), k = b.size(2);
  const std::int64_t m = masked ? a.size(1) : a.size(0);
  if (groups < 1) refuse("b is " + shape_text(b) + "; allowed are 1 group and more");
  check_group_rows(group_rows, masked ? groups : groups + 1, place, "group_rows");
  check_result(d, masked ? std::vector{groups, m, n} : std::vector{m, n}, place);
  octile_gemm_groups of_groups{};
  of_groups.struct_size = sizeof of_groups;
  const auto* const rows = static_cast<const std::int32_t*>(group_rows.data_ptr());
  octile_gemm_args args{};
  const OperandScales of_a = masked
                                 ? stacked_scales(a_scale, a_kind, groups, m, k, place, "a_scale")
                                 : operand_scales(a_scale, a_kind, m, k, place, "a_scale");
  if (masked) {
    of_groups.counts = rows;
    of_groups.expected_tokens = std::min(expected, m);
    args.lda = stacked_ld(a, a_kind, groups, m, k, place, "a");
  } else {
    if (expected != 0)
      refuse("expected is " + std::to_string(expected) + "; allowed with contiguous groups is 0");
    of_groups.offsets = rows;
    check_codes(a, a_kind, m, k, place, "a");
    a = aligned_rows(a);
    args.lda = row_stride(a);
  }
  args.ldb = stacked_ld(b, b_kind, groups, n, k, place, "b");
  const OperandScales of_b = stacked_scales(b_scale, b_kind, groups, n, k, place, "b_scale");
  const OnDevice device(place);
  args.tokens = m;
  args.a = a.data_ptr();
  args.a_scale = of_a.tensor.data_ptr();
  args.a_scale_ld = of_a.ld;
  args.b = b.data_ptr();
  args.b_scale = of_b.tensor.data_ptr();
  args.b_scale_ld = of_b.ld;
  args.d = d.data_ptr();
  args.ldd = n;
  args.groups = &of_groups;
  const std::string text = gemm_text("?", n, std::to_string(k), a_kind, b_kind, d, false, "128") +
                           groups_text(groups, masked);
  multiply(plan_of(text, place), place, args);
}

void prepare_gemm(Tensor d, std::optional<Tensor> bias, std::string a_type, std::string b_type,
                  std::int64_t n, std::int64_t k, std::int64_t lo, std::int64_t hi,
                  std::int64_t groups, bool masked, bool quantized) {
  const Place place = place_of(d);
  const OnDevice device(place);
  const octile_tensor_type a_kind = type_named(a_type, "a_type");
  if (quantized && !masked) refuse("quantized is true; allowed is false without masked groups");
  if (quantized) prepare(plan_of(masked_text(source_of(d, 0, k, k, a_kind).text), place), lo, hi);
  const std::string text =
      gemm_text("?", n, std::to_string(k), a_kind, type_named(b_type, "b_type"), d, false, "128") +
      (bias ? bias_text(*bias) : "") + (groups > 0 ? groups_text(groups, masked) : "");
  prepare(plan_of(text, place), lo, hi);
}

}  // namespace octile::binding
