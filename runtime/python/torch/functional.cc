#include "functional.h"

#include <stdexcept>

#include "plans.h"

namespace octile::binding {
namespace {

QuantizeCall call_on(const Tensor& x, const std::optional<Tensor>& x_scale) {
  return {.rows = x.size(0),
          .x = x.data_ptr(),
          .ldx = x.size(0) > 1 ? x.stride(0) : 0,
          .x_scale = x_scale ? x_scale->data_ptr() : nullptr};
}

Quantized allocate_as(octile_plan* plan, const Place& place, std::int64_t rows, bool transposed,
                      std::int64_t codes, std::int64_t scales) {
  return allocate(plan, place, rows, 0, transposed, static_cast<octile_dtype>(codes),
                  static_cast<ScaleType>(scales), ScaleShape::kMatrix);
}

}  // namespace

std::tuple<Tensor, Tensor> quantize_one(Tensor x, std::optional<Tensor> x_scale,
                                        std::string problem, std::int64_t codes,
                                        std::int64_t scales, bool transposed) {
  const Place place = place_of(x);
  const OnDevice device(place);
  octile_plan* plan = plan_of(problem, place);
  Quantized result = allocate_as(plan, place, x.size(0), transposed, codes, scales);
  quantize(plan, place, call_on(x, x_scale),
           transposed ? QuantizeOutputs{.transposed = target_of(result)}
                      : QuantizeOutputs{.rowwise = target_of(result)});
  return {result.codes, result.scales};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> quantize_both(Tensor x, std::string problem,
                                                         std::int64_t codes, std::int64_t scales) {
  const Place place = place_of(x);
  const OnDevice device(place);
  octile_plan* plan = plan_of(problem, place);
  Quantized rowwise = allocate_as(plan, place, x.size(0), false, codes, scales);
  Quantized transposed = allocate_as(plan, place, x.size(0), true, codes, scales);
  quantize(plan, place, call_on(x, std::nullopt),
           {.rowwise = target_of(rowwise), .transposed = target_of(transposed)});
  return {rowwise.codes, rowwise.scales, transposed.codes, transposed.scales};
}

Tensor dequantize(Tensor codes, Tensor scales, std::string problem, std::int64_t cols,
                  std::int64_t type) {
  const Place place = place_of(codes);
  const OnDevice device(place);
  octile_plan* plan = plan_of(problem, place);
  Tensor values = empty(place, {codes.size(0), cols}, torch_type(static_cast<octile_dtype>(type)));
  quantize(plan, place, call_on(codes, scales),
           {.rowwise = {.codes = values.data_ptr(), .ld = cols}});
  return values;
}

void gemm_out(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, std::optional<Tensor> bias,
              Tensor d, std::string problem, std::int64_t tokens) {
  const Place place = place_of(a);
  const OnDevice device(place);
  octile_gemm_args args{};
  args.tokens = tokens;
  args.a = a.data_ptr();
  args.lda = a.size(0) > 1 ? a.stride(0) : 0;
  args.a_scale = a_scale.data_ptr();
  args.b = b.data_ptr();
  args.ldb = b.size(0) > 1 ? b.stride(0) : 0;
  args.b_scale = b_scale.data_ptr();
  args.d = d.data_ptr();
  args.ldd = d.size(0) > 1 ? d.stride(0) : 0;
  args.bias = bias ? bias->data_ptr() : nullptr;
  multiply(plan_of(problem, place), place, args);
}

}  // namespace octile::binding
