#include "runtime/layers/uses.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace octile::layers {
namespace {

struct Name {
  octile_layer_use use;
  std::string_view name;
};
constexpr std::array kNames{Name{OCTILE_LAYER_KEEP_X, "KEEP_X"},
                            Name{OCTILE_LAYER_KEEP_W, "KEEP_W"},
                            Name{OCTILE_LAYER_INPUT_GRADIENT, "INPUT_GRADIENT"},
                            Name{OCTILE_LAYER_WEIGHT_GRADIENT, "WEIGHT_GRADIENT"},
                            Name{OCTILE_LAYER_BIAS_GRADIENT, "BIAS_GRADIENT"}};

}  // namespace

Status check_uses(const Description& d, std::uint32_t uses) {
  if ((uses & ~kAllUses) != 0)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("uses is {:#x}; allowed: bits of octile_layer_use, up to {:#x}", uses,
                            kAllUses));
  if (d.experts == 0 || !has_use(uses, OCTILE_LAYER_BIAS_GRADIENT)) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("uses is {:#x}; allowed without OCTILE_LAYER_BIAS_GRADIENT (0x10), "
                          "because the layer has experts, and experts have no bias",
                          uses));
}

std::string text_of_uses(std::uint32_t uses) {
  if (uses == 0) return "0 (inference)";
  std::string text;
  for (const auto& [use, name] : kNames) {
    if (has_use(uses, use)) text.append(text.empty() ? "" : " | ").append(name);
  }
  return fmt::format("{} ({:#x})", text, uses);
}

std::uint32_t uses_of_quantizer(Role role, Copies made) {
  switch (role) {
    case Role::kX:
      return made.rowwise ? use_if(made.transposed, OCTILE_LAYER_KEEP_X)
                          : use_if(true, OCTILE_LAYER_WEIGHT_GRADIENT);
    case Role::kW:
      return use_if(made.transposed, OCTILE_LAYER_INPUT_GRADIENT) |
             use_if(made.transposed && made.rowwise, OCTILE_LAYER_KEEP_W);
    case Role::kDy:
      break;
  }
  return use_if(made.rowwise, OCTILE_LAYER_INPUT_GRADIENT) |
         use_if(made.transposed, OCTILE_LAYER_WEIGHT_GRADIENT);
}

}  // namespace octile::layers
