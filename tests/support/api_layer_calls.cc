// Calls on layers and cached weights.
#include "tests/support/api_calls.h"

namespace octile::test {

constexpr std::int64_t kTokensOfLayer = 37;

Fields fields_of(octile_layer_operand& a) {
  return OCTILE_FIELDS(a.struct_size, a.source, a.ld, a.rowwise.codes, a.rowwise.scales,
                       a.transposed.codes, a.transposed.scales, a.state, a.skip, a.fingerprint,
                       a.scale_ld, a.whole_columns);
}

const Calls::Layer& Calls::layer(const std::string& base) {
  if (!layers_.contains(base)) {
    CallMemory before = std::exchange(memory_, CallMemory());
    const auto [handle, call] = create<octile_layer>(base, "layer");
    layers_[base] = {LayerHandle(handle),
                     *static_cast<const octile_layer_desc*>(call.kept.front().get())};
    memory_ = std::move(before);
  }
  return layers_[base];
}

float* Calls::scaling_of(const Layer& on) {
  return on.desc.history == 0 ? nullptr : put(std::array<float, 4>{1, 1, 0, 0})->data();
}

template <typename Args>
void Calls::give_common(ApiCall& call, Args& a, const Layer& on, bool forward) {
  a.tokens = kTokensOfLayer;
  const std::int32_t* const rows = rows_of_groups(call);
  a.group_offsets = on.desc.experts > 0 ? rows : nullptr;
  EXPECT_EQ(octile_layer_workspace_size(on.handle.get(), a.tokens,
                                        OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_WEIGHT_GRADIENT,
                                        forward ? &a.workspace_bytes : nullptr,
                                        forward ? nullptr : &a.workspace_bytes),
            OCTILE_OK);
  a.workspace = memory_.take(a.workspace_bytes);
}

ApiCall Calls::layer_create(const std::string&) {
  ApiCall call;
  auto& a = call.keep(desc_of(plain_layer_));
  call.set(octile_layer_create, {"library", "device", "desc", "layer"}, library_.get(), "host", &a,
           handle(call, octile_layer_destroy));
  call.add(OCTILE_FIELDS(a.struct_size, a.recipe, a.n, a.k, a.experts, a.dtype, a.weight_dtype,
                         a.weight_gradient_dtype, a.bias_dtype, a.history));
  return call;
}

ApiCall Calls::layer_forward(const std::string& base) {
  const Layer& on = layer(base);
  ApiCall call;
  auto& a = call.keep<octile_layer_forward_args>();
  auto& x = call.keep(operand(of_layer(), {}, {of_layer(), of_layer()}));
  auto& w = call.keep(operand(of_layer()));
  a.x = &x;
  a.w = &w;
  a.y = of_layer();
  a.bias = on.desc.bias_dtype != 0 ? of_layer() : nullptr;
  a.scaling = scaling_of(on);
  give_common(call, a, on, true);
  call.set(octile_layer_forward, {"layer", "args", "stream"}, on.handle.get(), &a, nullptr);
  call.add(OCTILE_FIELDS(a.struct_size, a.tokens, a.x, a.w, a.y, a.ldy, a.bias, a.workspace,
                         a.workspace_bytes, a.group_offsets, a.scaling, a.sentry, a.sm_limit,
                         a.flags));
  call.add(fields_of(x), "x.");
  call.add(fields_of(w), "w.");
  return call;
}

ApiCall Calls::layer_backward(const std::string& base) {
  const Layer& on = layer(base);
  ApiCall call;
  auto& a = call.keep<octile_layer_backward_args>();
  auto& dy = call.keep(operand(of_layer()));
  auto& x = call.keep(operand(of_layer()));
  auto& w = call.keep(operand(of_layer()));
  a.dy = &dy;
  a.x = &x;
  a.w = &w;
  a.dx = of_layer();
  a.dw = of_layer();
  a.bias_gradient = on.desc.bias_dtype != 0 ? memory_.take<float>() : nullptr;
  give_common(call, a, on, false);
  call.set(octile_layer_backward, {"layer", "args", "stream"}, on.handle.get(), &a, nullptr);
  call.add(OCTILE_FIELDS(a.tokens, a.dy, a.x, a.w, a.dx, a.lddx, a.dw, a.lddw, a.bias_gradient,
                         a.workspace_bytes, a.group_offsets));
  call.add(fields_of(dy), "dy.");
  call.add(fields_of(x), "x.");
  call.add(fields_of(w), "w.");
  return call;
}

ApiCall Calls::layer_quantize(const std::string& base) {
  const Layer& on = layer(base);
  ApiCall call;
  auto& a = call.keep<octile_layer_quantize_args>();
  auto& w = call.keep(operand(of_layer(), {of_layer(), of_layer()}));
  a.tensor = OCTILE_LAYER_W;
  a.operand = &w;
  give_common(call, a, on, false);
  call.set(octile_layer_quantize, {"layer", "args", "stream"}, on.handle.get(), &a, nullptr);
  call.add(OCTILE_FIELDS(a.tensor, a.tokens, a.operand));
  call.add(fields_of(w), "operand.");
  return call;
}

ApiCall Calls::layer_update_scales(const std::string& base) {
  const Layer& on = layer(base);
  ApiCall call;
  auto& a = call.keep<octile_layer_update_args>();
  a.scaling = scaling_of(on);
  call.set(octile_layer_update_scales, {"layer", "args", "stream"}, on.handle.get(), &a, nullptr);
  call.add(OCTILE_FIELDS(a.scaling, a.choice, a.margin, a.average_share, a.states, a.stride));
  return call;
}

// A forward pass of a weight that keeps both copies.
ApiCall Calls::weight_begin(const std::string& base) {
  octile_weight* weight = nullptr;
  EXPECT_EQ(octile_weight_create(layer(base).handle.get(), &weight), OCTILE_OK);
  ApiCall call;
  auto& a = call.keep<octile_weight_call>();
  auto& w = *put(operand(of_layer(), {of_layer(), of_layer()}, {of_layer(), of_layer()}));
  a.uses = OCTILE_LAYER_WITHOUT_BACKWARD;
  call.set(octile_weight_begin, {"weight", "call", "operand", "stream"}, weight, &a, &w, nullptr);
  call.kept.emplace_back(weight, octile_weight_destroy);
  call.add(OCTILE_FIELDS(a.struct_size, a.uses, a.trusted, a.words, a.replayed, a.reserved));
  call.add(fields_of(w), "operand.");
  return call;
}

}  // namespace octile::test
