// The C API of cached weights in octile/layers.h.
#include <memory>

#include "octile/layers.h"
#include "runtime/api/boundary.h"
#include "runtime/layers/weight.h"

namespace octile::api {
namespace {

Status create_weight(octile_layer* layer, octile_weight** out) {
  if (Status ok = require_handle("layer", layer); !ok) return ok;
  if (Status ok = require("weight", out); !ok) return ok;
  auto handle = std::make_unique<octile_weight>(layers::CachedWeight(layer->layer), layer->library);
  note_handle(handle.get());
  *out = handle.release();
  ++layer->library->weights;
  return {};
}

Status destroy_weight(octile_weight* weight) {
  if (weight == nullptr) return {};
  if (Status ok = forget_handle("weight", weight); !ok) return ok;
  Library& library = *weight->library;
  delete weight;
  --library.weights;
  return {};
}

// Reads what a call gives, has `answer` complete the operand, and writes that back.
template <typename Answer>
Status complete(const octile_weight* weight, const octile_weight_call* user_call,
                octile_layer_operand* user_operand, const Answer& answer) {
  if (Status ok = require_handle("weight", weight); !ok) return ok;
  octile_weight_call call{};
  octile_layer_operand operand{};
  if (Status ok = read_struct("call", user_call, call); !ok) return ok;
  if (Status ok = read_struct("operand", user_operand, operand); !ok) return ok;
  if (Status ok = check_enum("operand.state", "octile_layer_state", raw(operand.state),
                             OCTILE_LAYER_QUANTIZE, OCTILE_LAYER_CODES);
      !ok)
    return ok;
  if (Status ok = answer(call, operand); !ok) return ok;
  return write_struct("operand", operand, user_operand);
}

}  // namespace
}  // namespace octile::api

using namespace octile::api;  // NOLINT(google-build-using-namespace): the C functions are its face
using octile::Status;

octile_status octile_weight_create(octile_layer* layer, octile_weight** weight) {
  return call([&] { return create_weight(layer, weight); });
}

octile_status octile_weight_destroy(octile_weight* weight) {
  return call([&] { return destroy_weight(weight); });
}

octile_status octile_weight_begin(octile_weight* weight, const octile_weight_call* given,
                                  octile_layer_operand* operand, void* stream) {
  return call([&] {
    return complete(weight, given, operand,
                    [&](const octile_weight_call& pass, octile_layer_operand& w) {
                      return weight->weight.begin(pass, w, static_cast<CUstream>(stream));
                    });
  });
}

octile_status octile_weight_end(octile_weight* weight, void* stream) {
  return call([&]() -> Status {
    if (Status ok = require_handle("weight", weight); !ok) return ok;
    return weight->weight.end(static_cast<CUstream>(stream));
  });
}

octile_status octile_weight_forget(octile_weight* weight) {
  return call([&]() -> Status {
    if (Status ok = require_handle("weight", weight); !ok) return ok;
    weight->weight.forget_copies();
    return {};
  });
}

octile_status octile_weight_is_current(const octile_weight* weight, const octile_weight_call* given,
                                       octile_layer_operand* operand, int32_t* current) {
  return call([&]() -> Status {
    if (Status ok = require("current", current); !ok) return ok;
    return complete(weight, given, operand,
                    [&](const octile_weight_call& pass, octile_layer_operand& w) -> Status {
                      const auto answer = weight->weight.is_current(pass, w);
                      if (!answer) return tl::unexpected<octile::Error>(answer.error());
                      *current = *answer ? 1 : 0;
                      return {};
                    });
  });
}
