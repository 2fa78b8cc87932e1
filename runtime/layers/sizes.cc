// The sizes that a framework asks of a layer: those of FP8 copies, and of workspaces.
#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "runtime/launch/argument_checks.h"
#include "runtime/layers/layer.h"
#include "runtime/layers/operand.h"
#include "runtime/layers/uses.h"

namespace octile::layers {
namespace {

// An operand with the memory that calls with some uses give.
octile_layer_operand supposed(Copies memory, octile_layer_state state) {
  static char somewhere = 0;
  const auto copy = [](bool given) {
    return given ? octile_layer_copy{&somewhere, &somewhere} : octile_layer_copy{};
  };
  octile_layer_operand operand{};
  operand.struct_size = sizeof operand;
  operand.rowwise = copy(memory.rowwise);
  operand.transposed = copy(memory.transposed);
  operand.state = state;
  return operand;
}

octile_layer_operand held() { return supposed({.rowwise = true}, OCTILE_LAYER_CODES); }
octile_layer_operand kept(Copies memory) { return supposed(memory, OCTILE_LAYER_CURRENT); }
octile_layer_operand quantized(Copies memory) { return supposed(memory, OCTILE_LAYER_QUANTIZE); }

class Sizes {
 public:
  Sizes(const Plans& plans, const Description& description, std::int64_t tokens)
      : plans_(plans), d_(description), tokens_(tokens) {}

  // Returns the bytes of a call with these operands that runs this GEMM, if there is one.
  Result<std::int64_t> of_call(std::initializer_list<Operand> operands) const {
    std::int64_t scratch = 0;
    for (const Role role : {Role::kX, Role::kW, Role::kDy}) {
      const auto bytes = scratch_of_quantizers(role);
      if (!bytes) return bytes;
      scratch = std::max(scratch, *bytes);
    }
    if (const Slot& slot = plans_.transposer(); slot.plan != nullptr) {
      const auto bytes = slot.plan->workspace_bytes(d_.n);
      if (!bytes) return tl::unexpected<Error>(bytes.error());
      scratch = std::max(scratch, d_.tensors() * static_cast<std::int64_t>(*bytes));
    }
    Workspace workspace(nullptr);
    workspace.take(scratch);
    for (Operand operand : operands) {
      if (Status ok = operand.place(plans_, d_, workspace); !ok)
        return tl::unexpected<Error>(ok.error());
    }
    return workspace.used();
  }

 private:
  // Returns the most that a quantiser of the tensor needs, whichever copies it makes.
  Result<std::int64_t> scratch_of_quantizers(Role role) const {
    std::int64_t most = 0;
    for (const Copies copies : {Copies{true, false}, Copies{false, true}, Copies{true, true}}) {
      for (const bool extra : {false, true}) {
        const Slot& slot = plans_.quantizer(role, copies, extra);
        if (slot.plan == nullptr) continue;
        const auto bytes = slot.plan->workspace_bytes(role == Role::kW ? d_.n : tokens_);
        if (!bytes) return tl::unexpected<Error>(bytes.error());
        most = std::max(most, stacked_tensors(d_, role) * static_cast<std::int64_t>(*bytes));
      }
    }
    return most;
  }

  const Plans& plans_;
  const Description& d_;
  std::int64_t tokens_;
};

}  // namespace

Result<QuantizedLayout> Layer::copy_layout(Role role, bool transposed, std::int64_t tokens) const {
  if (Status ok = check_extent("tokens", tokens); !ok) return tl::unexpected<Error>(ok.error());
  auto layout = octile::layers::copy_layout(plans_, description_, role, transposed, tokens);
  if (layout && role == Role::kW) {
    layout->data.outer *= description_.tensors();
    layout->scales.outer *= description_.tensors();
  }
  return layout;
}

Result<WorkspaceSizes> Layer::workspace_sizes(std::int64_t tokens, std::uint32_t uses) const {
  Status ok = check_extent("tokens", tokens);
  if (ok) ok = check_uses(description_, uses);
  if (ok) ok = plans_.check(uses);
  if (!ok) return tl::unexpected<Error>(ok.error());
  const bool keeps_x = has_use(uses, OCTILE_LAYER_KEEP_X);
  const bool keeps_w = has_use(uses, OCTILE_LAYER_KEEP_W);
  const bool holds_w = has_use(uses, OCTILE_LAYER_HELD_W);
  const bool dx = has_use(uses, OCTILE_LAYER_INPUT_GRADIENT);
  const bool dw = has_use(uses, OCTILE_LAYER_WEIGHT_GRADIENT);
  const bool db = has_use(uses, OCTILE_LAYER_BIAS_GRADIENT);
  const Copies row{.rowwise = true}, col{.transposed = true};
  const auto operand = [&](Role role, Copies needed, octile_layer_operand given) {
    return Operand(description_, role, needed, given, tokens);
  };
  const Sizes sizes(plans_, description_, tokens);
  Result<std::int64_t> forward = 0, backward = 0;
  if (!has_use(uses, OCTILE_LAYER_WITHOUT_FORWARD))
    forward = sizes.of_call(
        {operand(Role::kX, row, quantized({.transposed = keeps_x})),
         operand(Role::kW, row, holds_w ? held() : quantized({keeps_w, keeps_w && dx}))});
  if (!forward) return tl::unexpected<Error>(forward.error());
  if (!has_use(uses, OCTILE_LAYER_WITHOUT_BACKWARD))
    backward = sizes.of_call(
        {operand(Role::kDy, copies_of_dy(dx, dw, db),
                 has_use(uses, OCTILE_LAYER_CURRENT_DY) ? kept({dx, dw}) : quantized({})),
         operand(Role::kW, dx ? col : Copies{},
                 holds_w   ? held()
                 : keeps_w ? kept(col)
                           : quantized({})),
         operand(Role::kX, dw ? col : Copies{}, keeps_x ? kept(col) : quantized({}))});
  if (!backward) return tl::unexpected<Error>(backward.error());
  return WorkspaceSizes{*forward, *backward};
}

}  // namespace octile::layers
