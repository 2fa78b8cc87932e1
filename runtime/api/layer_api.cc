// The C API of octile/layers.h.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "octile/layers.h"
#include "runtime/api/boundary.h"
#include "runtime/api/convert.h"
#include "runtime/api/prepare.h"
#include "runtime/layers/layer.h"

namespace octile::api {
namespace {

using layers::BackwardCall;
using layers::Description;
using layers::ForwardCall;
using layers::Layer;
using layers::QuantizeCall;

// ---- the description

Status read_dtype(const char* name, int value, DType& out) {
  if (Status ok = check_enum(name, "octile_dtype", value, OCTILE_E4M3, OCTILE_FP32); !ok) return ok;
  out = static_cast<DType>(value);
  return {};
}

// Types of 0 are those of the field before.
Status read_types(const octile_layer_desc& desc, Description& out) {
  Status ok = read_dtype("desc->dtype", raw(desc.dtype), out.dtype);
  const int weight = raw(desc.weight_dtype);
  out.weight_dtype = out.dtype;
  if (ok && weight != 0) ok = read_dtype("desc->weight_dtype", weight, out.weight_dtype);
  const int gradient = raw(desc.weight_gradient_dtype);
  out.weight_gradient_dtype = out.weight_dtype;
  if (ok && gradient != 0)
    ok = read_dtype("desc->weight_gradient_dtype", gradient, out.weight_gradient_dtype);
  const int bias = raw(desc.bias_dtype);
  if (!ok || bias == 0) return ok;
  return read_dtype("desc->bias_dtype", bias, out.bias.emplace());
}

Result<Description> to_description(const octile_layer_desc* user) {
  octile_layer_desc desc{};
  Status ok = read_struct("desc", user, desc);
  if (ok) ok = require("desc->recipe", desc.recipe);
  if (ok) ok = check_length("desc->recipe", desc.recipe);
  if (!ok) return tl::unexpected<Error>(ok.error());
  const auto recipe = recipe_named(desc.recipe);
  if (!recipe) return fail(recipe.error().code, fmt::format("desc->{}", recipe.error().message));
  Description out;
  out.recipe = *recipe;
  out.n = desc.n;
  out.k = desc.k;
  out.experts = desc.experts;
  out.accumulate = desc.accumulate != 0;
  out.sentry = desc.sentry != 0;
  out.history = desc.history;
  if (ok = read_types(desc, out); !ok) return tl::unexpected<Error>(ok.error());
  return out;
}

Status create_layer(octile_library* library, const char* device, const octile_layer_desc* desc,
                    octile_layer** out) {
  if (Status ok = require_handle("library", library); !ok) return ok;
  if (Status ok = require("layer", out); !ok) return ok;
  if (Status ok = check_device(device); !ok) return ok;
  const auto description = to_description(desc);
  if (!description) return tl::unexpected<Error>(description.error());
  const auto target = target_of(device);
  if (!target) return tl::unexpected<Error>(target.error());
  auto layer = Layer::create(library->library, *description, *target);
  if (!layer) return tl::unexpected<Error>(layer.error());
  auto handle = std::make_unique<octile_layer>(std::move(*layer), &library->library);
  note_handle(handle.get());
  *out = handle.release();
  ++library->library.layers;
  return {};
}

Status destroy_layer(octile_layer* layer) {
  if (layer == nullptr) return {};
  if (Status ok = forget_handle("layer", layer); !ok) return ok;
  Library& library = *layer->library;
  delete layer;
  --library.layers;
  return {};
}

Status prepare_layer(octile_layer* layer, std::int64_t lo, std::int64_t hi, std::uint32_t uses,
                     const Result<PrepareRequest>& request) {
  if (Status ok = require_handle("layer", layer); !ok) return ok;
  if (!request) return tl::unexpected<Error>(request.error());
  if (request->async)
    return refuse(
        "flags has OCTILE_PREPARE_ASYNC (1); allowed for a layer: OCTILE_PREPARE_DEFAULT "
        "(0) or OCTILE_PREPARE_TUNE (2)");
  const auto ranges = layer->layer->ranges(lo, hi, uses);
  if (!ranges) return tl::unexpected<Error>(ranges.error());
  return prepare(*layer->library, *ranges, *request);
}

// ---- calls

Status check_tensor(const char* name, int value) {
  return check_enum(name, "octile_layer_tensor", value, OCTILE_LAYER_X, OCTILE_LAYER_DY);
}

Status read_operand(const char* name, const char* state_name, const octile_layer_operand* user,
                    octile_layer_operand& out) {
  if (user == nullptr) return {};
  if (Status ok = read_struct(name, user, out); !ok) return ok;
  return check_enum(state_name, "octile_layer_state", raw(out.state), OCTILE_LAYER_QUANTIZE,
                    OCTILE_LAYER_CODES);
}

Status read_call(const octile_layer_forward_args* user, ForwardCall& out) {
  if (Status ok = read_struct("args", user, out.args); !ok) return ok;
  if (Status ok = read_operand("args->x", "x.state", out.args.x, out.x); !ok) return ok;
  return read_operand("args->w", "w.state", out.args.w, out.w);
}

Status read_call(const octile_layer_backward_args* user, BackwardCall& out) {
  if (Status ok = read_struct("args", user, out.args); !ok) return ok;
  if (Status ok = read_operand("args->dy", "dy.state", out.args.dy, out.dy); !ok) return ok;
  if (Status ok = read_operand("args->x", "x.state", out.args.x, out.x); !ok) return ok;
  return read_operand("args->w", "w.state", out.args.w, out.w);
}

Status read_call(const octile_layer_quantize_args* user, QuantizeCall& out) {
  if (Status ok = read_struct("args", user, out.args); !ok) return ok;
  if (Status ok = check_tensor("args->tensor", raw(out.args.tensor)); !ok) return ok;
  return read_operand("args->operand", "operand.state", out.args.operand, out.operand);
}

Status read_call(const octile_layer_update_args* user, octile_layer_update_args& out) {
  return read_struct("args", user, out);
}

template <typename Call, typename User>
Status run_layer(const octile_layer* layer, const User* user, void* stream,
                 Status (Layer::*pass)(const Call&, CUstream) const) {
  if (Status ok = require_handle("layer", layer); !ok) return ok;
  Call call{};
  if (Status ok = read_call(user, call); !ok) return ok;
  return ((*layer->layer).*pass)(call, static_cast<CUstream>(stream));
}

Status write_layout(const octile_layer* layer, int tensor, bool transposed, std::int64_t tokens,
                    octile_quantized_layout* out) {
  if (Status ok = require_handle("layer", layer); !ok) return ok;
  if (Status ok = require("layout", out); !ok) return ok;
  if (Status ok = check_tensor("tensor", tensor); !ok) return ok;
  const auto layout =
      layer->layer->copy_layout(static_cast<layers::Role>(tensor), transposed, tokens);
  if (!layout) return tl::unexpected<Error>(layout.error());
  return write_struct("layout", to_public(*layout), out);
}

Status write_sizes(const octile_layer* layer, std::int64_t tokens, std::uint32_t uses,
                   std::size_t* forward, std::size_t* backward) {
  if (Status ok = require_handle("layer", layer); !ok) return ok;
  const auto sizes = layer->layer->workspace_sizes(tokens, uses);
  if (!sizes) return tl::unexpected<Error>(sizes.error());
  if (forward != nullptr) *forward = static_cast<std::size_t>(sizes->forward);
  if (backward != nullptr) *backward = static_cast<std::size_t>(sizes->backward);
  return {};
}

}  // namespace
}  // namespace octile::api

using namespace octile::api;  // NOLINT(google-build-using-namespace): the C functions are its face
using octile::Status;
using octile::layers::Layer;

octile_status octile_layer_create(octile_library* library, const char* device,
                                  const octile_layer_desc* desc, octile_layer** layer) {
  return call([&] { return create_layer(library, device, desc, layer); });
}

octile_status octile_layer_destroy(octile_layer* layer) {
  return call([&] { return destroy_layer(layer); });
}

octile_status octile_layer_prepare(octile_layer* layer, int64_t lo, int64_t hi, uint32_t uses) {
  return call([&] { return prepare_layer(layer, lo, hi, uses, PrepareRequest{}); });
}

octile_status octile_layer_prepare_with(octile_layer* layer, int64_t lo, int64_t hi, uint32_t uses,
                                        const octile_prepare_options* options) {
  return call([&] { return prepare_layer(layer, lo, hi, uses, read_prepare_options(options)); });
}

octile_status octile_layer_problems(octile_layer* layer, uint32_t uses, char* buffer,
                                    size_t* size) {
  return call([&]() -> Status {
    if (Status ok = require_handle("layer", layer); !ok) return ok;
    if (Status ok = require("size", size); !ok) return ok;
    const auto text = layer->layer->problems(uses);
    if (!text) return tl::unexpected<octile::Error>(text.error());
    return write_text(*text, buffer, size);
  });
}

octile_status octile_layer_copy_layout(octile_layer* layer, octile_layer_tensor tensor,
                                       int32_t transposed, int64_t tokens,
                                       octile_quantized_layout* layout) {
  return call([&] { return write_layout(layer, raw(tensor), transposed != 0, tokens, layout); });
}

octile_status octile_layer_workspace_size(octile_layer* layer, int64_t tokens, uint32_t uses,
                                          size_t* forward, size_t* backward) {
  return call([&] { return write_sizes(layer, tokens, uses, forward, backward); });
}

octile_status octile_layer_scaling_size(octile_layer* layer, int64_t* elements) {
  return call([&]() -> Status {
    if (Status ok = require_handle("layer", layer); !ok) return ok;
    if (Status ok = require("elements", elements); !ok) return ok;
    *elements = layer->layer->scaling_elements();
    return {};
  });
}

octile_status octile_layer_forward(octile_layer* layer, const octile_layer_forward_args* args,
                                   void* stream) {
  return call([&] { return run_layer(layer, args, stream, &Layer::forward); });
}

octile_status octile_layer_backward(octile_layer* layer, const octile_layer_backward_args* args,
                                    void* stream) {
  return call([&] { return run_layer(layer, args, stream, &Layer::backward); });
}

octile_status octile_layer_quantize(octile_layer* layer, const octile_layer_quantize_args* args,
                                    void* stream) {
  return call([&] { return run_layer(layer, args, stream, &Layer::quantize); });
}

octile_status octile_layer_update_scales(octile_layer* layer, const octile_layer_update_args* args,
                                         void* stream) {
  return call([&] { return run_layer(layer, args, stream, &Layer::update_scales); });
}
