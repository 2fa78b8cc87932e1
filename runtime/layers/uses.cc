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
                            Name{OCTILE_LAYER_BIAS_GRADIENT, "BIAS_GRADIENT"},
                            Name{OCTILE_LAYER_WITHOUT_FORWARD, "WITHOUT_FORWARD"},
                            Name{OCTILE_LAYER_WITHOUT_BACKWARD, "WITHOUT_BACKWARD"},
                            Name{OCTILE_LAYER_COMPARE_W, "COMPARE_W"},
                            Name{OCTILE_LAYER_CURRENT_DY, "CURRENT_DY"},
                            Name{OCTILE_LAYER_HELD_W, "HELD_W"}};

Step quantizes(Role role, Copies copies, bool extra = false) {
  return {.work = Work::kQuantize,
          .role = role,
          .copies = copies,
          .extra = extra,
          .rows = role == Role::kW ? Step::Rows::kWeight : Step::Rows::kTokens};
}

Step transposes() {
  return {.work = Work::kTranspose, .role = Role::kW, .rows = Step::Rows::kWeight};
}

Step multiplies(Pass pass) { return {.work = Work::kMultiply, .pass = pass}; }

Step updates(Role role) {
  return {.work = Work::kUpdateScales, .role = role, .rows = Step::Rows::kOne};
}

}  // namespace

Status check_uses(const Description& d, std::uint32_t uses) {
  if ((uses & ~kAllUses) != 0)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("uses is {:#x}; allowed: bits of octile_layer_use, up to {:#x}", uses,
                            kAllUses));
  if (has_use(uses, OCTILE_LAYER_COMPARE_W) && !has_use(uses, OCTILE_LAYER_KEEP_W))
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("uses is {:#x}; allowed with OCTILE_LAYER_COMPARE_W (0x80): "
                            "OCTILE_LAYER_KEEP_W (0x2), whose copies are compared",
                            uses));
  if (has_use(uses, OCTILE_LAYER_HELD_W)) {
    if (has_use(uses, OCTILE_LAYER_KEEP_W))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("uses is {:#x}; allowed with OCTILE_LAYER_HELD_W (0x200): no "
                              "OCTILE_LAYER_KEEP_W (0x2), because nothing is quantised that "
                              "could be kept",
                              uses));
    if (Status ok = check_holdable(d); !ok) return ok;
  }
  if (!has_use(uses, OCTILE_LAYER_BIAS_GRADIENT)) return {};
  if (has_use(uses, OCTILE_LAYER_CURRENT_DY))
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("uses is {:#x}; allowed with OCTILE_LAYER_CURRENT_DY (0x100): no "
                            "OCTILE_LAYER_BIAS_GRADIENT (0x10), because the columns of dY are "
                            "summed by who quantises it",
                            uses));
  if (d.experts == 0) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("uses is {:#x}; allowed without OCTILE_LAYER_BIAS_GRADIENT (0x10), "
                          "because the layer has experts, and experts have no bias",
                          uses));
}

std::vector<Step> steps_of(const Description& d, std::uint32_t uses) {
  const bool keeps_x = has_use(uses, OCTILE_LAYER_KEEP_X);
  const bool keeps_w = has_use(uses, OCTILE_LAYER_KEEP_W);
  const bool holds_w = has_use(uses, OCTILE_LAYER_HELD_W);
  const bool compares = has_use(uses, OCTILE_LAYER_COMPARE_W);
  const bool dx = has_use(uses, OCTILE_LAYER_INPUT_GRADIENT);
  const bool dw = has_use(uses, OCTILE_LAYER_WEIGHT_GRADIENT);
  const bool sums = has_use(uses, OCTILE_LAYER_BIAS_GRADIENT);
  const bool forward = !has_use(uses, OCTILE_LAYER_WITHOUT_FORWARD);
  const bool backward = !has_use(uses, OCTILE_LAYER_WITHOUT_BACKWARD);
  std::vector<Step> steps;
  if (!forward && !backward && !holds_w && (keeps_w || dx))
    steps.push_back(quantizes(Role::kW, {keeps_w, dx}, compares));
  if (forward) {
    steps.push_back(quantizes(Role::kX, {true, keeps_x}));
    if (!holds_w) steps.push_back(quantizes(Role::kW, {true, keeps_w && dx}, compares));
    steps.push_back(multiplies(Pass::kFprop));
  }
  if (backward) {
    const Copies of_dy = copies_of_dy(dx, dw, sums);
    if (of_dy.any() && !has_use(uses, OCTILE_LAYER_CURRENT_DY))
      steps.push_back(quantizes(Role::kDy, of_dy, sums));
    if (dx && holds_w) steps.push_back(transposes());
    if (dx && !holds_w && !keeps_w) steps.push_back(quantizes(Role::kW, {false, true}));
    if (dx) steps.push_back(multiplies(Pass::kDgrad));
    if (dw && !keeps_x) steps.push_back(quantizes(Role::kX, {false, true}));
    if (dw) steps.push_back(multiplies(Pass::kWgrad));
  }
  if (d.is_delayed() && (keeps_x || dx || dw || sums)) {
    for (const Role role : {Role::kX, Role::kDy}) steps.push_back(updates(role));
  }
  return steps;
}

Problem problem_of(const Description& d, const Step& step) {
  switch (step.work) {
    case Work::kQuantize:
      return quantizer(d, step.role, output_of(step.copies), step.extra);
    case Work::kTranspose:
      return transposer(d);
    case Work::kMultiply:
      return gemm(d, step.pass);
    case Work::kUpdateScales:
      break;
  }
  return scale_update(d, step.role);
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
